"""Ranks that leave before the others, under a real mpirun."""

import re

import pytest

from tests.execute.test_faults import run, said


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
