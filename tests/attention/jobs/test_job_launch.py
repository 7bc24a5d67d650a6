"""Jobs on threads and under a real mpirun: exit status, who speaks, and that nobody is left waiting."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attention.__main__ import main
from tests.attention.jobs import toy_job
from tests.mpi import mpirun

TOY = Path(__file__).with_name("toy_job.py")
RANKS = 3
TOGETHER = [
    ["sum"],
    ["bad input"],
    ["bad input on 2"],
    ["lacks"],
    ["work failed"],
    ["sum", "--ranks", "2"],
    ["sum", "--ranks", "0"],
    ["sum", "--nonsense"],
    ["sum", "--ranks", "3"],
    ["--help"],
]
"""Jobs that leave their processes alive: they run one after the other in one launch."""


@pytest.fixture(scope="module")
def ended():
    """The status, stdout and stderr of every rank, by the arguments of the job."""
    done = mpirun(RANKS, [TOY, "several", json.dumps(TOGETHER)])
    assert done.returncode == 0, done.stderr
    return dict(zip(map(tuple, TOGETHER), json.loads(done.stdout), strict=True))


def on_threads(capsys, *arguments):
    """The status, stdout and stderr of a job on threads of this process."""
    try:
        status = toy_job.main(arguments)
    except SystemExit as exit_:
        status = exit_.code
    return status, *capsys.readouterr()


def speaks_alone(ranks, speaker, status):
    """What the speaker said on stdout and stderr; it ended with this status, the others in silence and with 0."""
    assert [rank[0] for rank in ranks] == [status if number == speaker else 0 for number in range(len(ranks))]
    assert [rank[1:] for number, rank in enumerate(ranks) if number != speaker] == [["", ""]] * (len(ranks) - 1)
    return ranks[speaker][1:]


@pytest.mark.parametrize("ranks", [1, 3, pytest.param(8, marks=pytest.mark.long)])
def test_sum_over_mpi_ranks(ranks):
    done = mpirun(ranks, [TOY, "sum"])
    assert (done.returncode, done.stdout) == (0, f"sum {ranks * (ranks + 1) // 2}\n")


@pytest.mark.parametrize(("arguments", "total"), [([], 1), (["--ranks", "4"], 10)])
def test_sum_over_threads(capsys, arguments, total):
    assert on_threads(capsys, "sum", *arguments) == (0, f"sum {total}\n", "")


def test_one_job_after_the_other(ended):
    assert speaks_alone(ended[("sum",)], 0, 0) == ["sum 6\n", ""]


@pytest.mark.parametrize(
    ("way", "speaker", "status", "line"),
    [
        ("bad input", 0, 2, "toy: error: the toy is broken\n"),
        ("bad input on 2", 2, 2, "toy: error: rank 2: the toy is broken here\n"),
        ("lacks", 0, 1, "toy: error: no batteries\n"),
    ],
)
def test_failure_is_said_once_in_one_line(ended, way, speaker, status, line):
    assert speaks_alone(ended[(way,)], speaker, status) == ["", line]


def test_work_that_failed_is_a_status(ended):
    assert speaks_alone(ended[("work failed",)], 0, 1) == ["sum 6\n", ""]


@pytest.mark.parametrize(("way", "status"), [("bad input on 2", 2), ("work failed", 1)])
def test_mpirun_ends_with_the_status_of_the_job(way, status):
    done = mpirun(3, [TOY, way])
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    said = [text for text in done.stderr.splitlines() if text.startswith("toy:")]
    assert said == (["toy: error: rank 2: the toy is broken here"] if status == 2 else [])


@pytest.mark.parametrize(
    ("way", "status", "said"),
    [
        ("bad input", 2, "toy: error: the toy is broken\n"),
        ("lacks", 1, "toy: error: no batteries\n"),
        ("work failed", 1, ""),
    ],
)
def test_failure_on_threads(capsys, way, status, said):
    ended, _, err = on_threads(capsys, way, "--ranks", "2")
    assert (ended, err) == (status, said)


def test_exception_of_one_rank_ends_the_job():
    done = mpirun(3, [TOY, "raise on 1"], timeout_s=60)
    assert done.returncode == 1
    assert "rank 1 of 3 failed:" in done.stderr
    assert "KeyError: 'a planned mistake'" in done.stderr
    assert done.stdout == ""


@pytest.mark.long
def test_exception_in_the_report_ends_the_job():
    done = mpirun(2, [TOY, "raise in report"], timeout_s=60)
    assert done.returncode == 1
    assert "rank 0 of 2 failed:" in done.stderr


def test_exception_on_threads():
    done = subprocess.run(
        [sys.executable, TOY, "raise on 1", "--ranks", "3"], capture_output=True, text=True, timeout=60, check=False
    )
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
def test_bad_usage_under_mpirun(ended, arguments, line):
    out, err = speaks_alone(ended[tuple(arguments)], 0, 2)
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(line)


def test_ranks_may_repeat_what_mpirun_says(ended):
    assert speaks_alone(ended["sum", "--ranks", "3"], 0, 0) == ["sum 6\n", ""]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x"])
def test_bad_ranks_on_threads(capsys, text):
    line = f"toy: error: argument --ranks: expected a whole number of at least 1, got '{text}'\n"
    assert on_threads(capsys, "sum", f"--ranks={text}") == (2, "", line)


def test_more_threads_than_there_can_be(capsys):
    line = "toy: error: --ranks 1025: expected 1 to 1024 threads; mpirun starts more\n"
    assert on_threads(capsys, "sum", "--ranks=1025") == (2, "", line)


def test_help_is_printed_once(ended):
    out, err = speaks_alone(ended[("--help",)], 0, 0)
    assert (out.count("usage: toy"), err) == (1, "")


BAD_SETTING = "toy: error: TOPOCOMM_TIMEOUT_S='soon': expected a positive number of seconds"


@pytest.mark.long
def test_a_bad_setting_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "soon")
    assert on_threads(capsys, "sum") == (2, "", BAD_SETTING + "\n")
    done = mpirun(2, [TOY, "sum"])
    assert done.returncode == 2
    assert [text for text in done.stderr.splitlines() if text.startswith("toy:")] == [BAD_SETTING]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", ["torch", "tqdm"])
def test_a_missing_extra_is_named_before_anything_starts(package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["decode", "--context=64", "--ranks=1"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert f"needs {package}, which is not installed; run: pip install 'torch" in said[0]


def eval_list(text):
    return [float(part) for part in text.strip("[]").split(",")]
