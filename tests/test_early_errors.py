"""Exceptions before `init` are shown with the rank, each in one piece, where a launcher started the process."""

import subprocess
import sys

import pytest

from topocomm.early_errors import RANKS
from topocomm.execute.setup.launchers import LAUNCHERS

FIRST = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}


def stderr(program, environment):
    """What a program writes to stderr in an environment with nothing else in it."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    return done.stderr


def test_every_launcher_is_known_by_the_variable_of_its_rank():
    assert set(RANKS) == {by.rank for by in LAUNCHERS}


@pytest.mark.parametrize(
    ("statement", "last"),
    [
        ("topocomm.catalog('dgx-h10')", "topocomm.errors.TopologyError: system 'dgx-h10' is not in the catalogue"),
        ("open('nowhere')", "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere'"),
    ],
)
def test_a_rank_says_which_one_it_is(statement, last):
    text = stderr(f"import topocomm\n{statement}", FIRST)
    assert text.startswith("rank 2 of 4 failed:\nTraceback") and text.count("Traceback") == 1
    assert text.splitlines()[-1].startswith(last) and "systems.py" not in text


@pytest.mark.parametrize("environment", [{}, FIRST | {"OMPI_COMM_WORLD_SIZE": "1"}])
def test_a_process_alone_fails_as_python_does(environment):
    assert stderr("import topocomm\nopen('nowhere')", environment).startswith("Traceback")


def test_a_hook_of_the_programs_own_has_the_word():
    program = "import sys, topocomm\nbefore = sys.excepthook\n"
    program += "sys.excepthook = lambda *error: (sys.stderr.write('own\\n'), before(*error))\nopen('nowhere')"
    assert stderr(program, FIRST).startswith("own\nTraceback")


@pytest.mark.parametrize("environment", [{}, FIRST])
def test_a_hook_from_before_the_import_is_called_once_and_with_the_error(environment):
    program = "import sys\nsys.excepthook = lambda kind, error, trace: sys.stderr.write(f'own {error.filename}\\n')\n"
    text = stderr(program + "import topocomm\nopen('nowhere')", environment)
    assert text == "rank 2 of 4 failed:\n" * bool(environment) + "own nowhere\n"


def test_the_hook_of_a_communicator_names_the_rank_once():
    program = "import topocomm\nfrom topocomm.execute.liveness.exception_hook import end_on_uncaught\n"
    text = stderr(program + "end_on_uncaught(1, 3, lambda error: None)\nopen('nowhere')", FIRST)
    assert text.startswith("rank 1 of 3 failed:\nTraceback") and text.count("failed:") == 1


def test_without_numpy_the_error_is_shown_all_the_same():
    text = stderr("import sys, topocomm\nsys.modules['numpy'] = None\nopen('nowhere')", FIRST)
    assert text.startswith("Traceback") and "FileNotFoundError" in text.splitlines()[-1]
    assert "Error in sys.excepthook" not in text
