"""Spans as Trace Event JSON; `tests.simulation.test_trace_events` checks the format strictly."""

from tests.simulation.test_trace_events import check_format
from topocomm.planning.report.perfetto import Span, trace_text


def span(process, row, start_ns, end_ns):
    return Span(process, row, start_ns, end_ns, f"{start_ns}", "x", {"bytes": 7})


def test_spans_that_overlap_lie_on_tracks_of_their_own():
    spans = [span("a", "r", 0, 10), span("a", "r", 5, 20), span("a", "r", 10, 12), span("b", "r", 0, 3)]
    events, processes, threads = check_format(trace_text(spans))
    assert list(processes.values()) == ["a", "b"]
    assert sorted(threads.values()) == ["r", "r", "r (2)"]
    slices = [event for event in events if event["ph"] == "X"]
    tracks = {event["name"]: event["tid"] for event in slices if event["pid"] == 1}
    assert tracks["0"] == tracks["10"] != tracks["5"]
    assert all(event["args"] == {"bytes": 7} for event in slices)


def test_times_are_whole_nanoseconds_to_a_viewer():
    events, *_ = check_format(trace_text([span("a", "r", 1, 4), span("a", "r", 4, 1_000_000_007)]))
    times = [(int(e["ts"] * 1000), int(e["dur"] * 1000)) for e in events if e["ph"] == "X"]
    assert times == [(1, 3), (4, 1_000_000_003)]


def test_without_spans_it_is_a_trace_too():
    assert check_format(trace_text([])) == ([], {}, {})
