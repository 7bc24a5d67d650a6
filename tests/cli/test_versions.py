"""What `topocomm --version` tells."""

import importlib.metadata
import subprocess
import sys

import numpy as np
import pytest

from topocomm.cli import versions
from topocomm.cli.main import main


def test_versions_of_what_is_here(capsys):
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"topocomm {importlib.metadata.version('topocomm')}, with")
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}." in lines[0]
    assert max(map(len, lines)) <= 80
    assert f"numpy {np.__version__}" in " ".join(lines).split("libraries")[1]
    by_name = {line[:13].strip(): line[14:] for line in lines}
    assert {"threads", *versions.TRANSPORTS, "libraries"} <= by_name.keys()


def test_what_is_not_here_is_named(monkeypatch, capsys):
    monkeypatch.setattr(versions, "TRANSPORTS", {"carrier": ("pigeon-grey", "pigeon-white")})
    assert main(["-V"]) == 0
    assert "carrier       not found: no pigeon-grey or pigeon-white" in capsys.readouterr().out


def test_nothing_that_is_told_is_imported():
    program = "import sys; from topocomm.cli.main import main; main(['--version']); print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not {"'numpy'", "'torch'", "'mpi4py'"} & set(done.stdout.splitlines()[-1].strip("[]").split(", "))


@pytest.mark.parametrize("there", [True, False])
def test_whether_the_compiled_part_is_there(monkeypatch, tmp_path, there):
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    if there:
        (tmp_path / "_native.abi3.so").touch()
    monkeypatch.setattr(versions, "find_spec", lambda name: Spec)
    assert (", with its compiled part;" in versions.versions_text()) is there
