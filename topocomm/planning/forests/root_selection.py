"""Where a tree without root is hung up: low, spread over the ranks, or so that rank order is kept."""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.forests.linear_program.packing import Column, Pair, Parts
from topocomm.planning.forests.linear_program.symmetry import Symmetry
from topocomm.planning.forests.tree import Tree


def hung(parts: Parts, symmetry: Symmetry, most: int | None) -> Parts:
    """The trees hung up at the root of least height, at the one with fewest trees where there are two.

    Args:
        parts: Weighted columns of trees that may be rooted anywhere.
        symmetry: Whose images they stand for: ranks of one orbit share their trees.
        most: Trees that one root may have, where others can take them; None: any number.
    """
    lowest = symmetry.elements.min(axis=0).tolist()
    counts = dict.fromkeys(symmetry.roots, 0)

    def fits(rank: int) -> bool:
        return most is None or counts[lowest[rank]] + symmetry.images[lowest[rank]] <= most

    found = []
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
        found.append((weight, _rooted(column, tree.at(root))))
    return tuple(found)


def hung_in_order(columns: Sequence[Column], symmetry: Symmetry) -> list[Column]:
    """Those trees, each at the root of least height at which all its images keep rank order; the others are left."""
    found = []
    for column in columns:
        tree = column.pair.tree
        rooted = [tree.at(rank) for rank in sorted(tree.depths)]
        keeping = [one for one in rooted if keeps_order(one)]
        for one in sorted(keeping, key=lambda one: one.height):
            if all(keeps_order(one.mapped(element)) for element in symmetry.elements[1:].tolist()):
                found.append(_rooted(column, one))
                break
    return found


def keeps_order(tree: Tree) -> bool:
    """Whether the reduce tree merges contiguous ranges of ranks only, so that rank order can be kept."""
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
