"""Shortest ways by hand: relays where they are shorter, the rate that holds ports least, and prices of borders."""

import numpy as np
import pytest

from tests.machines import line
from tests.planning.forests.linear_program.test_shared_borders import two_hosts
from topocomm import catalog
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.forests.linear_program.shortest_ways import WaySearch
from topocomm.planning.forests.linear_program.symmetry import no_symmetry
from topocomm.planning.routing.paths import PathFinder


def search_on(machine, borders=None):
    network = network_of(PathFinder(machine), machine.endpoints)
    return network, WaySearch(network, np.unique(network.gb_per_s), no_symmetry(network), borders)


def test_three_in_a_row():
    network, search = search_on(line(3))
    ways = search.ways(np.full(len(network.links), 2.0), np.full((2, 3), 5.0))
    assert ways.cost.tolist() == [[0.0, 3.0, 6.0], [3.0, 0.0, 3.0], [6.0, 3.0, 0.0]]  # 2 + (5 + 5) / 10 a message
    assert [(hop.src, hop.dst) for hop in ways.way(0, 2)] == [(0, 1), (1, 2)]
    straight = search.ways(np.full(len(network.links), 2.0), np.full((2, 3), 5.0), relays=False)
    assert straight.cost[0].tolist() == [0.0, 3.0, np.inf]


def test_who_crosses_borders_pays_and_a_fast_ones_port_weighs_less():
    """From GPU0 to GPU0 over both NICs at 25 GB/s: two borders at 0.5, ports of 9 less 4.5 at either end."""
    network, search = search_on(catalog("a100-pcie-2", hosts=2), two_hosts())
    ways = search.ways(np.zeros(len(network.links)), np.full((2, 4), 9.0), np.full(4, 0.5))
    assert ways.cost[0].tolist() == pytest.approx([0.0, 18 / 16, 1 + 9 / 25, 1 + 13.5 / 16])
    assert ways.cost[3].tolist() == pytest.approx([1 + 13.5 / 16, 1 + 18 / 16, 18 / 16, 0.0])
