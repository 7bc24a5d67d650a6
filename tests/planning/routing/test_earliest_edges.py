"""Every chunk reaches everybody once, ports have one message a round, and what is predicted is what is simulated."""

from dataclasses import replace

import numpy as np
import pytest

from tests.machines import line, switch
from topocomm import catalog
from topocomm.planning.bounds.demand import demand_of, farthest
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.collectives import collective_of
from topocomm.planning.routing.earliest_edges import MOST_EDGE_MEMBERS, earliest_edges, pairs_differ
from topocomm.planning.routing.paths import PathFinder


def order_of(machine, owners, chunk_bytes=8192.0):
    return earliest_edges(machine.endpoints, PathFinder(machine), owners, chunk_bytes)


@pytest.mark.parametrize("owners", [[0] * 5, [3], range(8), [1, 1, 6]])
@pytest.mark.parametrize("system", ["dgx-1-v100", "mi250x", "mi100-8", "rtx4090-pcie-8"])
def test_every_chunk_comes_to_all_once_from_one_who_has_it(system, owners):
    order = order_of(catalog(system), owners)
    has = dict.fromkeys(enumerate(owners), -1)
    for round_, chunk, src, dst in order.messages.tolist():
        assert has[chunk, src] < round_ < order.rounds and (chunk, dst) not in has
        has[chunk, dst] = round_
    assert len(has) == 8 * len(owners)
    for end in (2, 3):
        ports = order.messages[:, [0, end]]
        assert len(np.unique(ports, axis=0)) == len(ports)


@pytest.mark.parametrize("system", ["dgx-1-v100", "mi250x", "mi100-8"])
def test_without_bytes_it_takes_the_way_to_the_farthest(system):
    machine = catalog(system)
    demand = demand_of(collective_of("broadcast", 8, 1))
    columns = Machine(machine.endpoints, PathFinder(machine))
    assert order_of(machine, [0], 0.0).us == pytest.approx(farthest(demand, columns, columns.latency_us)[0])


def test_a_chunk_is_passed_on_before_it_is_sent_again():
    """0 sends both chunks to 1, its only neighbour, and 1 each on as soon as it is there."""
    order = order_of(line(3), [0, 0])
    assert [tuple(row) for row in order.messages.tolist()] == [(0, 0, 0, 1), (1, 0, 1, 2), (1, 1, 0, 1), (2, 1, 1, 2)]


def test_none_for_too_many_and_where_some_have_no_route():
    assert order_of(switch(MOST_EDGE_MEMBERS + 1), [0]) is None
    assert order_of(switch(1), [0]) is None
    machine = catalog("mi100-8")
    joined = [each for each in machine.links if "numa" not in each.src + each.dst]
    assert order_of(replace(machine, links=tuple(joined)), [0]) is None
    assert order_of(replace(machine, links=()), [0]) is None


@pytest.mark.parametrize(("system", "differ"), [("dgx-h100", False), ("mi300x-8", False), ("dgx-1-v100", True)])
def test_pairs_that_differ(system, differ):
    machine = catalog(system)
    assert pairs_differ(machine.endpoints, PathFinder(machine)) is differ


def test_pairs_that_share_links_differ():
    machine = catalog("rtx4090-pcie-8")
    assert pairs_differ(machine.endpoints, PathFinder(machine))
    assert not pairs_differ(machine.endpoints[:1], PathFinder(machine))
