"""Ranks that die, stop or leave under a real mpirun, and what the others are told."""

import json
import re
from pathlib import Path

import pytest

from tests.mpi import HOW, mpirun

PROGRAMS = Path(__file__).parent / "mpi_programs"
ROOT = str(Path(__file__).parents[2])
SURVIVES = ["--with-ft", "ulfm"]
pytestmark = pytest.mark.alone


def run(ranks, program, *args, timeout_s=60.0, options=(), **env):
    return mpirun(
        ranks, [PROGRAMS / program, *args], options=options, timeout_s=timeout_s, env={"PYTHONPATH": ROOT, **env}
    )


def own_segments(directory):
    """Where Open MPI keeps the memory of ranks that it cannot remove when they are killed."""
    return {"OMPI_MCA_btl_sm_backing_directory": str(directory)}


def said(job):
    """The lines that each rank printed, by rank."""
    lines = {}
    for rank, text in re.findall(r"^\[(\d+)\] (.*)$", job.stdout, re.MULTILINE):
        lines.setdefault(int(rank), []).append(text)
    return lines


def test_a_killed_rank_ends_a_plain_job(tmp_path):
    job = run(3, "kill.py", "shared", timeout_s=30, TOPOCOMM_RECORD_DIR=str(tmp_path))
    assert job.returncode != 0
    assert "signal 9" in job.stderr or "KILLED BY SIGNAL: 9" in job.stdout + job.stderr
    for lines in said(job).values():  # those that come to say something before they are ended
        assert lines[0].startswith("RankFailedError"), lines
        assert "rank 1 has" in lines[0], lines


@pytest.mark.parametrize(
    ("how", "keeps"),
    [
        ("shared", "drop"),
        pytest.param("messages", "keep", marks=pytest.mark.long),
        pytest.param("two levels", "drop", marks=pytest.mark.long),
    ],
)
def test_the_others_go_on_where_mpi_survives(how, keeps, tmp_path):
    job = run(4, "kill.py", how, keeps, options=SURVIVES, TOPOCOMM_RECORD_DIR=str(tmp_path), **own_segments(tmp_path))
    lines = said(job)
    assert sorted(lines) == [0, 2, 3], job.stderr[-3000:]
    for number, rank in enumerate((0, 2, 3)):
        first, later, now = lines[rank]
        assert first.startswith(f"RankFailedError: rank {rank}: "), first
        assert re.findall(r"rank (\d) has", first) == ["1"], first
        assert later.startswith(f"later rank {rank}: this communicator takes no call now: it was closed by"), later
        assert now == f"now {number} of 3, before (0, 2, 3)"


@pytest.mark.parametrize("how", HOW)
def test_a_stopped_rank_is_named_with_call_and_bytes(how, tmp_path):
    job = run(3, "stop.py", how, TOPOCOMM_RECORD_DIR=str(tmp_path))
    lines = said(job)
    assert sorted(lines) == [0, 2], job.stderr[-3000:]
    for text, *more in lines.values():
        assert more == []
        assert text.startswith("DeadlineError: "), text
        assert re.search(
            r"call \d+ \(allreduce sum, value float64 \[3\]\), round \d: still waiting for rank \d", text
        ), text
        assert "after 1 s (limit: TOPOCOMM_TIMEOUT_S)" in text, text
        assert re.search(r"behind: .*rank 1 \(", text), text
    assert any("rank 1 (24 bytes from it)" in text for text, *_ in lines.values()), lines
    files = sorted(tmp_path.iterdir())
    assert [file.name.partition("-")[0] for file in files] == ["rank0", "rank2"]
    for file in files:
        head, *calls = map(json.loads, file.read_text().splitlines())
        assert (head["schema"], head["size"], head["error"]) == ("topocomm.record/1", 3, "DeadlineError")
        assert head["message"] in "\n".join(text for text, *_ in lines.values())
        assert [call["number"] for call in calls if call["call"] != "the first use of a call"] == [1, 2, 3, 4]
        assert head["calls"] == 4 and "call 4 (" in head["message"]
        assert [call["state"] for call in calls].count("open") == 1
        assert calls[-1]["call"] == "allreduce sum, value float64 [3]"
        assert calls[-1]["state"] == "open"


@pytest.mark.long
@pytest.mark.parametrize("how", HOW)
def test_a_root_is_two_calls_ahead_at_most(how, tmp_path):
    job = run(3, "ahead.py", how, str(tmp_path / "finished"))
    assert job.returncode == 0, job.stderr[-3000:]
    (ahead,) = re.findall(r"^ahead (-?\d+)$", job.stdout, re.MULTILINE)
    assert 0 <= int(ahead) <= 2
