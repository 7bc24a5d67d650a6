"""The bound over groups: known values, never above the best gossip."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import hosts
from topocomm import catalog
from topocomm.planning.bounds import bounds_of
from topocomm.planning.bounds.hierarchy_bound import Levels, least_time_us
from topocomm.planning.collectives import Collective
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.search.gossip_search import search_gossip


def found(machine, name="allreduce", ports=1, ranks=None, port_model="alpha", **fields):
    ends = ranks or machine.endpoints
    return bounds_of(
        Collective(name, len(ends), **fields), ends, PathFinder(machine), ports=ports, port_model=port_model
    )


@pytest.mark.parametrize(
    ("count", "bound", "best_known"),
    [(2, 6.8, 6.8), (4, 8.0, 8.0), (8, 8.6, 8.6), (16, 12.4, 13.6), (64, 14.8, 15.4), (2048, 25.4, 28.4)],
)
def test_hosts_of_eight(count, bound, best_known):
    """0.6 us inside and 5.0 us across; the values that a separate computation gave, and the best plans known."""
    levels = Levels(0.6, 5.0, members=8, most_own=8, total=8 * count, ports=1, group_ports=8)
    assert least_time_us(levels, (8, 8 * count - 8)) == pytest.approx(bound)
    assert bound >= 0.8 * best_known or count > 64
    if count <= 64:
        made = found(catalog("dgx-h100", hosts=count))
        assert made.alpha_us == pytest.approx(bound)
        assert made.latency_bound.witness["kind"] == "levels"


@examples(6)
@given(
    st.sampled_from([(2, 2), (3, 1), (2, 1, 1), (3, 2), (2, 2, 1)]),
    st.sampled_from([1.5, 2.0, 3.0, 5.0, 8.0]),
    st.integers(1, 2),
)
def test_what_is_imported_must_still_spread(sizes, across_us, ports):
    """The caps of groups and of what their members can have told each other, against a search for gossips."""
    group = np.repeat(range(len(sizes)), sizes)
    latency_us = np.where(group[:, None] == group, 1.0, across_us)
    np.fill_diagonal(latency_us, 0.0)
    ranks, most = len(group), max(sizes)
    gossip = search_gossip(latency_us, np.ones((ranks, ranks), bool), ports=ports, objective="latency")
    levels = Levels(1.0, across_us, most, most, ranks, ports, ports * most)
    for own in sizes:
        assert least_time_us(levels, (own, ranks - own)) <= gossip.time + 1e-9


def test_hosts_alone_are_tried_on_large_machines():
    made = found(hosts(40, 8))
    assert made.latency_bound.witness["kind"] == "levels"
    assert len(made.latency_bound.witness["groups"]) == 40
