"""Traces: the format, strictly, and that they show what was simulated."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from tests.machines import switch
from topocomm import PlanError, catalog, plan
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.simulated_work import WorkBuilder
from topocomm.simulation import of_plan, trace_events
from topocomm.simulation.trace_events import trace_json

COMMON = {"name": str, "ph": str, "ts": (int, float), "pid": int, "tid": int, "args": dict}
BY_PHASE = {"X": {"cat": str, "dur": (int, float)}, "M": {}}


def check_format(text):
    """The fields of complete events and metadata in "Trace Event Format", and no others; tracks without overlaps."""
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert set(document) == {"traceEvents", "displayTimeUnit"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    processes, threads, tracks = {}, {}, defaultdict(list)
    for event in document["traceEvents"]:
        fields = COMMON | BY_PHASE[event["ph"]]
        assert set(event) == set(fields)
        for field, kind in fields.items():
            assert isinstance(event[field], kind)
            assert not isinstance(event[field], bool)
        if event["ph"] == "M":
            names = {"process_name": processes, "thread_name": threads}[event["name"]]
            key = event["pid"] if names is processes else (event["pid"], event["tid"])
            assert key not in names
            assert set(event["args"]) == {"name"}
            names[key] = event["args"]["name"]
        else:
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert event["pid"] in processes
            assert (event["pid"], event["tid"]) in threads
            for kind in (int, round):  # Perfetto drops what overlaps once it has made nanoseconds of ts and dur
                start, length = (kind(event[field] * 1000) for field in ("ts", "dur"))
                tracks[kind, event["tid"]].append((start, start + length))
    assert len({tid for _, tid in threads}) == len(threads)
    for own in tracks.values():
        own.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(own))
    return document["traceEvents"], processes, threads


def test_every_message_is_on_its_sender_and_on_each_link():
    topology = catalog("dgx-h100", hosts=2)
    timeline = simulate(of_plan(plan(topology, payload_bytes=1 << 16)), topology, ports=1)
    events, processes, _ = check_format(trace_json(timeline))
    assert sorted(processes.values()) == ["h0", "h1", "links of h0", "links of h1", "links of network"]
    of_links = {pid for pid, name in processes.items() if name.startswith("links")}
    shown = [event for event in events if event["ph"] == "X"]
    assert sum(event["pid"] not in of_links for event in shown) == timeline.work.messages
    assert sum(event["pid"] in of_links for event in shown) == timeline.link_messages.sum()
    assert max(event["ts"] + event["dur"] for event in shown) == pytest.approx(timeline.total_us, abs=2e-3)


def test_messages_at_once_on_a_link_have_tracks_of_their_own():
    topology = switch(3)
    builder = WorkBuilder(topology.endpoints)
    builder.send(0, [1, 2], 10**6, label="flat")
    builder.compute(0, 2.0, label="attention")
    events, _, threads = check_format(trace_json(simulate(builder.build(), topology)))
    names = list(threads.values())
    assert {"GPU0 sends", "GPU0 sends (2)", "GPU0 computes", "GPU0 -> switch", "GPU0 -> switch (2)"} <= set(names)
    computing = [event for event in events if event.get("cat") == "computing"]
    assert [(event["name"], event["ts"], event["dur"]) for event in computing] == [
        ("attention round 0", 0.0002, 2.0002)
    ]
    assert computing[0]["args"] == {"task": "2 attention round 0 GPU0", "bytes": 0}


def test_a_trace_that_no_viewer_shows_is_refused(monkeypatch):
    monkeypatch.setattr(trace_events, "MOST_TASKS", 1)
    builder = WorkBuilder(("GPU0", "GPU1"))
    builder.send(0, [1, 1], 8)
    with pytest.raises(PlanError, match="trace of 2 tasks: a viewer shows 1 at most; simulate fewer ranks"):
        trace_json(simulate(builder.build(), switch(2)))


def test_nothing_is_a_trace_too():
    events, _, _ = check_format(trace_json(simulate(WorkBuilder(("GPU0",)).build(), switch(2))))
    assert events == []
