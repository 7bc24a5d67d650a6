"""Calls with rows are one while rows stay, and count only where they stayed on all ranks; see also test_all_gather."""

from pathlib import Path
from threading import Barrier
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.mpi import mpirun
from topocomm import DeadlineError, MismatchError, OperatorError, run_local

RANKS = 3
PROGRAM = Path(__file__).parents[1] / "mpi_programs" / "expected_rows.py"


class Pair(NamedTuple):
    a: np.ndarray
    b: np.ndarray


def around(comm, x, **options):
    """What a ring of sendrecvs gives this rank."""
    return comm.sendrecv(x, (comm.rank + 1) % comm.size, **options)


KINDS = {
    "array": lambda rank, rows: np.full((rows, 2), rank, np.float32),
    "tensor": lambda rank, rows: torch.full((rows, 2), float(rank), dtype=torch.bfloat16),
    "pair": lambda rank, rows: Pair(np.full(rows, rank), np.full((rows, 3), rank / 2)),
    "dict": lambda rank, rows: {"k": torch.full((rows, 2), float(rank)), "n": torch.full((rows,), rank)},
}


def same(got, want):
    if isinstance(want, tuple):
        return type(got) is type(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return list(got) == list(want) and all(same(got[name], want[name]) for name in want)
    return type(got) is type(want) and got.dtype == want.dtype and got.tolist() == want.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_kind_while_rows_change_and_stay(kind):
    make = KINDS[kind]

    def body(comm):
        counts = []
        for rows in ([2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 5, 2], [2, 5, 2], [0, 5, 2], [0, 5, 2], [0, 5, 2]):
            source = (comm.rank - 1) % RANKS
            before = comm.session.recorder.calls
            got = around(comm, make(comm.rank, rows[comm.rank]))
            counts.append(comm.session.recorder.calls - before)
            assert same(got, make(source, rows[source]))
        return counts[1], counts[2], counts[-1]

    assert run_local(body, ranks=RANKS) == [(1, 1, 1)] * RANKS


def test_kinds_in_turn_are_not_confused():
    def body(comm):
        source = (comm.rank - 1) % RANKS
        for step in range(4):
            for make in KINDS.values():
                rows = [3, 3, 3 + (step == 2)]
                assert same(around(comm, make(comm.rank, rows[comm.rank])), make(source, rows[source]))

    run_local(body, ranks=RANKS)


def test_a_result_in_given_memory_is_written_once_it_counts():
    def body(comm):
        source = (comm.rank - 1) % RANKS
        for step, rows in enumerate([[2, 2, 2]] * 3 + [[4, 2, 2]] * 3):
            x = np.full(rows[comm.rank], 10 * step + comm.rank)
            out = np.full(rows[source], -1)
            in_place = rows[comm.rank] == rows[source] and comm.rank == 2
            got = around(comm, x, out=x if in_place else out)
            assert got is (x if in_place else out)
            assert got.tolist() == [10 * step + source] * rows[source]

    run_local(body, ranks=RANKS)


def test_out_that_does_not_fit_is_an_error_of_all_ranks():
    def body(comm):
        for _ in range(3):
            around(comm, np.zeros(2))
        with pytest.raises(
            (OperatorError, MismatchError), match="as prepared, got float64" if comm.rank == 1 else "refused"
        ):
            around(comm, np.zeros(2), out=np.zeros(3) if comm.rank == 1 else None)

    run_local(body, ranks=RANKS)


@pytest.mark.parametrize("wrong", [[1, 2], np.float64(3)])
def test_a_value_without_rows_is_an_error_of_all_ranks(wrong):
    def body(comm):
        for _ in range(3):
            around(comm, np.zeros(2))
        with pytest.raises(
            MismatchError, match=r"rank 1 refused its arrays: expected an array|which every array must have"
        ):
            around(comm, wrong if comm.rank == 1 else np.zeros(2))

    run_local(body, ranks=RANKS)


def test_a_rank_that_nobody_receives_from_is_awaited_all_the_same(monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "0.4")
    told = Barrier(RANKS)

    def body(comm):
        dest = [1, 0, 2][comm.rank]
        for _ in range(3):
            comm.sendrecv(np.zeros(2), dest)
        if comm.rank < 2:
            with pytest.raises(DeadlineError, match=r"the flags of an alltoall's rows.*still waiting for rank 2"):
                comm.sendrecv(np.zeros(2), dest)
        told.wait()

    run_local(body, ranks=RANKS)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_processes_of_one_host(ranks):
    job = mpirun(ranks, [PROGRAM], timeout_s=100)
    assert job.returncode == 0, job.stderr[-3000:]
    assert sorted(job.stdout.split("\n"))[1:] == [f"rank {rank}: rows ok" for rank in range(ranks)]
