"""Run by test_mpi_device under mpirun: values on devices by MPI, host memory counting as devices'; argv[1] says how."""

import sys
import time
from contextlib import suppress

import pytest
import torch
from mpi4py import MPI

from tests.execute.device_cases import compare, count_tensors
from topocomm import SUM, Communicator, DeadlineError, TopocommError
from topocomm.execute.device import device_library as device
from topocomm.execute.transports.device import mpi_device as mpi_devices
from topocomm.execute.transports.device import mpi_device as mpi_wire

HOW = sys.argv[1]
world = MPI.COMM_WORLD
count_tensors(world.rank, world.size)
mine = device.device_of(torch.ones(1))
mpi_devices.refusal = lambda mpi: "says no" if HOW == "refused" and world.rank == 1 else ""


def late_stream():
    """What was on the stream is through only when it is asked for the third time, and messages start after that."""
    event_type, start = type(mine.event()), mpi_wire.MpiBatch.start
    record, query = event_type.record, event_type.query

    def recorded(event, stream):
        event.asked = 0
        through.clear()
        record(event, stream)

    def slow(event):
        if query(event) and event.asked > 2:
            through.append(event)
        return bool(through)

    def started(batch):
        assert through or not isinstance(batch._buffer, mpi_wire._Memory), "messages start before the stream is there"
        start(batch)

    through = []
    event_type.record, event_type.query, mpi_wire.MpiBatch.start = recorded, slow, started


def say(text):
    sys.stdout.write(f"[{world.rank}] {text}\n")
    sys.stdout.flush()


def correct(comm):
    compare(comm)
    assert comm.session.device_path.transport.name == "mpi"
    call = comm.prepare("allreduce", like=torch.ones(3), operator=SUM)
    mine.world.capturing = True
    with pytest.raises(TopocommError, match="no graph records that"):
        call(torch.ones(3))
    mine.world.capturing = False
    assert torch.equal(call(torch.ones(3)), torch.full((3,), float(comm.size)))
    say("ok")


def staged(comm):
    x = torch.ones(4)
    assert torch.equal(comm.allreduce(x, SUM), x * comm.size)
    assert comm.session.device_path.transport is None
    say("staged")


def alone(comm):
    """Rank 1 does not make the second call."""
    x = torch.ones(4)
    call = comm.prepare("allreduce", like=x, operator=SUM)
    call(x)
    if comm.rank == 1:
        time.sleep(4)
        say("late")
        return
    try:
        call(x)
    except DeadlineError as error:
        say(f"deadline {error}")


def wrong_bytes(address, size):
    """Memory that is not the caller's."""
    wrong.append(bytearray(size))
    return MPI.buffer.frombuffer(wrong[-1])


wrong = []
if HOW == "wrong":
    mpi_wire._Memory.__getitem__ = lambda memory, part: wrong_bytes(part.start, part.stop - part.start)
if HOW == "raises":

    def raises(memory, part):
        if world.rank == 1:
            raise MPI.Exception(MPI.ERR_BUFFER)
        return getitem(memory, part)

    mpi_wire.PROOF_S = 1.0
    getitem, mpi_wire._Memory.__getitem__ = mpi_wire._Memory.__getitem__, raises
if HOW == "correct":
    late_stream()
BODIES = {"correct": correct, "alone": alone}
with suppress(*[TopocommError] * (HOW == "alone")), Communicator.from_mpi(world) as comm:
    BODIES.get(HOW, staged)(comm)
