"""Which engines a prepared call gets."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.machines import switch
from tests.plans import every_plan
from topocomm import SUM, Field, Operator
from topocomm.execute.host import engine_choice
from topocomm.execute.host.call_engine import Span, Work
from topocomm.execute.host.compiled_engine import CompiledEngine
from topocomm.execute.host.sliced_engine import SLICE_BYTES, SlicedEngine
from topocomm.execute.host.staged_engine import StagedEngine, aligned_buffer
from topocomm.execute.transports.shared_memory import SharedMemory

RANKS = 2
WIDE = Operator(
    "wide",
    tuple(Field(name) for name in "abcde"),
    lambda left, right: {name: left[name] + right[name] for name in left},
    dict.fromkeys("abcde", 0),
    commutative=True,
)
"""More fields than compiled code takes."""


class Transport:
    """Ranks on one host, whose messages are counted and never move."""

    rank, size = 0, RANKS

    def __init__(self, hosts):
        self.hosts, self.batches = hosts, 0

    def batch(self, buffer, sends, receives, tag):
        self.batches += 1
        return SimpleNamespace(free=lambda: None)


def engines(monkeypatch, operator, rows, *, hosts=(0, 0), shared=True):
    """The engines of an allreduce, and the batches of messages that were made for them."""
    region = aligned_buffer(8 * (rows * 5 * 8 + 4096))

    def open_shared(arena, waiting, size_bytes, hosts):
        return SharedMemory(region, 0, range(RANKS), cores=2) if shared else None

    monkeypatch.setattr(engine_choice, "open_shared", open_shared)
    layout = operator.layout({f.name: ((rows,), np.float32) for f in operator.fields})
    plan = every_plan(switch(RANKS), "allreduce", operator, layout)[0]
    work = Work(plan, plan.schedule, operator, layout, 16, 0, Span(0, (rows,)), Span(0, (rows,)))
    transport = Transport(hosts)
    return engine_choice.make_engines(work, SimpleNamespace(transport=transport)), transport.batches


@pytest.mark.parametrize("operator", [SUM, replace(SUM, kernel=None)], ids=["compiled", "in NumPy"])
def test_ranks_of_one_host_share_two_memories_used_in_turn(monkeypatch, operator):
    both, messages = engines(monkeypatch, operator, 100)
    assert [type(engine) for engine in both] == [CompiledEngine] * 2 and messages == 0
    assert both[0].memory.ctypes.data != both[1].memory.ctypes.data
    assert all(engine_choice.shared_by(engine) is both[0].shared for engine in both)
    assert [engine.in_python for engine in both] == [operator is not SUM] * 2


def test_long_payloads_go_slice_by_slice(monkeypatch):
    (engine,), messages = engines(monkeypatch, SUM, 3 * SLICE_BYTES // 4)
    assert isinstance(engine, SlicedEngine) and messages == 0
    assert engine_choice.shared_by(engine) is engine.engines[0].shared


def test_values_of_many_fields_go_stage_by_stage_in_shared_memory(monkeypatch):
    both, messages = engines(monkeypatch, WIDE, 10)
    assert [type(engine) for engine in both] == [StagedEngine] * 2 and messages == 0
    assert engine_choice.shared_by(both[0]) is not None


@pytest.mark.parametrize(("hosts", "shared"), [((0, 1), True), ((0, 0), False)], ids=["two hosts", "no memory"])
def test_otherwise_ranks_exchange_messages(monkeypatch, hosts, shared):
    (engine,), messages = engines(monkeypatch, SUM, 100, hosts=hosts, shared=shared)
    assert isinstance(engine, StagedEngine) and messages > 0
    assert engine_choice.shared_by(engine) is None
