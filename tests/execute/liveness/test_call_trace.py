from topocomm.execute.liveness.call_trace import MOST_EVENTS, CallTrace, decode, now_ns


def test_events_reach_another_rank_as_they_are():
    trace, before_ns = CallTrace(), now_ns()
    trace.add("calls", "allreduce sum", before_ns, {"bytes": 16, "sends": [{"rank": 1, "bytes": 8}]})
    (event,) = decode(trace.encode())
    assert (event.row, event.name, event.start_ns) == ("calls", "allreduce sum", before_ns)
    assert before_ns <= event.end_ns <= now_ns()
    assert event.facts == {"bytes": 16, "sends": [{"rank": 1, "bytes": 8}]}


def test_the_last_events_are_kept():
    trace = CallTrace()
    for number in range(MOST_EVENTS + 2):
        trace.add("calls", str(number), 0, {})
    kept = decode(trace.encode())
    assert len(kept) == MOST_EVENTS
    assert kept[0].name == "2"
