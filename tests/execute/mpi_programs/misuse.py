"""Run by test_mpi under mpirun -n 2: values and results that a call must refuse, take as they are, or survive."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import topocomm
from attention import LOGSUMEXP
from tests.machines import ways
from topocomm import SUM, DeadlineError, OperatorError, TopocommError, TopologyError

world = MPI.COMM_WORLD
rank, size = world.rank, world.size


def value(fill, shape=(3,)):
    return {"out": np.full((*shape, 4), fill, np.float32), "lse": np.zeros(shape, np.float32)}


def results_that_cannot_be_written(comm, operator):
    x = value(rank) if operator is LOGSUMEXP else {"value": np.full(4, float(rank))}
    call = comm.prepare("allreduce", like=x, operator=operator)
    frozen = {name: array.copy() for name, array in x.items()}
    for array in frozen.values():
        array.flags.writeable = False
    with pytest.raises(OperatorError, match="is read-only; give a writable array"):
        call(frozen, out=frozen)
    if call.input is not None:
        with pytest.raises(OperatorError, match="lies in the call's send buffer"):
            call(call.input, out=call.input)
    with pytest.raises(OperatorError, match="expected the fields"):
        call(x, out={"other": np.zeros(4)})
    first = next(iter(x))
    with pytest.raises(OperatorError, match=rf"^out(: field '{first}')? must be"):
        call(x, out={name: array[:1].copy() for name, array in x.items()})
    assert call(x) is not None  # none of this has closed the communicator
    call.free()
    with pytest.raises(TopocommError, match="was freed"):
        call(x)


def scalars(comm):
    """Values without rows: NumPy scalars are values, not places for results."""
    x = {"out": np.full(4, float(rank), np.float32), "lse": np.float32(0)}
    assert abs(comm.allreduce(x, LOGSUMEXP)["lse"] - np.log(size)) < 1e-6
    assert abs(comm.allreduce(x, LOGSUMEXP)["lse"] - np.log(size)) < 1e-6
    with pytest.raises(OperatorError, match="'lse' is a NumPy scalar, which cannot be written"):
        comm.allreduce(x, LOGSUMEXP, out=x)


def replaced_entries(comm, operator, name):
    """Entries of `call.input` that the caller replaces are values like others: taken if they fit."""
    x = value(0) if operator is LOGSUMEXP else {"value": np.zeros(4)}
    call = comm.prepare("allreduce", like=x, operator=operator)
    if call.input is None:
        return
    for _ in range(2):
        held = call.input
        for field, array in held.items():
            array[...] = x[field]
        held[name] = np.full_like(x[name], 5.0)
        assert np.all(call(held)[name] == (5.0 if operator is LOGSUMEXP else 5.0 * size))
    held = call.input
    held[name] = np.zeros(x[name].shape, np.float16)
    with pytest.raises(OperatorError, match=r"^x(: field .*)? must be"):
        call(held)


def calls_out_of_turn(comm, operator):
    """A send buffer of an earlier call, and a call that is under way, are refused by the shortest way too."""
    x = value(rank) if operator is LOGSUMEXP else np.full(4, float(rank))
    call = comm.prepare("allreduce", like=x, operator=operator)
    held = call.input
    if held is not None and len({*call.engines}) > 1:
        call(held)
        with pytest.raises(OperatorError, match="x is the send buffer of an earlier call"):
            call(held)
    if rank:
        world.Barrier()
    handle = call.start(x)
    if rank == 0:
        with pytest.raises(TopocommError, match="under way; wait for its handle before you begin it again"):
            call(x)
        world.Barrier()
    result = handle.wait()
    mean = result["out"] if operator is LOGSUMEXP else result / size
    np.testing.assert_allclose(mean, (size - 1) / 2)


def no_false_alarm(comm):
    """A long wait in one call and then in the next, in both ways to call: nobody takes one for the other."""
    a, b = value(1), value(2, (5,))
    for x in (a, a, a, b, b, b):
        comm.allreduce(x, LOGSUMEXP)
    for late in (0, 1):
        if rank == late:
            time.sleep(0.2)
        comm.broadcast(np.ones(3), root=0)
        if rank != late:
            time.sleep(0.3)
        comm.allreduce(b, LOGSUMEXP)


def late_data_finds_its_memory():
    """After an error MPI may still write to the buffers of the call: they stay."""
    comm = topocomm.Communicator.from_mpi(world, ways(size)["messages"])
    call = comm.prepare("allreduce", like=np.zeros(5000), operator=SUM)
    if rank == 0:
        comm.session.waiting.timeout_s = 0.2
        with pytest.raises(DeadlineError, match="rank 1"):
            call(np.zeros(5000))
        del call, comm
        others = [np.zeros(5000) for _ in range(200)]
        world.Barrier()
        time.sleep(0.3)
        world.Iprobe()
        assert not any(array.any() for array in others)
    else:
        world.Barrier()
        with pytest.raises(TopocommError):
            call(np.ones(5000))
    world.Barrier()


def no_communicator_or_topology():
    for make in (topocomm.Communicator.from_mpi, topocomm.discover):
        with pytest.raises(TopocommError, match=r"expected an mpi4py intracommunicator, .* got str"):
            make("COMM_WORLD")
    with pytest.raises(TopologyError, match=r"expected a topocomm.Topology, got str; topocomm.load"):
        topocomm.Communicator.from_mpi(MPI.COMM_SELF, "dgx-h100")


no_communicator_or_topology()
for topology in ways(size).values():
    with topocomm.Communicator.from_mpi(world, topology) as comm:
        for operator in (SUM, LOGSUMEXP):
            results_that_cannot_be_written(comm, operator)
            replaced_entries(comm, operator, "value" if operator is SUM else "out")
            calls_out_of_turn(comm, operator)
        scalars(comm)
        no_false_alarm(comm)
late_data_finds_its_memory()
if rank == 0:
    print("misuse ok", flush=True)
