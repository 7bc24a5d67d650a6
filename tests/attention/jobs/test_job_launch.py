"""Jobs on threads and under a real mpirun: exit status, who speaks, and that nobody is left waiting."""

import subprocess
import sys
from pathlib import Path

import pytest

from attention.__main__ import main
from tests.mpi import mpirun

TOY = Path(__file__).with_name("toy_job.py")


def alone(*arguments):
    return subprocess.run([sys.executable, TOY, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("ranks", [1, 3, pytest.param(8, marks=pytest.mark.long)])
def test_sum_over_mpi_ranks(ranks):
    done = mpirun(ranks, [TOY, "sum"])
    assert (done.returncode, done.stdout) == (0, f"sum {ranks * (ranks + 1) // 2}\n")


@pytest.mark.parametrize(("arguments", "total"), [([], 1), (["--ranks", "4"], 10)])
def test_sum_over_threads(arguments, total):
    done = alone("sum", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"sum {total}\n", "")


@pytest.mark.parametrize(
    ("way", "status", "line"),
    [
        pytest.param("bad input", 2, "toy: error: the toy is broken", marks=pytest.mark.long),
        ("bad input on 2", 2, "toy: error: rank 2: the toy is broken here"),
        pytest.param("lacks", 1, "toy: error: no batteries", marks=pytest.mark.long),
        ("work failed", 1, None),
    ],
)
def test_failure_is_said_once_in_one_line(way, status, line):
    done = mpirun(3, [TOY, way])
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert [text for text in done.stderr.splitlines() if text.startswith("toy:")] == ([line] if line else [])


@pytest.mark.parametrize(("way", "status"), [("bad input", 2), ("lacks", 1), ("work failed", 1)])
def test_failure_on_threads(way, status):
    done = alone(way, "--ranks", "2")
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_exception_of_one_rank_ends_the_job():
    done = mpirun(3, [TOY, "raise on 1"], timeout_s=60)
    assert done.returncode == 1
    assert "rank 1 of 3 failed:" in done.stderr
    assert "KeyError: 'a planned mistake'" in done.stderr
    assert done.stdout == ""


def test_exception_in_the_report_ends_the_job():
    done = mpirun(3, [TOY, "raise in report"], timeout_s=60)
    assert done.returncode == 1
    assert "rank 0 of 3 failed:" in done.stderr


def test_exception_on_threads():
    done = alone("raise on 1", "--ranks", "3")
    assert done.returncode == 1
    assert "KeyError: 'a planned mistake'" in done.stderr
    assert "raised by rank 1 of 3" in done.stderr


@pytest.mark.alone
@pytest.mark.long
def test_other_ranks_sleep_while_rank_0_reports():
    done = mpirun(3, [TOY, "slow report"])
    assert done.returncode == 0
    idle_s = eval_list(done.stdout.splitlines()[0].removeprefix("idle "))
    assert len(idle_s) == 2
    assert max(idle_s) < 0.3, "a rank that waits burns its core"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sum", "--ranks", "2"], "toy: error: --ranks 2 contradicts mpirun, which started 3; leave --ranks out"),
        (["sum", "--ranks", "0"], "toy: error: argument --ranks: expected a whole number of at least 1, got '0'"),
        (["sum", "--nonsense"], "toy: error: unrecognized arguments: --nonsense"),
    ],
)
def test_bad_usage_under_mpirun(arguments, line):
    done = mpirun(3, [TOY, *arguments])
    assert done.returncode == 2
    said = [text for text in done.stderr.splitlines() if text.startswith("toy:")]
    assert len(said) == 1
    assert said[0].startswith(line)


def test_ranks_may_repeat_what_mpirun_says():
    assert mpirun(2, [TOY, "sum", "--ranks", "2"]).stdout == "sum 3\n"


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x"])
def test_bad_ranks_on_threads(text):
    done = alone("sum", f"--ranks={text}")
    assert done.returncode == 2
    assert done.stderr == f"toy: error: argument --ranks: expected a whole number of at least 1, got '{text}'\n"


def test_help_is_printed_once():
    done = mpirun(3, [TOY, "--help"])
    assert done.returncode == 0
    assert done.stdout.count("usage: toy") == 1


def test_a_bad_setting_is_one_line(monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "soon")
    for done in (alone("sum"), mpirun(2, [TOY, "sum"])):
        assert done.returncode == 2
        said = [text for text in done.stderr.splitlines() if text.startswith("toy:")]
        assert said == ["toy: error: TOPOCOMM_TIMEOUT_S='soon': expected a positive number of seconds"]
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", ["torch", "tqdm"])
def test_a_missing_extra_is_named_before_anything_starts(package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["decode", "--context=64", "--ranks=1"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert f"needs {package}, which is not installed; run: pip install 'topocomm[attention]'" in said[0]


def eval_list(text):
    return [float(part) for part in text.strip("[]").split(",")]
