"""Trees as columns: every rank gets every contribution once, whatever the trees, their order and the owners."""

import random
import re

import numpy as np
import pytest

from tests.planning.replay import replay, word
from topocomm.planning.algorithms.hosts.tree_columns import (
    TreeEdges,
    TreeMessages,
    broadcast_down,
    reduce_up,
    tree_schedule,
)
from topocomm.planning.collectives import Collective, collective_of
from topocomm.planning.proof.verify import verify

OWNERS = {"allgather": (2, 1, 0, 3, 0), "reduce_scatter": (1, 4, 0, 0, 2), "allreduce": ()}


def random_trees(chance, ranks, owners, name):
    """Messages of random trees: up in the order of leaves to the root, then down, each in a round of its own."""
    rows = []
    for chunk, owner in enumerate(owners):
        others = [owner, *chance.sample([rank for rank in range(ranks) if rank != owner], ranks - 1)]
        edges = [(chunk, child, chance.choice(others[:at])) for at, child in enumerate(others) if at]
        rows += [(True, edge) for edge in reversed(edges)] * (name != "allgather")
        rows += [(False, edge) for edge in edges] * (name != "reduce_scatter")
    up, edges = zip(*rows, strict=True)
    chunk, child, parent = np.array(edges).T
    return TreeMessages(np.array(up), TreeEdges(np.arange(len(rows)), child, parent, chunk))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", OWNERS)
def test_results_are_those_of_the_collective(name, seed):
    parts = OWNERS[name]
    owners = [rank for rank, rows in enumerate(parts) for _ in range(rows)] or [0, 3, 3]
    chunks = [(row, 1) for row in range(len(owners))]
    messages = random_trees(random.Random(seed), 5, owners, name)
    schedule = tree_schedule(name, 5, chunks, np.array(owners), messages)
    verify(schedule, Collective(name, 5, parts=parts))
    texts = replay(schedule)
    every = 5 * len(chunks) if name != "reduce_scatter" else len(chunks)
    assert len(texts) == every
    for (_, chunk), text in texts.items():
        whose = [owners[chunk]] if name == "allgather" else range(5)
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, whose))


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
