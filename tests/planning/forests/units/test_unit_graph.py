"""Whole units of bandwidth: flows, devices split off, and trees that share none, as many as Edmonds' theorem says."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from topocomm.planning.forests.units.unit_graph import Units, bits


@given(st.integers(2, 6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
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
