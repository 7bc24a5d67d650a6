"""What ranks that are processes do with the peer kernel; see `peer_ranks`."""

from tests.interpreted import interpreted  # isort: skip first, since it imports triton

import random
import time

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder

from attention import LOGSUMEXP
from tests.execute.peer_memories import EPOCH, FINISHED_AT, flags, peer_memory, words
from tests.execute.peer_work import cut, expected, work_of
from tests.machines import switch
from tests.operators.packed import any_value, assert_same_bits, layout_of
from tests.plans import every_plan
from topocomm import DeadlineError
from topocomm.execute.calls.binding import carrier
from topocomm.execute.device.peer.peer_engine import PeerEngine, PeerPlan
from topocomm.operators.builtin import READY
from topocomm.operators.tensors import as_array, torch_dtype

OPERATORS = {operator.name: operator for operator in (*READY, LOGSUMEXP)}
torch.set_num_threads(1)
assert interpreted


def _polite(create):
    """Give the core away at every look at a flag: ranks may be more than cores."""

    def made(*told):
        time.sleep(0.0002)
        return create(*told)

    return made


InterpreterBuilder.create_atomic_rmw = _polite(InterpreterBuilder.create_atomic_rmw)


def meet(shared, rank, size, number):
    """A barrier of all ranks, in words that nothing else uses."""
    at = 8
    words(shared, rank)[at] = number
    until_s = time.monotonic() + 60
    while any(words(shared, other)[at] < number for other in range(size)):
        assert time.monotonic() < until_s
        time.sleep(0.0005)


def setting(name, dtype, rows, dims=None):
    """An operator with a layout; "copy" moves rows of several fields."""
    if name == "copy":
        like = {"a": np.zeros((rows, 3), "f4"), "b": np.zeros((rows,), "i2")}
        operator = carrier(like, by_rows="allgather")
        return operator, operator.layout({key: (part.shape, part.dtype) for key, part in like.items()})
    operator = OPERATORS[name]
    if name == LOGSUMEXP.name:
        shapes = {"out": ((rows, dims or 17), np.float32), "lse": ((rows,), np.float32)}
        return operator, operator.layout(shapes)
    import ml_dtypes

    item = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return operator, layout_of(operator, item, (rows,))


def plan_of(operator, layout, size, collective, algorithm=None, root=0, parts=None):
    plans = every_plan(switch(size), collective, operator, layout, root=root, parts=parts)
    return next(plan for plan in plans if algorithm in (None, plan.algorithm))


def values_of(operator, layout, size, seed):
    rng = np.random.default_rng(seed)
    if operator.name == LOGSUMEXP.name:
        made = []
        for _ in range(size):
            value = {f.name: rng.normal(0, 9, (layout.rows, *f.row_shape)).astype(f.dtype) for f in layout.fields}
            empty = rng.random(layout.rows) < 0.25
            value["lse"][empty], value["out"][empty] = -np.inf, np.nan
            made.append(value)
        return made
    return [any_value(rng, operator, layout) for _ in range(size)]


def tensors(device, layout, value):
    """The fields of a value as tensors."""
    made = {}
    for f in layout.fields:
        array = np.ascontiguousarray(value[f.name])
        memory = device.memory(max(array.nbytes, 1))
        memory[: array.nbytes] = torch.from_numpy(array.reshape(-1).view(np.uint8))
        made[f.name] = memory[: array.nbytes].view(torch_dtype(f.dtype)).view(array.shape)
    return made


class Caller:
    """One rank's engine of one plan, and what its calls must give."""

    def __init__(self, rank, device, peer, plan, operator, layout):
        self.work = work_of(plan, operator, layout, rank)
        told = PeerPlan(self.work, peer, "cpu")
        assert not told.refusal, told.refusal
        self.rank, self.device, self.plan, self.operator, self.layout = rank, device, plan, operator, layout
        self.engine = PeerEngine(told, device, peer, None)

    def call(self, values, *, in_place=False, own=False):
        """Make a call with all ranks' values and compare its bits."""
        given = tensors(self.device, self.layout, cut(values[self.rank], self.work.value, self.layout))
        shapes = {f.name: (*self.work.result.leading, *f.row_shape) for f in self.layout.fields}
        target = given
        if not in_place:
            target = {
                f.name: self.device.memory(max(1, int(np.prod(shapes[f.name])) * f.dtype.itemsize))[
                    : int(np.prod(shapes[f.name])) * f.dtype.itemsize
                ]
                .view(torch_dtype(f.dtype))
                .view(shapes[f.name])
                for f in self.layout.fields
            }
        if own and self.engine.views is not None:
            for name, view in self.engine.views.items():
                view.copy_(given[name])
            given = None
        takes, gives = self.engine.takes_value, self.engine.gives_result
        with np.errstate(all="ignore"):
            self.engine.begin(given if takes else None, target if gives else None, True)
        self.engine.mark()
        assert self.engine.advance(0.0)
        return target if gives else None

    def check(self, values, target):
        want = expected(self.plan, self.operator, self.layout, values)[self.rank]
        assert (target is None) == (want is None)
        if target is not None:
            assert_same_bits({name: as_array(tensor) for name, tensor in target.items()}, want)


def collective(rank, size, shared, *, name, dtype="f4", rows=5, dims=None, kind="allreduce", algorithm=None, root=0,
               parts=None, calls=3, programs=3):  # fmt: skip
    """Some calls of one plan, compared bit by bit."""
    device, peer = peer_memory(shared, rank, size, programs=programs)
    meet(shared, rank, size, 1)
    operator, layout = setting(name, dtype, rows, dims)
    plan = plan_of(operator, layout, size, kind, algorithm, root, parts)
    caller = Caller(rank, device, peer, plan, operator, layout)
    for number in range(calls):
        values = values_of(operator, layout, size, number)
        alike = kind in ("allreduce", "scan", "broadcast", "reduce") and caller.engine.takes_value
        caller.check(values, caller.call(values, in_place=alike and number % 3 == 1, own=number % 3 == 2))
    return int(words(shared, rank)[EPOCH])


KINDS = (
    ("allreduce", "sum", 300),
    ("broadcast", "copy", 40),
    ("reduce", "argmax", 260),
    ("scan", "welford", 3),
    ("allreduce", "affine", 7),
)


def epochs(rank, size, shared, *, calls, seed, first=0, most_s=0.004):
    """Calls of several kinds in a random order, the same on all ranks, with random pauses that are not."""
    device, peer = peer_memory(shared, rank, size, programs=2)
    words(shared, rank)[EPOCH] = first
    words(shared, rank)[FINISHED_AT : FINISHED_AT + size] = first
    meet(shared, rank, size, 1)
    made = []
    for kind, name, rows in (*KINDS, ("allgather", "copy", 4 * size)):
        operator, layout = setting(name, "f4", rows)
        parts = [4] * size if kind == "allgather" else None
        plan = plan_of(operator, layout, size, kind, root=size - 1 if kind == "reduce" else 0, parts=parts)
        sets = [values_of(operator, layout, size, seed + turn) for turn in range(3)]
        made.append((Caller(rank, device, peer, plan, operator, layout), sets))
    order, pauses = random.Random(seed), random.Random(f"{seed} {rank}")
    for _ in range(calls):
        which, turn = order.randrange(len(made) + 3), order.randrange(3)
        caller, sets = made[which % len(made)]
        if pauses.random() < 0.2:
            time.sleep(pauses.random() * most_s)
        caller.check(sets[turn], caller.call(sets[turn]))
    assert words(shared, rank)[EPOCH] == first + calls


def late(rank, size, shared, *, absent, wait_s, kind="allreduce"):
    """A call that some ranks never make: what the others are told, and again."""
    device, peer = peer_memory(shared, rank, size, timeout_s=wait_s)
    meet(shared, rank, size, 1)
    operator, layout = setting("sum", "f4", 600)
    caller = Caller(rank, device, peer, plan_of(operator, layout, size, kind), operator, layout)
    values = values_of(operator, layout, size, 0)
    if rank in absent:
        time.sleep(0.1)
        return None
    told = []
    for _ in range(2):  # the second call does not wait again
        try:
            caller.call(values)
        except DeadlineError as error:
            told.append(str(error))
    assert flags(shared, absent[0]).max() <= 1, "a rank that has failed still writes to others"
    return told


def aborted(rank, size, shared):
    """The host ends a wait."""
    device, peer = peer_memory(shared, rank, size)
    meet(shared, rank, size, 1)
    if rank:
        return
    peer.abort()
    operator, layout = setting("sum", "f4", 3)
    caller = Caller(rank, device, peer, plan_of(operator, layout, size, "allreduce"), operator, layout)
    began_s = time.monotonic()
    caller.call(values_of(operator, layout, size, 0))
    assert time.monotonic() - began_s < 30


def ahead(rank, size, shared, *, calls, kind):
    """Ranks that only send run as fast as they may; those that receive are slow. Tells how far ahead they were."""
    device, peer = peer_memory(shared, rank, size)
    meet(shared, rank, size, 1)
    root = 0
    operator, layout = setting("copy" if kind == "broadcast" else "sum", "f4", 20)
    plan = plan_of(operator, layout, size, kind, "flat", root=root)
    caller = Caller(rank, device, peer, plan, operator, layout)
    fast = (rank == root) == (kind == "broadcast")
    most = 0
    for number in range(calls):
        values = values_of(operator, layout, size, number)
        if not fast:
            time.sleep(0.03)
        target = caller.call(values)
        if fast:
            others = [other for other in range(size) if (other == root) != (kind == "broadcast")]
            most = max(most, number + 1 - min(int(words(shared, other)[EPOCH]) for other in others))
        caller.check(values, target)
    return most
