"""mypy --strict and pyright take a user's program with the installed wheel; a planted fault shows that they look."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import attention
import topocomm

PROGRAM = Path(__file__).with_name("user_program.py")
ROOT = PROGRAM.parents[2]
LIBRARIES = ("numpy", "torch", "ml_dtypes", "mpi4py", "transformers")
"""What the wheel's signatures name, taken from this environment."""
PYRIGHT = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}


@pytest.mark.parametrize("package", [topocomm, attention], ids=lambda package: package.__name__)
def test_packages_say_that_they_are_typed(package):
    assert (Path(package.__file__).parent / "py.typed").is_file()


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder with an environment that has the wheel (TOPOCOMM_WHEEL, or built here), and the program in it."""
    folder = tmp_path_factory.mktemp("typed")
    wheel = os.environ.get("TOPOCOMM_WHEEL")
    if wheel is None:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
        subprocess.run(command, check=True, timeout=900)
        wheel = next(map(str, folder.glob("*.whl")))
    venv.create(folder / "venv")
    site = next((folder / "venv" / "lib").glob("python3*/site-packages"))
    shutil.unpack_archive(wheel, site, "zip")
    for name in LIBRARIES:
        found = Path(sysconfig.get_path("purelib")) / name
        if found.exists():
            (site / name).symlink_to(found)
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    return folder


CHECKERS = {
    "mypy": ("mypy", "--strict", "--cache-dir", "cache", "--python-executable"),
    "pyright": ("pyright", "--pythonpath"),
}


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_program_is_checked_with_the_installed_wheel(installed, checker):
    if shutil.which(checker) is None:
        pytest.skip(f"{checker} is not installed: pip install 'pyright[nodejs]'")
    text = PROGRAM.read_text()
    planted = text.replace("comm.allreduce(x, SUM), Floats", "comm.allreduce(x, SUM), torch.Tensor")
    planted = planted.replace("comm.allreduce(x)  # type: ignore", "comm.allreduce(x, SUM)  # type: ignore")
    at_fault = [n for n, (a, b) in enumerate(zip(text.splitlines(), planted.splitlines(), strict=True), 1) if a != b]
    (installed / "program.py").write_text(text)
    (installed / "planted.py").write_text(planted)
    command = [*CHECKERS[checker], "venv/bin/python", "program.py", "planted.py"]
    ran = subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=600, check=False)
    errors = [line for line in ran.stdout.splitlines() if " error: " in line or " - error: " in line]
    assert len(at_fault) == 2
    assert len(errors) == 2, ran.stdout + ran.stderr
    for line, number in zip(errors, at_fault, strict=True):
        assert f"planted.py:{number}:" in line, ran.stdout
