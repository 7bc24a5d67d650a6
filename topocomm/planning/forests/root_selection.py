"""Roots of undirected trees: for least height, spread over the ranks, or so that rank order is kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from topocomm.planning.forests.linear_program.packing import Column, Pair, Parts
from topocomm.planning.forests.linear_program.symmetry import Symmetry
from topocomm.planning.forests.tree import Tree


def root_trees(parts: Parts, symmetry: Symmetry, most: int | None) -> Parts:
    """Root each tree for least height; of two such ranks, at the one with fewest trees.

    Ranks of one orbit share their trees. `most` is the most trees of one root, where others can take them.
    """
    lowest = symmetry.elements.min(axis=0).tolist()
    counts = dict.fromkeys(symmetry.roots, 0)

    def fits(rank: int) -> bool:
        return most is None or counts[lowest[rank]] + symmetry.images[lowest[rank]] <= most

    parts_rooted = []
    for weight, column in parts:
        tree = column.pair.tree
        centres = [rank for rank in tree.centres() if fits(rank)]
        if not centres:
            open_roots = [rank for rank in sorted(tree.depths) if fits(rank)]
            if not open_roots:
                continue
            centres = [min(open_roots, key=lambda rank: tree.at(rank).height)]
        root = min(centres, key=lambda rank: (counts[lowest[rank]] + symmetry.images[lowest[rank]], rank))
        counts[lowest[root]] += symmetry.images[lowest[root]]
        parts_rooted.append((weight, _rooted(column, tree.at(root))))
    return tuple(parts_rooted)


def root_in_order(columns: Sequence[Column], symmetry: Symmetry) -> list[Column]:
    """Root each tree for least height among roots where all its images keep rank order; leave out trees without one."""
    kept: list[Column] = []
    for column in columns:
        tree = column.pair.tree
        rooted = sorted([tree.at(rank) for rank in sorted(tree.depths)], key=lambda candidate: candidate.height)
        kept += islice((_rooted(column, at) for at in rooted if images_keep_order(at, symmetry)), 1)
    return kept


def images_keep_order(tree: Tree, symmetry: Symmetry) -> bool:
    """Whether all images of the reduce tree keep rank order."""
    others = symmetry.elements[1:].tolist()
    return keeps_order(tree) and all(keeps_order(tree.mapped(element)) for element in others)


def keeps_order(tree: Tree) -> bool:
    """Whether the reduce tree merges only neighbouring ranges of ranks, so that rank order can be kept."""
    low = {rank: rank for rank in tree.depths}
    high, size = dict(low), dict.fromkeys(low, 1)
    for parent, child, _ in reversed(tree.edges):
        if high[child] - low[child] + 1 != size[child]:
            return False
        low[parent], high[parent] = min(low[parent], low[child]), max(high[parent], high[child])
        size[parent] += size[child]
    return True


def _rooted(column: Column, tree: Tree) -> Column:
    return Column(column.rows, column.loads, Pair(tree, tree), column.gain)
