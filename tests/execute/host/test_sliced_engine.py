"""Engines that run a long payload slice by slice."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from tests.machines import switch
from tests.plans import every_plan
from topocomm import SUM
from topocomm.execute.host import engine_choice, sliced_engine
from topocomm.execute.host.call_engine import CallEngine, Span, Work
from topocomm.execute.host.sliced_engine import SlicedEngine
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.execute.transports.shared_memory import SharedMemory


class Slice(CallEngine):
    """An engine that is through at once, or after it was advanced."""

    def __init__(self, *, at_once):
        self.memory = np.zeros(0, np.uint8)
        self.takes_value = self.gives_result = True
        self.at_once, self.given = at_once, []

    def begin(self, fields, target, apart):
        self.given.append((fields["value"], target["value"], apart))
        return self.at_once

    def advance(self, timeout_s):
        return True

    def awaited(self):
        raise AssertionError("nobody asks")

    def free(self):
        pass


def through(engine, x, out):
    engine.begin({"value": x}, {"value": out}, True) or engine.advance(0.0)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_value_with_gaps_is_packed_once_for_all_slices(at_once):
    slices = [Slice(at_once=at_once) for _ in range(4)]
    x, out = np.arange(12.0)[::2], np.zeros(6)
    through(SlicedEngine(slices), x, out)
    assert [len(one.given) for one in slices] == [1] * 4
    values, targets, apart = zip(*(one.given[0] for one in slices), strict=True)
    assert all(value is values[0] for value in values) and values[0].flags.c_contiguous
    np.testing.assert_array_equal(values[0], x)
    assert all(target is out for target in targets) and apart == (True,) * 4


@pytest.mark.parametrize("at_once", [True, False])
def test_the_callers_arrays_are_let_go(at_once):
    slices = [Slice(at_once=at_once) for _ in range(2)]
    engine, x, out = SlicedEngine(slices), np.zeros(3), np.zeros(3)
    kept = [weakref.ref(x), weakref.ref(out)]
    gc.disable()
    try:
        through(engine, x, out)
        for one in slices:
            one.given.clear()
        del x, out
        assert [array() for array in kept] == [None, None]
    finally:
        gc.enable()


class Caller:
    """A rank that makes reduce after reduce in slices."""

    def __init__(self, engine, values, root):
        self.engine, self.values, self.root = engine, values, root
        self.begun, self.results = 0, []

    def move(self):
        """Go as far as it goes without waiting."""
        while len(self.results) < len(self.values):
            if self.begun == len(self.results):
                out = {"value": np.zeros_like(self.values[self.begun])} if self.root else None
                self.out, x = out, {"value": self.values[self.begun]}
                self.begun += 1
                through = self.engine.begin(x, out, True)
            else:
                through = self.engine.advance(0.0)
            if not through:
                return
            self.results.append(self.out and self.out["value"])


def test_ranks_that_are_ahead_leave_what_others_still_read(monkeypatch):
    """Slices of unequal length in the same memory: what is written is where nobody reads, however slow the root is."""
    ranks, rows, calls = 4, 33, 6
    monkeypatch.setattr(sliced_engine, "SLICE_BYTES", 60)  # five would do
    layout = SUM.layout({"value": ((rows,), np.float64)})
    region = aligned_buffer(1 << 16)
    monkeypatch.setattr(
        engine_choice,
        "open_shared",
        lambda arena, waiting, size_bytes, hosts: SharedMemory(region, waiting.transport.rank, range(ranks), cores=2),
    )
    for plan in every_plan(switch(ranks), "reduce", SUM, layout):
        region[...] = 0
        callers = []
        for rank in range(ranks):
            work = Work(plan, plan.schedule, SUM, layout, 16, rank, Span(0, (rows,)), Span(0, (rows,)))
            transport = SimpleNamespace(rank=rank, size=ranks, hosts=(0,) * ranks)
            (engine,) = engine_choice.make_engines(work, SimpleNamespace(transport=transport, trace=None))
            assert len(engine.engines) == 4  # an even number: every slice has the same memory in every call
            values = [np.full(rows, float((rank + 1) * 10**call)) for call in range(calls)]
            callers.append(Caller(engine, values, rank == 0))
        root, *others = callers
        for _ in range(8 * calls):
            for one in others * ranks:
                one.move()
            root.move()
        for call, result in enumerate(root.results):
            np.testing.assert_array_equal(result, np.full(rows, 10.0 * 10**call), f"{plan.algorithm}, call {call}")
        assert [len(one.results) for one in callers] == [calls] * ranks
