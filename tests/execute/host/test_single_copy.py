"""Collectives in one copy: by every plan on threads, between processes, and with ranks that fail or are late."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.execute.engine_jobs import LIMIT_S, run
from tests.execute.peer_work import work_of
from tests.machines import switch
from tests.mpi import mpirun
from tests.plans import every_plan
from topocomm import TopocommError
from topocomm.execute.calls.binding import carrier
from topocomm.execute.host.single_copy import ADDRESSES_BYTES, Reads, SingleCopyEngine, _PullRun
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.execute.transports.shared_memory import COUNTER_BYTES, SharedMemory

PROGRAM = Path(__file__).parents[1] / "mpi_programs" / "single_copy.py"
ROOT = str(Path(__file__).parents[3])
RANKS, ROWS = 4, 40
PARTS = {
    "alltoall": [2, 0, 3, 1, 4, 0, 5, 1, 0, 2, 9, 1, 3, 3, 3, 3],
    "allgather": [7, 0, 20, 13],
    "gather": [7, 0, 20, 13],
    "scatter": [7, 0, 20, 13],
    "broadcast": None,
}


def works(name, root=2):
    """Works of all ranks by every plan of a collective on four CPUs, of values with one number a row."""
    operator = carrier(np.zeros(ROWS, np.float32), by_rows=name if PARTS[name] else "")
    layout = operator.layout({"value": ((ROWS,), np.float32)})
    which = {} if PARTS[name] is None else {"parts": PARTS[name]}
    which["root"] = 0 if name in ("alltoall", "allgather") else root
    for plan in every_plan(switch(RANKS), name, operator, layout, **which):
        yield [work_of(plan, operator, layout, rank) for rank in range(RANKS)]


def taken(name, rank, root=2):
    """The rows that a rank gets; None for none at all."""
    parts, whole = PARTS[name], np.arange(ROWS, dtype=np.float32)
    if parts is None or (name == "gather" and rank == root) or name == "allgather":
        return whole
    pieces = np.split(whole, np.cumsum(parts)[:-1])
    if name == "alltoall":
        return np.concatenate(pieces[rank::RANKS])
    return pieces[rank] if name == "scatter" else None


@pytest.mark.parametrize("name", PARTS)
def test_every_plan_moves_the_rows_that_it_says(name):
    count = 0
    for jobs in works(name):
        region = aligned_buffer(RANKS * (COUNTER_BYTES + 2 * ADDRESSES_BYTES))
        region[...] = 0
        shared = [SharedMemory(region, rank, range(RANKS), cores=2) for rank in range(RANKS)]
        engines = [
            [SingleCopyEngine(work, Reads(work), own, number) for number in range(2)]
            for work, own in zip(jobs, shared, strict=True)
        ]

        def body(rank, jobs=jobs, engines=engines):
            span, wanted = jobs[rank].value, taken(name, rank)
            for turn in range(6):
                engine, value, target = engines[rank][(turn + 1) & 1], None, None
                if engine.takes_value:
                    value = {"value": np.arange(span.first, span.first + span.rows, dtype=np.float32) + turn}
                if wanted is not None:
                    target = {"value": np.full_like(wanted, np.nan)}
                run(engine, value, target, apart=True)
                if value is not None:
                    value["value"][...] = np.nan  # it is the caller's again
                assert target is None or np.array_equal(target["value"], wanted + turn), (rank, turn)

        with ThreadPoolExecutor(RANKS) as pool:
            for done in [pool.submit(body, rank) for rank in range(RANKS)]:
                done.result(LIMIT_S)
        count += 1
    assert count


def test_no_two_ranks_begin_with_one_other():
    work, *_ = next(works("alltoall"))
    reads = Reads(work)
    assert reads.sources == {0: [0, 1, 3], 1: [2, 3], 2: [2, 3, 0, 1], 3: [3, 0, 1, 2]}
    assert reads.longest_bytes == 5 * 4


def test_memory_that_cannot_be_read_is_an_error():
    class Unread:
        """An engine that came upon such memory."""

        state, stage, unread = 1, 1, 14

        def behind(self):
            return [2]

        def go_on(self, sleep_us):
            return self.state

    shared = SharedMemory(aligned_buffer(1024), 0, range(RANKS), cores=2)
    awaited = _PullRun(shared, Unread(), {(1, 2): 96}, 3)
    with pytest.raises(TopocommError, match=r"the value of rank 2 cannot be read in its memory \(Bad address\)"):
        awaited.wait(0.0)


@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (2, 5))])
def test_processes_read_each_others_values(ranks):
    job = mpirun(ranks, [PROGRAM, "work"], timeout_s=120.0, env={"PYTHONPATH": ROOT})
    assert job.returncode == 0, job.stderr[-3000:]
    assert sorted(job.stdout.split()) == sorted([*map(str, range(ranks)), *["ok"] * ranks])


@pytest.mark.alone
def test_a_value_counts_until_its_rank_gives_up(tmp_path):
    """The rank names those that have not read it; one that comes later gets an error, not what is in the array then."""
    limit = {"TOPOCOMM_TIMEOUT_S": "2", "TOPOCOMM_RECORD_DIR": str(tmp_path)}
    job = mpirun(3, [PROGRAM, "late"], timeout_s=60.0, env={"PYTHONPATH": ROOT, **limit})
    lines = dict(re.findall(r"^\[(\d)\] (.*)$", job.stdout, re.MULTILINE))
    assert sorted(lines) == ["0", "2"], job.stdout + job.stderr[-3000:]
    assert re.match(r"DeadlineError: rank 0: .* still waiting for rank 2 \(to take \d+ bytes\) after 2 s", lines["0"])
    assert re.search(r"rank 0", lines["2"])


def test_a_rank_that_dies_is_named(tmp_path):
    job = mpirun(3, [PROGRAM, "kill"], timeout_s=60.0, env={"PYTHONPATH": ROOT, "TOPOCOMM_RECORD_DIR": str(tmp_path)})
    assert job.returncode != 0
    for line in job.stdout.splitlines():  # of those that come to say something before they are ended
        if line.startswith("["):
            assert "RankFailedError" in line and "rank 2 has" in line, line
