"""Ranks that disagree, misuse a call, raise or stay away under a real mpirun."""

import re
from pathlib import Path

import pytest

from tests.mpi import HOW, mpirun

PROGRAMS = Path(__file__).parent / "mpi_programs"
ROOT = str(Path(__file__).parents[2])
pytestmark = pytest.mark.alone


def run(ranks, program, *args, timeout_s=120.0, **env):
    return mpirun(ranks, [PROGRAMS / program, *args], timeout_s=timeout_s, env={"PYTHONPATH": ROOT, **env})


def said(job):
    """What each rank printed, by rank."""
    return {int(rank): text for rank, text in re.findall(r"^\[(\d+)\] (.*)$", job.stdout, re.MULTILINE)}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("shape", ["MismatchError", "ranks disagree", "rank 1: float64 [7]"]),
        (
            "disorder",
            ["call 3 (allreduce sum) is another one on rank", ": value (rank ", ": float64 [4]", ": float64 [5]"],
        ),
        ("new call", ["MismatchError", "rank 1"]),
    ],
)
def test_disagreement_is_an_error_on_every_rank(what, parts, how):
    """Which rank of two that differ is the one to find it depends on who waits."""
    texts = said(run(3, "faults.py", what, how))
    assert sorted(texts) == [0, 1, 2]
    for part in parts:
        assert any(part in text for text in texts.values()), (part, texts)
    assert all("MismatchError" in text for text in texts.values())


@pytest.mark.parametrize("how", HOW)
def test_an_absent_rank_is_named_at_the_deadline(how):
    texts = said(run(3, "faults.py", "absent", how, TOPOCOMM_TIMEOUT_S="2"))
    assert sorted(texts) == [0, 2]
    assert all(text.startswith("DeadlineError") for text in texts.values())
    assert any("still waiting for rank 1 (" in text for text in texts.values())


def test_a_rank_that_raises_ends_the_job_with_its_traceback():
    """Under plain `mpirun python`, which by itself leaves the other ranks waiting for ever."""
    job = run(3, "faults.py", "raise", "shared", timeout_s=60)
    assert job.returncode != 0
    assert "rank 1 of 3 failed:" in job.stderr
    assert "RuntimeError: planted" in job.stderr
    assert "faults.py" in job.stderr


@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (2, 4))])
@pytest.mark.parametrize(
    ("what", "text", "teller"),
    [
        ("shape", "topocomm.errors.MismatchError: rank 0: ranks disagree", "0"),
        ("all", "OperatorError: expected an array", "0"),
        ("one wrong", "rank LAST refused its arrays: expected an array", "0"),
        ("disorder", "all ranks must make the same calls", r"\d"),
        ("refused later", "OperatorError: operator 'stats': field 'top' must be float64, got float32", "LAST"),
        ("refused", "as prepared, got float64 [4]", "LAST"),
        ("topology", "topology: expected a topocomm.Topology, got str", "0"),
        ("argument", "system 'dgx-h10' is not in the catalogue", "0"),
        ("argument inside with", "system 'dgx-h10' is not in the catalogue", "0"),
    ],
)
def test_an_uncaught_error_of_several_ranks_is_shown_once(what, text, teller, ranks):
    job = run(ranks, "uncaught.py", what, timeout_s=60)
    text, teller = (words.replace("LAST", str(ranks - 1)) for words in (text, teller))
    assert job.returncode != 0
    assert len(re.findall(rf"^rank {teller} of {ranks} failed:$", job.stderr, re.MULTILINE)) == 1, job.stderr
    assert job.stderr.count("Traceback") == 1 and job.stderr.count(text) == 1, job.stderr
    lines = re.findall(rf"^rank \d of {ranks} stopped too: \w+Error at .*uncaught.py:\d+, in", job.stderr, re.MULTILINE)
    assert len(lines) == ranks - 1, job.stderr


def test_an_error_that_the_first_rank_catches_is_shown_by_another():
    job = run(3, "uncaught.py", "caught on 0", timeout_s=60)
    assert job.returncode != 0
    assert "rank 0 of 3" not in job.stderr
    assert re.search(r"MismatchError: rank [12]: ranks disagree", job.stderr)


@pytest.mark.long
def test_every_rank_says_for_whom_it_waited_before_the_job_ends():
    job = run(3, "late.py", timeout_s=60, TOPOCOMM_TIMEOUT_S="2")
    assert job.returncode != 0
    assert re.search(r"DeadlineError: rank [02]: .* still waiting for rank .* after 2 s", job.stderr)
    for rank in (0, 2):  # the second may hear of the first before its own time is over
        assert re.search(rf"rank {rank} of 3 (failed:|stopped too: DeadlineError)", job.stderr)


def test_misuse_is_refused_and_harmless():
    job = run(2, "misuse.py", timeout_s=60)
    assert "misuse ok" in job.stdout, job.stderr[-3000:]


@pytest.mark.parametrize(
    "what",
    [
        "call against first use",
        *(pytest.param(what, marks=pytest.mark.long) for what in ("call against barrier", "barrier against first use")),
    ],
)
def test_ranks_in_different_calls_find_out_at_once(what):
    """Long before the deadline, whatever plan the odd rank waits in."""
    texts = said(run(4, "different_calls.py", what, TOPOCOMM_TIMEOUT_S="60", timeout_s=50))
    assert sorted(texts) == [0, 1, 2, 3]
    assert all("MismatchError" in text for text in texts.values()), texts
    assert any("all ranks must make the same calls in the same order" in text for text in texts.values())
