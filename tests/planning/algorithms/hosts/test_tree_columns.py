"""One tree a chunk: every contribution reaches the root once, and the root's value every rank."""

import re

import numpy as np
import pytest

from tests.planning.replay import replay, word
from topocomm.planning.algorithms.hosts.tree_columns import TreeEdges, broadcast_down, reduce_up
from topocomm.planning.collectives import collective_of
from topocomm.planning.proof.verify import verify

PARENTS = ((2, 0, -1, 2, 0), (1, 2, -1, 0, 3))
"""Of two trees of five ranks to rank 2: a bushy one, and one that is as deep as can be."""


def depth(parents, rank):
    return 0 if parents[rank] < 0 else 1 + depth(parents, parents[rank])


def edges(up):
    rows = [(chunk, rank) for chunk, own in enumerate(PARENTS) for rank, parent in enumerate(own) if parent >= 0]
    levels = [depth(PARENTS[chunk], rank) for chunk, rank in rows]
    rounds = [max(levels) - level if up else level - 1 for level in levels]
    chunk, child = np.array(rows).T
    return TreeEdges(np.array(rounds), child, np.array([PARENTS[c][r] for c, r in rows]), chunk)


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_values_follow_the_trees(name):
    made = (reduce_up if name == "reduce" else broadcast_down)(edges(name == "reduce"), 5, 2, [(0, 3), (3, 4)])
    verify(made, collective_of(name, 5, 7, root=2))
    whose = range(5) if name == "reduce" else [2]
    for (rank, _), text in replay(made).items():
        assert name == "broadcast" or rank == 2
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, whose))
    assert len(made.transfers) == 8 and made.rounds == 4
