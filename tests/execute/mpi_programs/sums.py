"""Run by test_library_sums, by mpirun or torchrun: reductions as one SUM of the library's, faults among them."""

import sys
import time

import numpy as np
import pytest

import topocomm
from attention import LOGSUMEXP
from tests.execute.sum_cases import check_all
from topocomm import LOGADDEXP
from topocomm.execute.transports.library_sums import EAGER_BYTES, MOST_CUT_BYTES, MpiSum, library_sum


class BeforeMpi4:
    """A communicator without persistent collectives."""

    Allreduce_init = Reduce_scatter_init = property()

    def __init__(self, comm):
        self.Iallreduce, self.Ireduce_scatter = comm.Iallreduce, comm.Ireduce_scatter
        self.Recv_init, self.Send_init = comm.Recv_init, comm.Send_init


def check_before_mpi_4(transport):
    added, own, size = np.zeros(5), transport.comm, transport.size
    counts = [2 + (peer == 1) for peer in range(size)]
    sent, received = np.ones(sum(counts)), np.zeros(counts[transport.rank])
    transport.comm = BeforeMpi4(own)
    batches = (
        MpiSum(transport, np.ones(5), added, None),
        MpiSum(transport, sent, received, counts),
    )
    transport.comm = own
    for batch in batches:
        for _ in range(3):
            batch.start()
            while not batch.wait(0.01):
                pass
            assert batch.pending() == ([], [])
        batch.free()
    assert (added == size).all() and (received == size).all()


def check_exchange(comm):
    """Two ranks: messages of every length, in pieces or whole, for all or by blocks."""
    rank, transport = comm.rank, comm.session.transport
    one_piece, most = EAGER_BYTES // 4, MOST_CUT_BYTES // 4
    for items in (0, 1, one_piece, one_piece + 1, 3 * one_piece + 7, most, most + 1):
        for dtype, counts in ((np.float32, None), (np.float64, None), (np.float32, (items // 3, items - items // 3))):
            every = np.arange(items) / 8 + np.array([[0], [3]])
            sent = every[rank].astype(dtype)
            own = slice(None) if counts is None else slice(rank * counts[0], counts[0] + rank * counts[1])
            sums = np.full_like(sent[own], -1)
            tag = comm.session.next_tag()
            batch = library_sum(transport, sent, sums, counts, tag)
            pieces = max(1, -(-sums.nbytes // EAGER_BYTES)) if sums.nbytes <= MOST_CUT_BYTES else 1
            assert counts or batch.calls.requests.count == 2 * pieces
            for turn in range(2):
                batch.start()
                while not batch.wait(0.01):
                    pass
                assert batch.pending() == ([], []) and (sums == every.sum(0)[own] + turn).all()
                sent += rank
            batch.free()


def check_fast_path(comm):
    """The same arrays again: what is not the same is seen all the same, and whatever the sums are."""
    x = {"out": np.ones((2, 3), np.float32), "lse": np.zeros(2, np.float32)}
    out = {name: np.empty_like(array) for name, array in x.items()}
    call = comm.prepare_sum(like=x, operator=LOGSUMEXP)
    for _turn in range(3):
        assert call(x, reference=np.full(2, 0.5), out=out) is out and not call.repeated
        np.testing.assert_allclose(out["lse"], np.log(comm.size), rtol=1e-6)
    x["lse"][0] = np.nan
    assert call(x, reference=np.zeros(2), out=out) is out and call.repeated == 1 and np.isnan(out["lse"][0])
    x["lse"] = np.full(2, 7, np.float32)  # other memory
    assert call(x, reference=6, out=out)["lse"][0] == np.float32(7 + np.log(comm.size)) and call.repeated == 1
    for wrong in (np.zeros(3), None):
        alone = comm.split(comm.rank)
        refused = alone.prepare_sum(like=x, operator=LOGSUMEXP)
        refused(x, reference=np.zeros(2), out=out)
        with pytest.raises(topocomm.OperatorError, match="reference"):
            refused(x, reference=wrong, out=out)
    plain, result = np.ones((2, 3)), np.empty((2, 3))
    adding = comm.prepare_sum(like=plain, operator=LOGADDEXP)  # which binds nothing of its own
    for reference in (0.5, np.zeros((2, 3)), np.ones((2, 3)), np.full((2, 3), 800.0)):
        np.testing.assert_allclose(adding(plain, reference=reference, out=result), 1 + np.log(comm.size), rtol=1e-12)
    assert adding.repeated == 1
    number = comm.session.recorder.calls
    for _turn in range(1100):  # a sweep among them
        call(x, reference=np.full(2, 6.0), out=out)
    assert comm.session.recorder.calls == number + 1100
    assert call._last.fast_path is not None  # MPI is called from C
    other = comm.split(0)
    differing = other.prepare_sum(like=x, operator=LOGSUMEXP)
    for _turn in range(2):
        differing(x, reference=np.zeros(2), out=out)
    with pytest.raises(topocomm.MismatchError, match="differs between ranks"):
        differing(x, reference=np.full(2, 1e-9 * other.rank), out=out)
    assert not other.session.open


def check_fast_scatter(comm):
    """Rows alone, the same arrays again."""
    size, rank = comm.size, comm.rank
    x = {"out": np.ones((2 * size + 1, 2, 3), np.float32), "lse": np.zeros((2 * size + 1, 2), np.float32)}
    rows = [2] * (size - 1) + [3]
    out = {name: np.empty_like(array[: rows[rank]]) for name, array in x.items()}
    call = comm.prepare_sum(like=x, operator=LOGSUMEXP, collective="reduce_scatter", rows=rows)
    x["lse"][...] = np.arange(2 * size + 1)[:, None]
    for change in (0.5, 1.0, -2.0):
        assert call(x, reference=x["lse"] + change, out=out) is out and not call.repeated
        own = np.arange(2 * rank, 2 * rank + rows[rank])[:, None] + np.log(size)
        np.testing.assert_allclose(out["lse"], np.broadcast_to(own, out["lse"].shape), rtol=1e-6)
    base = x["lse"].astype(np.float64)
    for bad, repeated in ((-80, 1), (0, 1), (np.nan, 2), (0, 2)):  # of one rank in one row
        x["lse"][0, 1] = bad if rank == size - 1 else 0
        call(x, reference=base, out=out)
        assert call.repeated == repeated, bad
        if rank == 0:
            np.testing.assert_allclose(out["lse"][0, 1], np.log(size - (bad != 0)) if bad == bad else bad, atol=1e-6)


comm = topocomm.init()
moved_by, taken = check_all(comm)
x = np.zeros(3)
if sys.argv[1:] in (["late"], ["late", "again"]):
    partial = {"out": np.ones((3, 2), np.float32), "lse": np.zeros(3, np.float32)}
    call = comm.prepare_sum(like=partial, operator=LOGSUMEXP)
    out = {name: np.empty_like(array) for name, array in partial.items()}
    for _turn in range(2 * (sys.argv[2:] == ["again"])):  # from the second time on by the fast path
        call(partial, reference=x, out=out)
    comm.barrier()
    try:
        if comm.rank == comm.size - 1:
            time.sleep(6)
        call(partial, reference=x, out=out)
    except topocomm.TopocommError as error:
        print(f"rank {comm.rank}: {type(error).__name__}: {error}\n", end="", flush=True)
else:
    other = [c for c in (comm.split(0), comm.split(comm.rank % 2)) if c is not None]
    for group in other:
        check_all(group)
        group.close()
    if moved_by == "mpi":
        check_before_mpi_4(comm.session.transport)
        if comm.size == 2:
            check_exchange(comm)
    if moved_by == "mpi":
        check_fast_path(comm)
        check_fast_scatter(comm)
    half = comm.prepare_sum(like=x, operator=LOGADDEXP)
    held = np.zeros(3)
    for _turn in range(2):
        half(x, reference=x, out=held)
    half.free()
    with pytest.raises(topocomm.TopocommError, match="was freed"):
        half(x, reference=x, out=held)
    print(f"rank {comm.rank}: {moved_by} {sum(taken.values())}\n", end="", flush=True)
    comm.close()
