"""Trees over groups whose inner groups are shared out: as many trees as a group may have children.

Each tree carries an equal part of a value. Pipelined, a group then sends and receives the value about once, as with two
binary trees (Sanders, Speck, Traeff 2009), which are those of radix 2; larger radices have fewer levels, and up to one
(every group collects a part of all others) where latency counts more than messages.
"""

from __future__ import annotations

from functools import cache
from itertools import count as count_from

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@cache
def wide_trees(count: int, home: int, radix: int) -> tuple[Ints, int]:
    """Return `radix` trees over all groups but `home`, to which their tops send, and the number of turns.

    Together they give no group more than `radix` children: the groups in a row have so many places each, and the trees
    take one place after the other. In a tree those with most children are next to the top. No group sends twice in a
    turn, or receives twice. With few groups there are fewer trees.

    Returns:
        int64 [trees, groups - 1, 3]: group, parent, turn; the number of turns.
    """
    others = [(home + 1 + place) % count for place in range(count - 1)]
    trees, edges = max(1, min(radix, count - 2)), list[tuple[int, int]]()
    for first in range(0, trees * (count - 2) or 1, max(1, count - 2)):
        ends = np.clip(np.arange(count) * trees, first, first + count - 2)
        places = dict(zip(others, np.diff(ends).tolist(), strict=True))
        order = sorted(others, key=lambda group: -places[group])
        parents = [home, *(group for group in order for _ in range(places[group]))]
        edges += zip(order, parents, strict=True)
    turns = edge_colours(edges)
    made = np.column_stack([np.array(edges, np.int64), np.array(turns, np.int64)])
    return made.reshape(trees, count - 1, 3), max(turns) + 1


def edge_colours(edges: list[tuple[int, int]]) -> list[int]:
    """Colour (child, parent): edges of one child, or of one parent, differ; no more colours than some end has edges.

    Koenig 1916: a colour free at the child and one free at the parent change places along the path of their edges.
    """
    by_end: tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]] = ({}, {})
    turns = [0] * len(edges)
    for at, (child, parent) in enumerate(edges):
        own, other = (
            next(turn for turn in count_from() if (end, turn) not in used)
            for end, used in zip((child, parent), by_end, strict=True)
        )
        path, end, side, turn = [], parent, 1, own
        while own != other and (edge := by_end[side].get((end, turn))) is not None:
            path.append(edge)
            side, turn = 1 - side, own + other - turn
            end = edges[edge][side]
        for edge in path:
            for end, used in zip(edges[edge], by_end, strict=True):
                del used[end, turns[edge]]
            turns[edge] = own + other - turns[edge]
        turns[at] = own
        for edge in (*path, at):
            for end, used in zip(edges[edge], by_end, strict=True):
                used[end, turns[edge]] = edge
    return turns
