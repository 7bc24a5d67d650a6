"""Traced calls give the same bits as others, and note every message of the plan."""

import numpy as np
import pytest

import topocomm
from topocomm.execute.host.staged_engine import StagedEngine
from topocomm.execute.host.traced_engine import TracedEngine


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "scan"])
def test_traced_calls_give_the_same_bits(tmp_path, collective, ranks):
    def work(comm):
        x = np.random.default_rng(comm.rank).normal(size=(64, 3)).astype(np.float32)
        own = {} if collective in ("broadcast", "allgather") else {"operator": topocomm.SUM}
        plain = comm.prepare(collective, like=x, **own)
        expected = plain(x)
        with comm.trace(tmp_path / "x.json"):
            call = comm.prepare(collective, like=x, plan=plain.plan, **own)
            assert all(isinstance(engine, TracedEngine) for engine in call.engines)
            results = [call(x) for _ in range(3)]
        for result in results:
            assert (result is None and expected is None) or result.tobytes() == expected.tobytes()
        after = comm.prepare(collective, like=x, **own)
        assert not any(isinstance(engine, TracedEngine) for engine in after.engines)

    topocomm.run_local(work, ranks=ranks)


def test_rounds_tell_the_messages_of_the_plan(tmp_path):
    def work(comm):
        x = np.zeros(48, np.float32)
        with comm.trace(tmp_path / "x.json"):
            call = comm.prepare("allreduce", like=x, operator=topocomm.SUM)
            call(x)
            events = list(comm.session.waiting.trace._events)
        moves = call.plan.schedule.transfers_of(comm.rank)
        for way, end, peer in (("sends", "src", "dst"), ("receives", "dst", "src")):
            told = sorted(m["rank"] for event in events if event.row == "rounds" for m in event.facts[way])
            messages = {(m.round, getattr(m, peer), m.path) for m in moves if getattr(m, end) == comm.rank}
            assert told == sorted(peer for _, peer, _ in messages)
        assert issubclass(TracedEngine, StagedEngine)

    topocomm.run_local(work, ranks=4)
