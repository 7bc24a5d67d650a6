"""Run by tests/execute/host/test_single_copy.py: collectives in one copy between processes, of every length.

Argument: "work", "late" (the last rank comes when the limit of the others is over), or "kill" (it dies in the call).
"""

import os
import signal
import sys
import time
from importlib.util import find_spec

import numpy as np
from mpi4py import MPI

from topocomm import Communicator, DeadlineError, RankFailedError
from topocomm.bench.facts import way_of
from topocomm.execute.host import single_copy

ROWS = 4
KINDS = ("alltoall", "allgather", "gather", "scatter", "broadcast")
single_copy.LEAST_BYTES.update(dict.fromkeys(KINDS, 1))
world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
comm = Communicator.from_mpi(world)


def block(src, dst, rows=ROWS):
    return np.arange(3.0 * rows).reshape(rows, 3) + 100 * src + 10_000 * dst


def prepared(name, like, **options):
    call = comm.prepare(name, like=like, **options)
    assert way_of(call) == "shared memory, compiled, in one copy", way_of(call)
    return call


given = np.concatenate([block(rank, dst) for dst in range(ranks)])
wanted = np.concatenate([block(src, rank) for src in range(ranks)])


def every_collective():
    whole = given + 1000 * rank
    for turn in range(5):
        np.testing.assert_array_equal(comm.alltoall(given + turn), wanted + turn)
        rows = [(src + turn) % 3 for src in range(ranks)]
        joined = np.concatenate([block(src, 7, n) for src, n in enumerate(rows)])
        np.testing.assert_array_equal(comm.allgather(block(rank, 7, rows[rank])), joined)
        for root in (0, ranks - 1):
            got = comm.gather(block(rank, 7, rows[rank]), root=root)
            assert (got is None) == (rank != root)
            assert got is None or np.array_equal(got, joined)
            roots = np.concatenate([block(root, dst) for dst in range(ranks)]) + 1000 * root
            np.testing.assert_array_equal(comm.broadcast(whole, root=root), roots)
            both = whole.copy()
            assert comm.broadcast(both, root=root, out=both) is both
            np.testing.assert_array_equal(both, roots)
            np.testing.assert_array_equal(comm.scatter(whole, root=root), roots[ROWS * rank : ROWS * rank + ROWS])
    for name in KINDS:
        prepared(name, given).free()


def rows_by_pair_and_fields():
    sent = [[(src * 3 + dst * 2) % 5 for dst in range(ranks)] for src in range(ranks)]
    x = np.concatenate([block(rank, dst, n) for dst, n in enumerate(sent[rank])])
    value = {"x": x, "tag": np.arange(len(x), dtype=np.uint8)}
    call = prepared("alltoall", value, rows=sent[rank])
    for _ in range(4):
        got = call(value)
        np.testing.assert_array_equal(got["x"], np.concatenate([block(s, rank, sent[s][rank]) for s in range(ranks)]))
        firsts = [sum(sent[src][:rank]) for src in range(ranks)]
        assert got["tag"].tolist() == [f + i for src, f in enumerate(firsts) for i in range(sent[src][rank])]


def values_as_they_come():
    """Strided, in Fortran order, read-only, in place, over each other, as tensors; through handles."""
    call = prepared("alltoall", given)
    read_only = given.copy()
    read_only.flags.writeable = False
    for value in (np.repeat(given, 2, axis=1)[:, ::2], np.asfortranarray(given), read_only):
        np.testing.assert_array_equal(call(value), wanted)
    both = given.copy()
    assert call(both, out=both) is both
    np.testing.assert_array_equal(both, wanted)
    room = np.empty((len(given) + 1, 3))
    room[:-1] = given
    np.testing.assert_array_equal(call(room[:-1], out=room[1:]), wanted)
    if find_spec("torch"):
        import torch

        tensor = torch.tensor(given)
        assert comm.alltoall(tensor, out=tensor) is tensor
        assert torch.equal(tensor, torch.tensor(wanted))
    handle = call.start(given, out=both)
    assert handle.wait() is both
    np.testing.assert_array_equal(both, wanted)
    assert call.input is None


def the_caller_has_its_value_back_when_all_have_read_it():
    """The last rank comes late: the others' calls are not through before it has read their values."""
    call, x = prepared("alltoall", given), given.copy()
    comm.barrier()
    if rank == ranks - 1:
        time.sleep(0.3)
    began_s = time.monotonic()
    got = call(x)
    x[...] = np.nan
    assert rank == ranks - 1 or time.monotonic() - began_s > 0.2
    np.testing.assert_array_equal(got, wanted)


def a_value_that_no_other_can_read_is_copied_first():
    """As memory of a device that is mapped: the fast path leaves it to Python, which makes a copy."""
    seen = []
    single_copy._can_be_read = lambda array: seen.append(array) is not None
    call = prepared("alltoall", given)
    np.testing.assert_array_equal(call(np.repeat(given, 2, axis=1)[:, ::2]), wanted)
    assert len(seen) == 1


def where_the_system_refuses_values_are_copied_twice():
    comm.session.transport.reads_peers = False
    call = comm.prepare("alltoall", like=given)
    assert way_of(call) == "shared memory, compiled", way_of(call)
    np.testing.assert_array_equal(call(given), wanted)


def late():
    """Rank 0 gives up; what the last rank then finds is no value, and is not taken for one."""
    call, x = prepared("broadcast", given), given.copy()
    if rank == 0:
        try:
            call(x)
        except DeadlineError as error:
            say(error)
        x[...] = np.nan
        for other in range(1, ranks):
            world.send(None, other)
    elif rank < ranks - 1:
        assert not np.isnan(call(None)).any()
        world.recv(source=0)  # a rank that has left would be named before the one that is late
    else:
        world.recv(source=0)
        try:
            call(None)
        except (DeadlineError, RankFailedError) as error:
            say(error)


def kill():
    call = prepared("alltoall", given)
    comm.barrier()
    if rank == ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        call(given)
    except RankFailedError as error:
        say(error)


def say(error):
    sys.stdout.write(f"[{rank}] {type(error).__name__}: {error}\n")
    sys.stdout.flush()


if sys.argv[1] == "work":
    every_collective()
    rows_by_pair_and_fields()
    values_as_they_come()
    the_caller_has_its_value_back_when_all_have_read_it()
    a_value_that_no_other_can_read_is_copied_first()
    where_the_system_refuses_values_are_copied_twice()
    comm.close()
    sys.stdout.write(f"{rank} ok\n")
else:
    {"late": late, "kill": kill}[sys.argv[1]]()
