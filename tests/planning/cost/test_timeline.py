"""What links carried, worked out by hand."""

import pytest

from tests.machines import switch
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.simulated_work import WorkBuilder
from topocomm.simulation.libraries import work_of

MEGABYTE = 10**6


def test_links_of_a_ring_carry_all_but_one_chunk_twice():
    topology = switch(4)
    timeline = simulate(work_of("ring", topology, "allreduce", 4 * MEGABYTE), topology)
    assert timeline.link_bytes.tolist() == [6 * MEGABYTE] * 8
    assert timeline.link_messages.tolist() == [6] * 8
    flowing_us = 6 * MEGABYTE / 450e3
    assert timeline.link_busy_us.tolist() == pytest.approx([flowing_us] * 8)
    assert timeline.link_use.tolist() == pytest.approx([flowing_us / (flowing_us + 6 * 0.6)] * 8)
    assert timeline.events_per_s == pytest.approx(timeline.events / timeline.wall_s)


def test_time_that_two_messages_share_is_counted_once():
    """1 MB from 0 us on, 1 MB from 1 us on over one link: busy until both have passed; a message at 100 us apart."""
    topology = switch(3)
    builder = WorkBuilder(topology.endpoints)
    builder.send(0, [1, 2, 2], MEGABYTE, before_us=[0.0, 1.0, 100.0])
    timeline = simulate(builder.build(), topology)
    up = timeline.paths.edges.index(("GPU0", "switch"))
    assert timeline.link_busy_us[up] == pytest.approx(3 * MEGABYTE / 450e3)
    assert timeline.link_busy_us[timeline.paths.edges.index(("GPU1", "switch"))] == 0.0
