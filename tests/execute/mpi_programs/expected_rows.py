"""Run by test_expected_rows on one host: values that differ in their rows, while these stay and when they change."""

import numpy as np
import torch

import topocomm
from topocomm.bench.facts import way_of
from topocomm.execute.transports.cross_memory import can_read_peers

comm = topocomm.init()
rank, size = comm.rank, comm.size
LONG = 40_000


def calls_of(call, *arguments, **options):
    """The result, and the number of calls that it took."""
    before = comm.session.recorder.calls
    result = call(*arguments, **options)
    return result, comm.session.recorder.calls - before


def joined(rows, step):
    return np.concatenate([np.full(count, 10 * step + peer) for peer, count in enumerate(rows)])


def check_long_values():
    """An all-gather longer than what bytes travel with is one call."""
    for step, rows in enumerate([[LONG] * size, [LONG] * size, [LONG] * size, [LONG + 1, *[LONG] * (size - 1)]] * 2):
        got, calls = calls_of(comm.allgather, np.full(rows[rank], 10 * step + rank))
        assert np.array_equal(got, joined(rows, step))
        assert calls == 1 or step not in (1, 2), (step, calls)


def check_value_in_out(step, rows):
    """A value that lies in the result's memory is whole where the first call did not count."""
    out, first = np.full(sum(rows), -1), sum(rows[:rank])
    out[first : first + rows[rank]] = 10 * step + rank
    assert comm.allgather(out[first : first + rows[rank]], out=out) is out and np.array_equal(out, joined(rows, step))
    peer = (rank + 1) % size
    x = np.full(3 + (step == 4), 10 * step + rank)
    got = comm.sendrecv(x, peer, out=x)  # all have as many rows
    assert got is x and (x == 10 * step + (rank - 1) % size).all()


def check_kinds(step, rows):
    """Kinds of values with the same rows in turn, one of them changing."""
    own = rows[rank]
    for kind in range(4):
        mine = own + (step == 6 and kind == 2 and rank == 0)
        x = np.full((mine, 1 + kind % 2), rank + step, np.float32 if kind < 2 else np.int32)
        value = torch.from_numpy(x) if kind == 3 else {"a": x, "b": x[:, 0] * 1} if kind == 1 else x
        got = comm.allgather(value)
        array = np.asarray(got["a"] if kind == 1 else got)
        assert type(got) is type(value) and array.dtype == x.dtype
        first = rows[0] + (mine - own if rank == 0 else step == 6 and kind == 2)
        assert array[:, 0].tolist() == [step] * first + [r + step for r in range(1, size) for _ in range(rows[r])]


def check_copies_of_two():
    """Two ranks copy an all-gather once from 16 KiB on, more ranks from 64 KiB on."""
    if can_read_peers(comm.session.waiting):
        for block_bytes, is_one in ((8 << 10, False), (16 << 10, size == 2), (64 << 10, True)):
            call = comm.prepare("allgather", like=np.zeros(block_bytes, np.uint8))
            assert ("one copy" in way_of(call)) is is_one, (block_bytes, way_of(call))


check_long_values()
check_copies_of_two()
for step, rows in enumerate(
    [[3] * size, [3] * size, [2] * size, [2, *[5] * (size - 1)], [3] * size] + [[3] * size] * 4
):
    check_value_in_out(step, rows)
    check_kinds(step, rows)
for turn in range(3):
    got, calls = calls_of(comm.sendrecv, np.full(4, rank), (rank + 1) % size)
    assert (got == (rank - 1) % size).all() and (turn < 2 or calls == 1)
comm.close()
print(f"rank {rank}: rows ok\n", end="", flush=True)
