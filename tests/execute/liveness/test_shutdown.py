"""Ranks that leave before the others, under a real mpirun."""

import re

import pytest

from tests.execute.test_faults import run, said
from topocomm.execute.liveness import shutdown


@pytest.mark.parametrize("by", [pytest.param("exit", marks=pytest.mark.long), "end"])
def test_a_rank_that_leaves_is_named(by, tmp_path):
    job = run(3, "leave.py", by, TOPOCOMM_RECORD_DIR=str(tmp_path))
    lines = said(job)
    assert sorted(lines) == [0, 2], job.stderr[-3000:]
    for (text,) in lines.values():
        assert text.startswith("RankFailedError"), text
        assert re.search(r"rank 1 has (left|ended)", text), text


@pytest.mark.long
def test_ranks_that_catch_the_error_end_as_usual(tmp_path):
    job = run(3, "leave.py", "caught", timeout_s=30, TOPOCOMM_RECORD_DIR=str(tmp_path))
    assert job.returncode == 0, job.stderr[-3000:]
    lines = said(job)
    assert sorted(lines) == [0, 1, 2]
    assert all(text.startswith("MismatchError") and "rank 1" in text for (text,) in lines.values()), lines


@pytest.mark.parametrize("closed", [False, True])
def test_what_a_program_has_said_is_written_before_the_process_may_be_ended(monkeypatch, closed):
    """With ranks gone MPI_Finalize may end the process, and with it what waits in the buffer of a pipe."""
    events = []

    class Output:
        def flush(self):
            events.append("flushed")
            if closed:
                raise ValueError("I/O operation on closed file.")

    class Lost:
        def finish(self):
            events.append("finished")

    monkeypatch.setattr(shutdown, "_lost_ranks", [Lost()])
    monkeypatch.setattr(shutdown.sys, "stdout", Output())
    shutdown._depart()
    assert events == ["flushed", "finished"]
