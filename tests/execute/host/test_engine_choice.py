"""Which engines a prepared call gets."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.machines import switch
from tests.plans import every_plan
from topocomm import SUM, Field, Operator, run_local
from topocomm.execute.host import engine_choice
from topocomm.execute.host.call_engine import Span, Work
from topocomm.execute.host.compiled_engine import CompiledEngine
from topocomm.execute.host.credits import Credits
from topocomm.execute.host.sliced_engine import SLICE_BYTES, SlicedEngine
from topocomm.execute.host.staged_engine import StagedEngine, aligned_buffer
from topocomm.execute.transports.shared_memory import SharedMemory
from topocomm.native._native import MOST_FIELDS

RANKS = 2
WIDE = Operator(
    "wide",
    tuple(Field(f"field{index}") for index in range(MOST_FIELDS + 1)),
    lambda left, right: {name: left[name] + right[name] for name in left},
    {f"field{index}": 0 for index in range(MOST_FIELDS + 1)},
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
        return SimpleNamespace(free=lambda: None, sends=sends, receives=receives, requests=lambda: None)


def engines(monkeypatch, operator, rows, *, hosts=(0, 0), shared=True):
    """The engines of an allreduce, and the batches of messages that were made for them."""
    region = aligned_buffer(8 * (rows * 5 * 8 + 4096))

    def open_shared(arena, waiting, size_bytes, hosts):
        return SharedMemory(region, 0, range(RANKS), cores=2) if shared else None

    monkeypatch.setattr(engine_choice, "open_shared", open_shared)
    work = allreduce_work(rows, RANKS, operator)
    transport = Transport(hosts)
    return engine_choice.make_engines(work, SimpleNamespace(transport=transport, trace=None)), transport.batches


def allreduce_work(rows, ranks, operator=SUM):
    """The work of rank 0 in an allreduce."""
    layout = operator.layout({f.name: ((rows,), np.float32) for f in operator.fields})
    plan = every_plan(switch(ranks), "allreduce", operator, layout)[0]
    return Work(plan, plan.schedule, operator, layout, 16, 0, Span(0, (rows,)), Span(0, (rows,)))


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


@pytest.mark.parametrize(("hosts", "slices"), [((0, 0, 0, 0), 2), ((0, 0, 1, 1), 0)])
def test_slices_are_long_where_the_network_would_rest_between_them(monkeypatch, hosts, slices):
    work = allreduce_work(3 * SLICE_BYTES // 4, len(hosts))
    region = aligned_buffer(8 * 3 * SLICE_BYTES * 8)
    shared = [rank for rank, host in enumerate(hosts) if host == 0]
    monkeypatch.setattr(engine_choice, "open_shared", lambda *_: SharedMemory(region, 0, shared, cores=2))
    monkeypatch.setattr(engine_choice, "_single_copy_engines", lambda work, waiting: None)
    transport = Transport(hosts)
    transport.size = len(hosts)
    engine, *_ = engine_choice.make_engines(work, SimpleNamespace(transport=transport, trace=None))
    assert len(getattr(engine, "engines", ())) == slices


def test_values_of_many_fields_go_stage_by_stage_in_shared_memory(monkeypatch):
    both, messages = engines(monkeypatch, WIDE, 10)
    assert [type(engine) for engine in both] == [StagedEngine] * 2 and messages == 0
    assert engine_choice.shared_by(both[0]) is not None


@pytest.mark.parametrize(("hosts", "shared"), [((0, 1), True), ((0, 0), False)], ids=["two hosts", "no memory"])
def test_otherwise_ranks_exchange_messages(monkeypatch, hosts, shared):
    (engine, again), messages = engines(monkeypatch, SUM, 100, hosts=hosts, shared=shared)
    assert isinstance(engine, CompiledEngine) and engine is again and messages > 0
    assert engine_choice.shared_by(engine).alone


def test_ranks_without_compiled_code_exchange_messages_stage_by_stage(monkeypatch):
    monkeypatch.setattr(engine_choice, "kernels_available", lambda: False)
    (engine,), messages = engines(monkeypatch, SUM, 100, hosts=(0, 1))
    assert isinstance(engine, StagedEngine) and messages > 0
    assert engine_choice.shared_by(engine) is None


@pytest.mark.parametrize(
    ("collective", "rows", "expected"),
    [
        ("broadcast", None, {0: ({1, 2}, set()), 1: (set(), {0}), 2: (set(), {0})}),
        ("alltoall", [1, 1, 1], {}),  # all send to all
        ("alltoall", "next", {rank: ({(rank + 1) % 3}, {(rank - 1) % 3}) for rank in range(3)}),
    ],
)
def test_ranks_that_send_to_each_other_need_no_credits(monkeypatch, collective, rows, expected):
    made = {}

    def noted(transport, receivers, senders, tag):
        made[transport.rank] = set(receivers), set(senders)
        return Credits(transport, receivers, senders, tag)

    monkeypatch.setattr(engine_choice, "Credits", noted)

    def body(comm):
        own = [3 * (rank == (comm.rank + 1) % 3) for rank in range(3)] if rows == "next" else rows
        call = comm.prepare(collective, like=np.zeros(3), rows=own)
        for _ in range(4):
            call(np.zeros(3))

    run_local(body, ranks=3, topology=switch(3))
    assert made == expected
