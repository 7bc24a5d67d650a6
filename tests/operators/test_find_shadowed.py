"""PyPI has another distribution that installs `attention`; where it hides ours, the message says so."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("file", ["attention/__init__.py", "attention.py"])
def test_a_foreign_attention_is_named(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    look = (  # an editable install finds its packages before the path is asked; an installed wheel does not
        "import sys, topocomm\n"
        "sys.meta_path[:] = [finder for finder in sys.meta_path if 'Inplace' not in type(finder).__name__]\n"
        "from topocomm.operators.find import find_operator\n"
        "find_operator('attention.logsumexp')"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    for part in (
        "cannot load attention.merge.logsumexp:LOGSUMEXP: No module named 'attention.merge'",
        f"{tmp_path}/{file} is not the 'attention' of topocomm, it shadows it",
        "pip uninstall attention",
        "reinstall topocomm",
    ):
        assert part in line
