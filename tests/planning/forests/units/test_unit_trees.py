"""Trees that share no unit of bandwidth, as many as flow to every rank, and of unequal weights."""

from collections import Counter
from itertools import pairwise

import pytest

from tests.machines import hosts, line, switch
from tests.planning.forests.machines import less, solved
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.forests.units.splitting import Split
from topocomm.planning.forests.units.unit_trees import disjoint_trees, heaviest, trees_in_units, unequal_trees
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.catalog.systems import catalog


def network(topology):
    return network_of(PathFinder(topology), topology.endpoints)


MACHINES = {
    "switch": switch(5),
    "line": line(4),
    "hosts": hosts(3, 2),
    "cube mesh": catalog("dgx-1-v100"),
    "cycles": catalog("mi250x"),
    "trees of switches": catalog("rtx4090-pcie-8", hosts=3),
    "cube meshes": catalog("dgx-1-v100", hosts=3),
    "seven GPUs": less(catalog("dgx-1-v100"), "GPU5"),
    **{f"random {case}": solved()[case][0] for case in range(0, 32, 5)},
}


@pytest.mark.parametrize("roots", [{0: 1}, {0: 3}, {1: 2, 2: 1}])
@pytest.mark.parametrize("machine", MACHINES)
def test_so_many_trees_as_flow_to_every_rank(machine, roots):
    one = network(MACHINES[machine])
    count = sum(roots.values())
    weight = heaviest(one, roots, count * float(one.gb_per_s.max()))
    assert Split(one, weight, roots).spans() and not Split(one, weight * 1.001, roots).spans()
    split = Split(one, weight, roots)
    if not split.take_out():
        assert not one.symmetric, "where as much enters every device as leaves it, all can be split off"
        return
    wanted = [(root, 1) for root, trees in roots.items() for _ in range(trees)]
    trees = disjoint_trees(split, wanted)
    used = Counter(link for tree in trees for edge in tree.edges for link in pairwise(edge.path))
    assert [tree.root for tree in trees] == [root for root, _ in wanted]
    assert all(sorted(tree.depths) == list(range(one.ends)) for tree in trees)
    for link, times in used.items():
        assert times * weight <= one.gb_per_s[one.index[link]] * (1 + 1e-6)


def test_ratios_of_weights():
    one = network(catalog("dgx-1-v100"))
    parts = trees_in_units(one, [(0, 2), (0, 1), (0, 1)], 156.0)
    assert [weight for weight, _ in parts] == [50.0, 25.0, 25.0]


def test_nothing_where_no_unit_reaches_every_rank():
    one = network(line(3))
    assert heaviest(one, {0: 1}, 1e9) == 0.0 and trees_in_units(one, [(0, 1)], 1e9) == []


UNLIKE = {"cube mesh": (25,) * 6 + (6,), "cycles": (50,) * 5 + (36,) * 2}


@pytest.mark.parametrize("root", range(8))
@pytest.mark.parametrize("machine", UNLIKE)
def test_trees_of_unlike_weights(machine, root):
    one, weights = network(MACHINES[machine]), UNLIKE[machine]
    wanted = [(root, weight) for weight in weights]
    split = Split(one, 1.0, {root: sum(weights)}, max(weights))
    assert split.take_out()
    trees = unequal_trees(split, wanted)
    used = Counter()
    for weight, tree in zip(weights, trees, strict=True):
        assert tree.root == root and sorted(tree.depths) == list(range(one.ends))
        for link in (link for edge in tree.edges for link in pairwise(edge.path)):
            used[link] += weight
    assert all(load <= one.gb_per_s[one.index[link]] for link, load in used.items())


def test_no_trees_of_unlike_weights_where_links_are_too_narrow():
    one = network(line(3))
    wanted = [(0, 3), (0, 2)]
    split = Split(one, float(one.gb_per_s.max()) / 4, {0: 5})
    assert unequal_trees(split, wanted) is None
