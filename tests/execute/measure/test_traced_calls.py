"""`Communicator.trace`: one file of all ranks, in the format that Perfetto reads, that shows the calls made inside."""

import numpy as np
import pytest

import topocomm
from tests.simulation.test_trace_events import check_format
from topocomm import TopocommError


def traced(path, ranks=3):
    def work(comm):
        x = np.arange(24, dtype=np.float32)
        before = comm.allreduce(x, topocomm.SUM)
        with comm.trace(path):
            for _ in range(4):
                inside = comm.allreduce(x, topocomm.SUM)
            comm.broadcast(x, root=1)
        after = comm.allreduce(x, topocomm.SUM)
        assert before.tobytes() == inside.tobytes() == after.tobytes()
        return len(comm._calls)

    return topocomm.run_local(work, ranks=ranks)


def test_a_process_a_rank_with_its_calls_their_rounds_and_folds(tmp_path):
    kept = traced(tmp_path / "calls.json")
    assert kept == [1] * 3  # what was prepared for the trace is gone
    events, processes, threads = check_format((tmp_path / "calls.json").read_text())
    assert [name.split(" on ")[0] for name in processes.values()] == ["rank 0", "rank 1", "rank 2"]
    for pid in processes:
        own = [event for event in events if event["ph"] == "X" and event["pid"] == pid]
        rows = {threads[pid, event["tid"]] for event in own}
        assert {"calls", "rounds"} <= rows <= {"calls", "rounds", "folds"}
        calls = [event for event in own if event["cat"] == "calls"]
        assert [event["name"] for event in calls] == ["allreduce sum"] * 4 + ["broadcast"]
        assert calls[0]["args"]["bytes"] == 96
        for event in own:  # all is inside a call
            assert any(c["ts"] <= event["ts"] and event["ts"] + event["dur"] <= c["ts"] + c["dur"] + 1 for c in calls)


def test_no_rank_is_through_with_an_allreduce_before_all_have_begun_it(tmp_path):
    traced(tmp_path / "calls.json")
    events, _, _ = check_format((tmp_path / "calls.json").read_text())
    calls = [event for event in events if event["ph"] == "X" and event["name"] == "allreduce sum"]
    for number in range(4):
        same = [[e for e in calls if e["pid"] == pid][number] for pid in (1, 2, 3)]
        assert max(event["ts"] for event in same) < min(event["ts"] + event["dur"] for event in same)


def test_a_trace_inside_a_trace_is_refused(tmp_path):
    def work(comm):
        with comm.trace(tmp_path / "a.json"), pytest.raises(TopocommError, match="traced already; leave that trace"):
            comm.trace(tmp_path / "b.json").__enter__()

    topocomm.run_local(work, ranks=2)
    assert (tmp_path / "a.json").exists() and not (tmp_path / "b.json").exists()


def test_an_error_inside_ends_the_trace_and_writes_nothing(tmp_path):
    def work(comm):
        with pytest.raises(ValueError, match="mine"), comm.trace(tmp_path / "a.json"):
            raise ValueError("mine")
        assert comm.session.waiting.trace is None
        return comm.allreduce(np.ones(3, np.float32), topocomm.SUM)[0]

    assert topocomm.run_local(work, ranks=2) == [2.0, 2.0]
    assert not (tmp_path / "a.json").exists()
