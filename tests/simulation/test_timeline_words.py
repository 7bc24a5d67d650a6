"""Timelines in words and as documents."""

import json

import pytest

from tests.machines import switch
from topocomm import catalog, plan
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.simulated_work import WorkBuilder
from topocomm.simulation import of_plan
from topocomm.simulation.libraries import work_of
from topocomm.simulation.timeline_words import WIDTH, busiest_links, timeline_document, timeline_text

MEGABYTE = 10**6


def text(timeline):
    return " ".join(" ".join(timeline_text(timeline)).split())


def test_a_nic_is_named_with_its_host_and_what_it_carried():
    """Four messages at once over one NIC."""
    topology = catalog("dgx-h100", hosts=2)
    builder = WorkBuilder(topology.endpoints)
    builder.send(3, [11, 11, 11, 11], MEGABYTE, round_=2, label="flat")
    said = text(simulate(builder.build(), topology))
    assert "NIC3 of h0, h0/NIC3 -> rail3 (50 GB/s) carried 4 messages in round 2" in said
    assert "round 2: h0/GPU3 -> h1/GPU3, 1000000 B, 85.00 us" in said
    assert "of it bytes: network 80.00 us (94%), latency 5.00 us (6%)" in said
    assert "94.1% 100.0% 0.004 4 h0/NIC3 -> rail3" in said


def test_messages_that_take_turns_are_one_line():
    topology = switch(5)
    builder = WorkBuilder(topology.endpoints)
    builder.send(0, [1, 2, 3, 4], MEGABYTE, label="broadcast")
    said = text(simulate(builder.build(), topology, ports=1))
    assert "round 0: 4 messages of 1000000 B in turn out of GPU0, 9.49 us" in said
    assert "GPU0 -> switch (450 GB/s) carried 4 messages in round 0" in said


def test_computing_limits_and_starts_are_named():
    topology = switch(2)
    builder = WorkBuilder(topology.endpoints)
    first = builder.compute(0, 3.0, label="attention")
    ready = builder.join(0, after=first, before_us=6.6)
    builder.send(0, 1, MEGABYTE, after=ready, most_gb_per_s=10.0, label="merge")
    said = text(simulate(builder.build(), topology))
    assert "0.00 attention: GPU0 computes, 3.00 us 3.00 round 0: GPU0 starts, 6.60 us" in said
    assert "held by a limit of its own" in said


def test_long_paths_are_cut_in_the_middle_and_lines_fit_a_terminal():
    topology = catalog("dgx-h100", hosts=4)
    for work in (work_of("ring", topology, "allreduce", 1 << 20), of_plan(plan(topology, payload_bytes=1 << 20))):
        lines = timeline_text(simulate(work, topology, ports=1))
        assert max(map(len, lines)) <= WIDTH
    ring = timeline_text(simulate(work_of("ring", topology, "allreduce", 1 << 20), topology))
    assert any("... 50 more tasks, 69.54 us" in line for line in ring)


def test_nothing_to_do():
    assert timeline_text(simulate(WorkBuilder(("GPU0",)).build(), switch(2))) == ["nothing to do: 0 us"]


def test_documents_are_plain_json_that_adds_up():
    topology = catalog("dgx-h100", hosts=2)
    timeline = simulate(of_plan(plan(topology, payload_bytes=1 << 20)), topology, ports=1)
    document = json.loads(json.dumps(timeline_document(timeline)))
    assert document["total_us"] == pytest.approx(timeline.total_us)
    assert sum(step["end_us"] - step["start_us"] for step in document["critical_path"]) == pytest.approx(
        timeline.total_us
    )
    assert sum(document["causes_us"].values()) == pytest.approx(timeline.total_us)
    assert sum(link["bytes"] for link in document["links"]) == timeline.link_bytes.sum()
    assert document["messages"] == timeline.work.messages
    assert {step["kind"] for step in document["critical_path"]} <= {"message", "join", "compute"}


def test_busiest_links_come_first_and_idle_ones_not_at_all():
    topology = switch(3)
    builder = WorkBuilder(topology.endpoints)
    builder.send(0, [1, 2], [MEGABYTE, 3 * MEGABYTE])
    timeline = simulate(builder.build(), topology)
    edges = [timeline.paths.edges[link] for link in busiest_links(timeline)]
    assert edges == [("GPU0", "switch"), ("switch", "GPU2"), ("switch", "GPU1")]
