"""Shifts of device memory over the recording NCCL, and through host memory where there is none."""

import gc
import threading

import numpy as np
import pytest
import torch

from tests.execute.device_jobs import fake_nccl, run_in, run_on_devices
from topocomm import SUM
from topocomm.execute.device import device_library as device
from topocomm.execute.transports.device import nccl_library

RANKS = (1, 2, 3, 5)


def held(comm, *sizes):
    """Tensors of these sizes in one allocation of the rank's device, each 64 bytes from the next."""
    memory = device.device_of(torch.empty(0)).memory(sum(size + 64 for size in sizes))
    starts = np.cumsum([0, *(size + 64 for size in sizes)])[:-1]
    return [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def apart(comm, *sizes):
    """Tensors each in memory of its own."""
    return [torch.full((size,), 255, dtype=torch.uint8) for size in sizes]


def around(make):
    def body(comm):
        shift = comm.prepare_shift(2)
        before, sizes = (comm.rank - 1) % comm.size, [7 + rank for rank in range(comm.size)]
        for turn in range(4):
            mine, three, theirs, one = make(comm, sizes[comm.rank], 3 - turn % 2 * 3, sizes[before], 3 - turn % 2 * 3)
            mine.fill_(10 * turn + comm.rank)
            three.fill_(comm.rank + 100)
            shift.start([mine, three], [theirs, one])
            shift.advance()
            shift.wait()
            assert (theirs == 10 * turn + before).all() and (one == before + 100).all()
            assert (mine == 10 * turn + comm.rank).all()
        comm.synchronize()
        return comm.allreduce(torch.ones(1), SUM).tolist()

    return body


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("make", [held, apart])
def test_tensors_go_around_the_ring(make, ranks):
    assert run_on_devices(around(make), ranks) == [[float(ranks)]] * ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_without_a_wire_they_go_through_host_memory(monkeypatch, ranks):
    with fake_nccl(ranks) as world:
        monkeypatch.setattr(nccl_library, "refusal", lambda facts: "none here")
        assert run_in(world, around(apart)) == [[float(ranks)]] * ranks
        assert not [entry for entry in world.log if entry[0] == "send"]


def test_one_allocation_is_sent_from_as_it_is():
    def body(comm):
        memory = held(comm, 40, 40)
        shift = comm.prepare_shift(1)
        here = device.device_of(memory[0])
        shift.start(memory[:1], memory[1:])
        shift.wait()
        allocated = here.allocated
        shift.start(memory[1:], memory[:1])
        shift.wait()
        shift.start(memory[:1], memory[1:])
        shift.wait()
        assert here.allocated == allocated
        loose = apart(comm, 40, 40)
        shift.start(loose[:1], loose[1:])
        shift.wait()
        return here.allocated - allocated

    assert run_on_devices(body, 2) == [144, 144]  # 2 x 64 bytes, and room to grow


def test_memory_is_not_kept_when_another_takes_its_place():
    with fake_nccl(2) as world:

        def body(comm):
            shift = comm.prepare_shift(1)
            alive = []
            for _ in range(3):
                memory = held(comm, 40, 40)
                alive.append(world.memories[comm.rank][-1][2])
                shift.start(memory[:1], memory[1:])
                shift.wait()
                comm.synchronize()
            del memory
            gc.collect()
            return [one() is not None for one in alive]

        assert run_in(world, body) == [[False, False, True]] * 2


def test_messages_wait_for_the_current_stream_and_it_for_them():
    """The stream of the shift waits for what was on the current one, and in the end the other way round."""
    with fake_nccl(2) as world:

        def body(comm):
            memory = held(comm, 8, 8)
            shift = comm.prepare_shift(1)
            stream = device.device_of(memory[0]).stream()
            shift.start(memory[:1], memory[1:])
            mine = [(one, other) for one, other in world.waits if one.rank == comm.rank]
            assert len(mine) == 1 and mine[0][1] is stream and mine[0][0] is not stream
            shift.wait()
            mine = [(one, other) for one, other in world.waits if one.rank == comm.rank]
            return len(mine) == 2 and mine[1] == mine[0][::-1]

        assert run_in(world, body) == [True, True]


def test_a_shift_in_a_graph_stays_on_its_stream():
    with fake_nccl(2) as world:

        def body(comm):
            memory = held(comm, 8, 8)
            memory[0].fill_(comm.rank)
            shift = comm.prepare_shift(1)
            shift.start(memory[:1], memory[1:])
            shift.wait()
            comm.barrier()
            world.capturing = True
            memory[0].fill_(comm.rank + 5)
            shift.start(memory[:1], memory[1:])
            shift.wait()
            return memory[1].tolist()

        assert run_in(world, body) == [[6] * 8, [5] * 8]
        world.capturing = False


def test_memory_that_a_graph_has_recorded_stays():
    """A later shift of larger messages takes other memory, and leaves that of the graph alone."""
    with fake_nccl(2) as world:

        def body(comm):
            small, large = apart(comm, 40, 40), apart(comm, 4000, 4000)
            shift = comm.prepare_shift(1)
            shift.start(small[:1], small[1:])
            shift.wait()
            arena = world.memories[comm.rank][-1][2]
            here.wait()
            world.capturing = True
            shift.start(small[:1], small[1:])
            shift.wait()
            here.wait()
            world.capturing = False
            shift.start(large[:1], large[1:])
            shift.wait()
            comm.synchronize()
            gc.collect()
            return arena() is not None

        here = threading.Barrier(2)
        assert run_in(world, body) == [True, True]


def test_memory_of_its_own_is_kept_for_both_streams():
    with fake_nccl(2) as world:

        def body(comm):
            loose = apart(comm, 8, 8)
            mine = device.device_of(loose[0])
            shift = comm.prepare_shift(1)
            kept = []
            mine.keep = lambda tensor, stream: kept.append((tensor.untyped_storage().data_ptr(), stream))
            with mine.on(mine.new_stream()):
                shift.start(loose[:1], loose[1:])
                shift.wait()
                there = shift._on_device
                arena = there._arena.untyped_storage().data_ptr()
                return {stream for at, stream in kept if at == arena} == {there._stream, mine.stream()}

        assert run_in(world, body) == [True, True]
