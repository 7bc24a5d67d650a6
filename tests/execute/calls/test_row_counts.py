"""Plain gathers and alltoalls with rows: what they exchange while rows stay, and results when those of one change."""

import numpy as np
import pytest

from topocomm import MismatchError, run_local

RANKS = 3


def part(src, dst, rows, step):
    return np.arange(2.0 * rows).reshape(rows, 2) + 100 * src + 10_000 * dst + step


def gather(comm, rows, step):
    got = comm.gather(part(comm.rank, 0, rows[comm.rank], step), root=1)
    assert (got is None) == (comm.rank != 1)
    assert got is None or np.array_equal(got, np.concatenate([part(r, 0, n, step) for r, n in enumerate(rows)]))


def alltoall(comm, rows, step):
    """Rank r sends its rows to rank r, one less to the next one and so on."""
    sent = [[max(n - (dst - src) % RANKS, 0) for dst in range(RANKS)] for src, n in enumerate(rows)]
    x = np.concatenate([part(comm.rank, dst, n, step) for dst, n in enumerate(sent[comm.rank])])
    got = comm.alltoall(x, rows=sent[comm.rank])
    np.testing.assert_array_equal(
        got, np.concatenate([part(src, comm.rank, some[comm.rank], step) for src, some in enumerate(sent)])
    )


def sendrecv(comm, rows, step):
    source = (comm.rank - 1) % RANKS
    got = comm.sendrecv(part(comm.rank, 0, rows[comm.rank], step), (comm.rank + 1) % RANKS)
    np.testing.assert_array_equal(got, part(source, 0, rows[source], step))


def calls_of(comm, way, rows, step):
    """The calls that one with these rows takes, when it was made before."""
    before = comm.session.recorder.calls
    way(comm, rows, step)
    return comm.session.recorder.calls - before


WAYS = [gather, alltoall, sendrecv]


@pytest.mark.parametrize("changing", range(RANKS))
@pytest.mark.parametrize("way", WAYS)
def test_rows_are_exchanged_where_they_changed(way, changing):
    first = [4, 4, 4]
    other = [4 + 3 * (rank == changing) for rank in range(RANKS)]

    def body(comm):
        for rows in (first, other, first):  # prepared from here on
            way(comm, rows, 0)
        way(comm, first, 0)
        steps = [first, first, other, other, other, first, other, first]
        return [calls_of(comm, way, rows, step) for step, rows in enumerate(steps)]

    counts = run_local(body, ranks=RANKS)
    assert counts[0] == counts[1] == counts[2]
    asked, exchanged, both = 2 if way is gather else 1, 2, 3  # of an alltoall none is for asking
    assert counts[0] == [asked, asked, both, exchanged, asked, both, exchanged, exchanged]


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_change_in_every_call(way):
    table = np.random.default_rng(5).integers(0, 6, (12, RANKS)).tolist()

    def body(comm):
        for step, rows in enumerate(table):
            way(comm, rows, step)

    run_local(body, ranks=RANKS)


def test_collectives_keep_rows_of_their_own():
    def body(comm):
        for step in range(4):
            gather(comm, [1, 2, 3], step)
            alltoall(comm, [3, 2, 1], step)
        return calls_of(comm, gather, [1, 2, 3], 9), calls_of(comm, alltoall, [3, 2, 1], 9)

    assert run_local(body, ranks=RANKS) == [(2, 1)] * RANKS


def test_rows_on_some_ranks_only_are_a_mismatch():
    def body(comm):
        x = np.zeros((RANKS, 2))
        for _ in range(3):
            comm.alltoall(x, rows=[1] * RANKS)
        with pytest.raises(MismatchError):
            comm.alltoall(x, rows=[1] * RANKS if comm.rank else None)

    run_local(body, ranks=RANKS)
