"""Flows in whole units; forwarding devices split off: every rank still receives all that the roots send."""

from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import hosts, line, switch
from tests.planning.forests.machines import less, network, solved
from topocomm.planning.forests.units.splitting import Split, Units, bits
from topocomm.planning.forests.units.unit_trees import heaviest
from topocomm.topology.catalog.systems import catalog

MACHINES = {
    "switch": switch(5),
    "line": line(4),
    "hosts": hosts(3, 2),
    "cube mesh": catalog("dgx-1-v100"),
    "seven GPUs": less(catalog("dgx-1-v100"), "GPU5"),
    **{f"random {case}": solved()[case][0] for case in range(1, 32, 5)},
}


def fits(split, one, weight):
    """Units between ranks are ways of the machine, and no link has more of them than it carries."""
    used = Counter()
    for (a, b), paths in split.paths.items():
        if max(a, b) >= one.ends:
            continue
        assert len(paths) == split.units.left[a][b]
        assert all((path[0], path[-1]) == (a, b) and min((*path[1:-1], one.ends)) >= one.ends for path in paths)
        used.update(link for path in paths for link in pairwise(path))
    return all(count * weight <= one.gb_per_s[one.index[link]] * (1 + 1e-6) for link, count in used.items())


@pytest.mark.parametrize("roots", [{0: 2}, {1: 2, 2: 1}])
@pytest.mark.parametrize("machine", MACHINES)
def test_ranks_receive_as_much_without_the_devices(machine, roots):
    one = network(MACHINES[machine])
    weight = heaviest(one, roots, sum(roots.values()) * float(one.gb_per_s.max()))
    split = Split(one, weight, roots)
    forwarding, done = range(one.ends, len(one.devices)), split.take_out()
    assert done or not one.symmetric, "where as much enters every device as leaves it, all can be split off"
    assert fits(split, one, weight)
    assert not done or not any(split.units.out[device] or split.units.into[device] for device in forwarding)


@given(st.integers(2, 6), st.randoms(use_true_random=False))
@examples(60)
def test_flows_are_the_least_cut_and_leave_the_graph_as_it_was(nodes, chance):
    graph = Units(nodes)
    for a in range(nodes):
        for b in range(nodes):
            if a != b:
                graph.add(a, b, chance.choice((0, 0, 1, 2, 3)))
    before = graph.copy()
    inner = range(1, nodes - 1)
    sides = [{0, *some} for size in range(nodes - 1) for some in combinations(inner, size)]
    least = min(sum(before.left[a][b] for a in side for b in range(nodes) if b not in side) for side in sides)
    assert graph.flows(0, nodes - 1, least)
    assert not graph.flows(0, nodes - 1, least + 1)
    assert (graph.left, graph.out, graph.into) == (before.left, before.out, before.into)
    assert all((graph.left[a][b] > 0) == (b in list(bits(graph.out[a]))) for a in range(nodes) for b in range(nodes))
