"""Trees of ranks for scans over nested groups: the roots of the parts of a group hang below one of them.

Which one takes turns by chunk, so that all members, hosts and rails have as much to do. Of a radix as large as the
group every part tells the owner of a chunk its fold and hears from it what comes before: two messages in a row. A
smaller one has fewer messages and more of them in a row; that of 1 is a chain, along which nothing goes back. That of 0
joins nothing: each of the largest groups has a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import prod

import numpy as np

from topocomm.planning.routing.routes import Ints
from topocomm.planning.scan_trees.rank_trees import NO_RANK, ScanTrees, straight
from topocomm.planning.schedule.schedule import split_rows


@cache
def item_tree(count: int, root: int, radix: int) -> tuple[int, ...]:
    """Return the parent of each of some items, NO_RANK of the root: those below each, and itself, are neighbours.

    None has over `radix` children. A chain ends at the last item whatever the root.
    """
    if radix == 1:
        return (*range(1, count), NO_RANK)
    parents = [NO_RANK] * count
    waiting = [(0, count, root)]
    while waiting:
        low, high, at = waiting.pop()
        left, right = at - low, high - 1 - at
        children = min(radix, left + right)
        earlier = round(children * left / (left + right)) if children else 0
        earlier = min(max(earlier, int(left > 0)), children - int(right > 0))
        for first, items, parts in ((low, left, earlier), (at + 1, right, children - earlier)):
            for begin, size in split_rows(items, parts) if items else ():
                child = first + begin + size // 2
                parents[child] = at
                waiting.append((first + begin, first + begin + size, child))
    return tuple(parents)


def nested_trees(cuts: Sequence[Sequence[int]], radix: int, most_chunks: int) -> ScanTrees:
    """Return a tree for each chunk, in whose innermost groups all members are below one.

    Args:
        cuts: First rank of every group, and the number of ranks: groups in larger ones, the smallest first.
        radix: Of the outermost groups; inside them all parts of a group are below one.
        most_chunks: Most trees, of which as many as let all ranks take turns are made. With fewer all parts of a group
            take turns, but not with all of those of others.
    """
    ranks = cuts[-1][-1]
    edges = list(dict.fromkeys([tuple(range(ranks + 1)), *map(tuple, cuts), (0, ranks)]))
    firsts = [np.searchsorted(fine, coarse).tolist() for fine, coarse in pairwise(edges)]
    most = [max(high - low for low, high in pairwise(parts)) for parts in firsts]
    if radix <= 1:  # a chain has no root to choose
        most[-1] = 1
    chunks = min(most[0] * max(1, min(prod(most[1:]), most_chunks // most[0])), most_chunks)
    parents, roots = np.full((chunks, ranks), NO_RANK), np.tile(np.arange(ranks), (chunks, 1))
    every = np.arange(chunks)
    for level, parts in enumerate(firsts if radix else firsts[:-1]):
        turn = every // prod(most[level + 1 :]) % most[level] if level else every * most[0] // chunks
        own = radix if level == len(firsts) - 1 else ranks
        below = []
        for low, high in pairwise(parts):
            below.append(joined(parents, roots[:, low:high], turn * (high - low) // most[level], own))
        roots = np.stack(below, axis=1)
    return straight(parents)


def joined(parents: Ints, roots: Ints, place: Ints, radix: int) -> Ints:
    """Put roots of trees below one another, and return the root of all, [chunks].

    Args:
        parents: [chunks, ranks], to which they are added.
        roots: [chunks, items], the ranks.
        place: [chunks], which item is to be the root.
        radix: Most children of one among them.
    """
    places, which = np.unique(place, return_inverse=True)
    shapes = np.array([item_tree(roots.shape[1], at, radix) for at in places.tolist()])[which]
    chunk, item = np.nonzero(shapes != NO_RANK)
    parents[chunk, roots[chunk, item]] = roots[chunk, shapes[chunk, item]]
    every = np.arange(len(roots))
    return np.asarray(roots[every, (shapes == NO_RANK).argmax(axis=1)])
