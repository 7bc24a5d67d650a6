"""Any trees over neighbours give every rank the values up to its own, in rank order, each once, in few messages."""

import re
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.replay import replay, word
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.scan_trees.hop_clock import Clock, hop_rounds, least_takes
from topocomm.planning.scan_trees.rank_trees import NO_RANK, ScanTrees, straight
from topocomm.planning.scan_trees.tree_scan import tree_scan
from topocomm.planning.schedule.transforms import sliced

CHAIN, STAR = [1, 2, 3, 4, NO_RANK], [2, 2, NO_RANK, 2, 2]


def right(schedule, period, name):
    """Check every output by a replay on words, and the proof with and without slices."""
    ranks = schedule.ranks
    for slices in (1, 3):
        proof = verify(sliced(schedule, slices, period), Collective(name, ranks))
        assert proof.complete and proof.each_contribution_once and proof.order_kept
    spelled = replay(sliced(schedule, 2, period))
    first = 0 if name == "scan" else 1
    assert spelled.keys() == {(r, chunk) for r in range(first, ranks) for chunk in range(len(schedule.chunks))}
    for (rank, _), text in spelled.items():
        assert re.findall("<[^>]*>", text) == [word(other) for other in range(rank + 1 - first)]


@st.composite
def trees(draw):
    """A tree over neighbours, or several, for each of some chunks, with relays, and turns of all hops."""
    ranks, chunks = draw(st.integers(2, 17)), draw(st.integers(1, 3))
    parents = np.full((chunks, ranks), NO_RANK)

    def grow(tree, low, high, above):
        root = draw(st.integers(low, high))
        tree[root] = above
        for first, last in ((low, root - 1), (root + 1, high)):
            edges = sorted(draw(st.sets(st.integers(first, last), max_size=3))) if first <= last else []
            for a, b in zip([first, *edges], [*(edge - 1 for edge in edges), last], strict=True):
                if a <= b:
                    grow(tree, a, b, root)

    cuts = [0, *sorted(draw(st.sets(st.integers(1, ranks - 1), max_size=3))), ranks]
    for tree, (low, high) in product(parents, pairwise(cuts)):
        grow(tree, low, high - 1, NO_RANK)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    up, down = (rng.integers(NO_RANK, ranks, (*parents.shape, 2)) for _ in range(2))
    for ways in (up, down):
        for chunk, rank in np.ndindex(parents.shape):
            relays = sorted(set(ways[chunk, rank].tolist()) - {NO_RANK, rank, int(parents[chunk, rank])})
            ways[chunk, rank] = [*relays, NO_RANK, NO_RANK][:2]
    shape = (*parents.shape, 3)
    turns = (rng.uniform(0, 1.7, shape) for _ in range(2))
    takes = (rng.uniform(0.1, 3, shape) for _ in range(2))
    across = rng.uniform(0, 1.7, (chunks, len(cuts) - 2)), rng.uniform(0.1, 3, (chunks, len(cuts) - 2))
    return ScanTrees(parents, up, down), Clock(1.7, *turns, *takes, *across)


@given(made=trees(), name=st.sampled_from(["scan", "exscan"]), in_turn=st.booleans())
@examples(200)
def test_any_tree_over_neighbours_with_relays(made, name, in_turn):
    of, clock = made
    assert least_takes(of, clock) <= hop_rounds(of.nodes, of, clock).slice_takes * (1 + 1e-9)
    chunks = [(10 * chunk, 10) for chunk in range(len(of.parents))]
    right(*tree_scan(of, chunks, own=name == "scan", clock=clock if in_turn else None), name)


@pytest.mark.parametrize(("tree", "messages"), [(CHAIN, 4), (STAR, 3 + 3)])
def test_nothing_is_sent_that_nobody_needs(tree, messages):
    """A chain only passes on; to the centre of a star the last rank sends nothing, and the first hears nothing."""
    schedule, period = tree_scan(straight(np.array([tree])), [(0, 8)], own=True)
    assert len(schedule.transfers) == messages and period == 1
    assert not (schedule.transfers[:, [1, 3]] == (4, 2)).all(axis=1).any()


def test_roots_tell_all_later_ones():
    """Two messages in a row for any number of trees: from the first rank of each, and to the second."""
    parents = np.array([[NO_RANK, 0, NO_RANK, 2, NO_RANK, 4, NO_RANK, 6]])
    schedule, _ = tree_scan(straight(parents), [(0, 8)], own=True)
    between = {(src, dst) for src, dst in schedule.transfers[:, [1, 3]].tolist() if src // 2 != dst // 2}
    assert between == {(0, 2), (0, 4), (0, 6), (2, 4), (2, 6), (4, 6)}
    assert len(schedule.transfers) == len(between) + 4 + 3  # of the last tree only rank 7 has to hear
    right(schedule, 1, "scan")


def test_a_relay_only_carries():
    relays = np.full((1, 5, 1), NO_RANK)
    relays[0, 1] = 4
    schedule, _ = tree_scan(ScanTrees(np.array([CHAIN]), relays, relays), [(0, 8)], own=True)
    assert schedule.transfers[:, [0, 1, 3]].tolist() == [[0, 0, 1], [1, 1, 4], [2, 4, 2], [3, 2, 3], [4, 3, 4]]
    right(schedule, 1, "scan")
