"""Engines that run stage by stage."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.execute.host.test_engine_choice import WIDE
from tests.machines import switch
from tests.plans import every_plan
from topocomm.execute.host import engine_choice
from topocomm.execute.host.call_engine import Span, Work
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.execute.transports.shared_memory import SharedMemory
from topocomm.operators.layout import ALIGNMENT_BYTES

RANKS, ROWS = 3, 7


def value(rank, call):
    return {f.name: np.full(ROWS, 10.0**rank * (call + 1) + index) for index, f in enumerate(WIDE.fields)}


@pytest.mark.parametrize("collective", ["allreduce", "reduce"])
def test_ranks_that_share_memory_stage_by_stage(monkeypatch, collective):
    """Ranks move in turn, each as far as it goes without waiting; who waits names those that are behind."""
    layout = WIDE.layout({f.name: ((ROWS,), np.float64) for f in WIDE.fields})
    region = aligned_buffer(1 << 15)
    monkeypatch.setattr(
        engine_choice,
        "open_shared",
        lambda arena, waiting, size_bytes, hosts: SharedMemory(region, waiting.transport.rank, range(RANKS), cores=2),
    )
    for plan in every_plan(switch(RANKS), collective, WIDE, layout):
        region[...] = 0
        pairs = []
        for rank in range(RANKS):
            work = Work(plan, plan.schedule, WIDE, layout, 16, rank, Span(0, (ROWS,)), Span(0, (ROWS,)))
            transport = SimpleNamespace(rank=rank, size=RANKS, hosts=(0,) * RANKS)
            pairs.append(engine_choice.make_engines(work, SimpleNamespace(transport=transport, trace=None)))
        for call in range(5):
            engines = [pair[(pair[0].shared.epoch + 1) & 1] for pair in pairs]
            gives = [collective == "allreduce" or rank == plan.collective.root for rank in range(RANKS)]
            targets = [{f.name: np.zeros(ROWS) for f in WIDE.fields} if some else None for some in gives]
            through = [engines[rank].begin(value(rank, call), targets[rank], True) for rank in range(RANKS)]
            for engine, done in zip(engines, through, strict=True):
                assert done or {message.peer for message in engine.awaited().receives} <= set(range(RANKS))
            for _ in range(4 * RANKS):
                through = [engine.advance(0.0) for engine in engines]
            assert all(through), plan.algorithm
            for target in filter(None, targets):
                for index, f in enumerate(WIDE.fields):
                    total = sum(10.0**rank * (call + 1) + index for rank in range(RANKS))
                    np.testing.assert_array_equal(target[f.name], np.full(ROWS, total), plan.algorithm)


@pytest.mark.parametrize("size_bytes", [1, 64, 1000])
def test_buffers_start_on_a_cache_line_and_are_zero(size_bytes):
    buffer = aligned_buffer(size_bytes)
    assert buffer.size == size_bytes and buffer.ctypes.data % ALIGNMENT_BYTES == 0 and not buffer.any()
