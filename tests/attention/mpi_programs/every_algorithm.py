"""The logsumexp merge by every algorithm, in shared memory and by messages, in every way to pass values."""

import sys
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import topocomm.execute.host.engine_choice
from attention import LOGSUMEXP
from tests.attention.merging import assert_close, exact, partial
from tests.machines import switch, ways
from tests.plans import every_plan
from topocomm.execute.host.compiled_engine import CompiledEngine

torch.set_num_threads(1)
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
SHAPES = [(32,), (2, 3, 3), (1,), (0,), (700,)]


def apart(array):
    """The same values in memory that is not contiguous."""
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    return wide[..., 0]


def results_of(call, value):
    """The result by every way to pass the value and to take the result."""
    out = {name: np.empty_like(array) for name, array in value.items()}
    yield "plain", call(value)
    yield "out", call(value, out=out)
    strided = {name: apart(array) for name, array in value.items()}
    yield "strided", call(strided)
    yield "strided out", call(value, out=strided)
    itself = {name: array.copy() for name, array in value.items()}
    yield "in place", call(itself, out=itself)
    alias = {name: array.copy() for name, array in value.items()}
    yield "in place, another dict", call(alias, out=dict(alias))
    if call.input is not None:
        for name, array in call.input.items():
            array[...] = value[name]
        yield "send buffer", call(call.input)


def check_plain_calls(comm):
    """`comm.allreduce` on values that fit its quick way and on such as do not, in turn, over many trials of stores."""
    kinds = {
        "plain": lambda p: p,
        "other order": lambda p: dict(reversed(p.items())),
        "strided": lambda p: {name: apart(array) for name, array in p.items()},
        "read-only": lambda p: {name: frozen(array) for name, array in p.items()},
        "subclass": lambda p: {name: array.view(np.memmap) for name, array in p.items()},
        "one strided": lambda p: {"out": apart(p["out"]), "lse": p["lse"]},
    }
    for round_ in range(15):
        shape = [(9,), (3, 3), (9,)][round_ // 4 % 3]
        values = [partial(other, shape, dim=4 + round_ % 5 // 4) for other in range(size)]
        wanted = exact(values)
        for kind, made in kinds.items():
            for _ in range(3):
                result = comm.allreduce(made(values[rank]), LOGSUMEXP)
                assert_close(result, wanted, size, kind)


def frozen(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def check(comm):
    for shape in SHAPES:
        values = [partial(other, shape) for other in range(size)]
        mine, wanted = values[rank], exact(values)
        layout = LOGSUMEXP.layout({name: (array.shape, array.dtype) for name, array in mine.items()})
        for plan in every_plan(comm.topology, "allreduce", LOGSUMEXP, layout):
            call = comm.prepare("allreduce", like=mine, operator=LOGSUMEXP, plan=plan)
            assert isinstance(call.engines[0], CompiledEngine) and not call.engines[0].from_python
            for way, result in results_of(call, mine):
                what = f"{plan.algorithm} {shape} {way}, {len(set(comm.session.transport.hosts))} hosts"
                assert_close(result, wanted, size, what)
                bits = world.allgather(result["out"].tobytes() + result["lse"].tobytes())
                assert bits == bits[:1] * size, what
            call.free()
    check_plain_calls(comm)
    tensors = {name: torch.from_numpy(array) for name, array in mine.items()}
    assert_close({n: a.numpy() for n, a in comm.allreduce(tensors, LOGSUMEXP).items()}, wanted, size, "torch")


machine = switch(size)
with topocomm.Communicator.from_mpi(world, machine) as shared:
    check(shared)
for way in ("messages", "two levels"):
    with topocomm.Communicator.from_mpi(world, ways(size)[way]) as comm:
        check(comm)
if rank == 0:
    print(f"{size} ranks: all merges exact, bits equal")
