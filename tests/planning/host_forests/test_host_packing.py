"""Trees of a host carry what the linear program allows, by hand where the figures are simple."""

import numpy as np
import pytest

from tests.machines import hosts, line
from topocomm import catalog
from topocomm.planning.host_forests.host_packing import HostLoads, equal_trees, host_forest
from topocomm.planning.routing.paths import PathFinder


def loads_of(system, count):
    machine = catalog(system, hosts=count) if isinstance(system, str) else system
    return HostLoads(machine.endpoints, PathFinder(machine), len(machine.endpoints) // count)


def busiest(loads, trees):
    """The time of a value at the busiest port or link, every message counted alone."""
    held = np.zeros(loads.across.shape[1])
    for tree in trees:
        for parent, child, _ in tree.edges:
            held += loads.inside[parent, child] + loads.inside[child, parent]
        held += (loads.hosts > 1) * loads.across[tree.root] * 2 * (loads.hosts - 1) / loads.hosts
    return float(held.max()) / len(trees) / loads.fastest


@pytest.mark.parametrize("count", [1, 2, 5])
def test_packages_of_dies_are_bound_by_ports_of_the_least_spanning_tree(count):
    """MI250X: both ways over 4 links of 200 GB/s, 2 of 100 and one of 50 a host, and a NIC's 25, by 8 ports."""
    loads = loads_of("mi250x", count)
    forest = host_forest(loads)
    across = 2 * (count - 1) / count / 25
    least = (2 * (4 / 200 + 2 / 100 + 1 / 50) + across) / 8
    assert 1 / forest.gb_per_s == pytest.approx(least, rel=3e-3)
    assert 1 / forest.most_gb_per_s == pytest.approx(least, rel=3e-3)
    assert forest.gb_per_s <= forest.most_gb_per_s * (1 + 1e-9)
    assert sum(share for share, _ in forest.parts) == pytest.approx(1.0)


def test_a_bus_between_sockets_is_crossed_once():
    """Two sockets of two cards: a whole value each way over 16 GB/s."""
    assert 1 / host_forest(loads_of("a100-pcie-4", 1)).gb_per_s == pytest.approx(1 / 16, rel=3e-3)


@pytest.mark.parametrize(("system", "count", "trees", "most"), [("mi250x", 2, 12, 1.01), ("mi100-8", 5, 8, 1.01)])
def test_trees_of_equal_shares_are_about_as_good(system, count, trees, most):
    """By rounding the best shares alone it was 1.08 and 1.16 times."""
    loads = loads_of(system, count)
    forest = host_forest(loads)
    made = equal_trees(loads, forest, trees)
    assert len(made) == trees
    assert all(sorted([tree.root, *(edge.child for edge in tree.edges)]) == list(range(loads.members)) for tree in made)
    assert busiest(loads, made) <= most / forest.gb_per_s


def test_one_tree_is_the_heaviest():
    loads = loads_of("mi250x", 2)
    forest = host_forest(loads)
    assert equal_trees(loads, forest, 1)[0].edges == forest.parts[0][1].edges


def test_links_that_serve_several_members_are_shared():
    assert loads_of("mi250x", 2).gates_share and not loads_of(hosts(2, 4), 2).gates_share
    assert not loads_of("mi250x", 1).gates_share


def test_members_without_routes_have_no_trees():
    assert host_forest(loads_of(line(4), 1)) is not None  # along the line
    machine = catalog("mi250x", hosts=1)
    lonely = HostLoads(machine.endpoints[:3], PathFinder(machine), 3)
    lonely.inside[2], lonely.inside[:, 2] = np.inf, np.inf
    assert host_forest(lonely) is None
    closed = loads_of("mi250x", 2)
    closed.across[:] = np.inf
    assert host_forest(closed) is None
