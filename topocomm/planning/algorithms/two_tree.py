"""Two trees (Sanders, Speck, Traff 2009): half of the payload on each; inner ranks of one are leaves of the other.

Pipelined in slices, every rank sends and receives about one payload a phase, at a height of log2 P. Ranks are numbered
in order (left subtree, node, right subtree), so a fold of left, own and right keeps rank order. Ranks of even place are
leaves of the first tree, those of odd place of the second: the mirror image where the number of ranks is even, else the
tree without the two ends, which take the places of their neighbours. A level has two rounds; the edges of both trees
are coloured so that no rank sends or receives twice in a round of one phase.

Over hosts each has two trees of its own, whose tops pass on to the next host: those of the first tree towards the first
host, of the second towards the last. So half a payload enters a host for each, however many levels its trees have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from topocomm.planning.schedule.schedule import Schedule, split_rows
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder
from topocomm.planning.schedule.transforms import sliced

LEVEL_ROUNDS = 2
"""Rounds of a level of the trees."""

Parents = dict[int, int]
"""Parent by rank; that of the top is -1."""


def two_tree_allreduce(ranks: int, rows: int, slices: int = 1) -> Schedule:
    """Return an allreduce up and down both trees; rank order kept, about 2 payloads through every port."""
    build = ScheduleBuilder(ranks, split_rows(rows, min(2, max(rows, 1))))
    trees = _two_trees(list(range(ranks)))[: len(build.chunks)]
    turns = _turns(trees)
    for chunk, tree in enumerate(trees):
        slot, after = _collect(build, tree, turns, chunk, {}, _lag(None, 0))
        _spread(build, tree, turns, chunk, slot, after, _lag(None, 0))
    return sliced(build.build(), slices, 2 * LEVEL_ROUNDS)


def two_tree_reduce(
    ranks: int,
    rows: int,
    root: int,
    *,
    keep_order: bool,
    slices: int = 1,
    hosts: Sequence[int] | None = None,
    late: int = 0,
) -> Schedule:
    """Return a reduce up both trees over the other ranks, then to the root.

    Rank order is kept where the root is the first or the last rank. Where it is neither and order must be kept, it is a
    leaf of both trees and gets their results: its neighbours then receive half a payload more than other ranks.

    With `hosts`, the host of each rank, the trees are those of a chain of hosts, and what passes from one host to the
    next is `late` by so many levels: a NIC serves messages in the order of their rounds.
    """
    build = ScheduleBuilder(ranks, split_rows(rows, min(2, max(rows, 1))))
    lag = _lag(hosts, late)
    others = [rank for rank in range(ranks) if rank != root]
    inside = keep_order and 0 < root < ranks - 1
    if not inside and root:
        others = others[root:] + others[:root]
    trees = _trees(others, hosts)[: len(build.chunks)]
    if inside:
        for tree in trees:
            tree[root] = _next_to(tree, root)
    places = {} if inside else {rank: place for place, rank in enumerate(others)}
    turns = _turns(trees if inside else [_below(root, tree) for tree in trees])
    for chunk, tree in enumerate(trees):
        if not others:
            build.output(root, 0, chunk=chunk)
            continue
        slot, after = _collect(build, tree, turns, chunk, places, lag)
        slot = build.send(after + turns.get((chunk, _top(tree)), chunk), _top(tree), slot, root, chunk=chunk)
        if not inside:
            operands = [slot, 0] if root == ranks - 1 else [0, slot]
            slot = build.fold(build.last_round, root, operands, chunk=chunk)
        build.output(root, slot, chunk=chunk)
    return sliced(build.build(), slices, LEVEL_ROUNDS)


def two_tree_broadcast(
    ranks: int, rows: int, root: int, slices: int = 1, hosts: Sequence[int] | None = None, late: int = 0
) -> Schedule:
    """Return a broadcast from the root to the tops of two trees over the other ranks, and down both."""
    build = ScheduleBuilder(ranks, split_rows(rows, min(2, max(rows, 1))), contributors=[root])
    others = [rank for rank in range(ranks) if rank != root]
    trees = _trees(others, hosts)[: len(build.chunks)]
    below = [_below(root, tree) for tree in trees]
    turns = _turns(below)
    for chunk, tree in enumerate(below):
        _spread(build, tree, turns, chunk, 0, 0, _lag(hosts, late))
    return sliced(build.build(), slices, LEVEL_ROUNDS)


def _trees(ranks: Sequence[int], hosts: Sequence[int] | None) -> list[Parents]:
    """Return two trees over ranks: where hosts are given, those of neighbours on one host in a chain."""
    if hosts is None:
        return _two_trees(ranks)
    blocks = [list(block) for _, block in groupby(ranks, lambda rank: hosts[rank])]
    return [_first_chain(blocks), _second_chain(blocks)]


def _first_chain(blocks: Sequence[Sequence[int]]) -> Parents:
    """Return the trees of the blocks, each below the one before: the top is on the right, with one child of its block.

    Ranks of even place are leaves, but the last of an odd count, which has the next block alone below it.
    """
    parents: Parents = {}
    above = -1
    for block in blocks:
        even = block[: len(block) & ~1] or block
        top = even[-1]
        parents |= {rank: top if parent == -1 else parent for rank, parent in _in_order(even[:-1]).items()}
        parents[top] = above
        above = block[-1]
        if above != top:
            parents[above] = top
    return parents


def _second_chain(blocks: Sequence[Sequence[int]]) -> Parents:
    """Return the trees of the blocks, each below the one after: the top is on the left, and no inner rank is one above.

    Only the last of an odd count is in both, with one child each.
    """
    parents: Parents = {}
    above = -1
    for block in reversed(blocks):
        top, rest = block[0], block[1:]
        inside = _in_order(rest if len(block) % 2 else rest[::-1])
        parents |= {rank: top if parent == -1 else parent for rank, parent in inside.items()}
        parents[top] = above
        above = top
    return parents


def _two_trees(ranks: Sequence[int]) -> list[Parents]:
    """Return the two trees over ranks in rising order."""
    count = len(ranks)
    first = _in_order(ranks)
    if count % 2 == 0:
        mirrored = dict(zip(ranks, reversed(ranks), strict=True))
        return [first, {mirrored[rank]: mirrored.get(parent, -1) for rank, parent in first.items()}]
    second = _in_order(ranks[1:-1])
    if count > 1:
        for end, neighbour in ((ranks[0], ranks[1]), (ranks[-1], ranks[-2])):
            second[end], second[neighbour] = second[neighbour], end
    return [first, second or dict(first)]


def _in_order(ranks: Sequence[int]) -> Parents:
    """Return a binary tree numbered in order, left subtrees complete: ranks of even place are leaves."""
    parents: Parents = {}
    todo = [(0, len(ranks), -1)]
    for low, high, parent in todo:
        if low < high:
            at = low + (1 << ((high - low).bit_length() - 1)) - 1
            parents[ranks[at]] = parent
            todo += [(low, at, ranks[at]), (at + 1, high, ranks[at])]
    return parents


def _below(root: int, tree: Parents) -> Parents:
    """Return the tree with its top below a root."""
    return {**{rank: root if parent == -1 else parent for rank, parent in tree.items()}, root: -1}


def _top(tree: Parents) -> int:
    return next((rank for rank, parent in tree.items() if parent == -1), -1)


def _next_to(tree: Parents, rank: int) -> int:
    """Return the parent of a rank in the middle that keeps order: of its two neighbours the lower in the tree."""
    above, at = set(), rank - 1
    while at != -1:
        above.add(at)
        at = tree[at]
    return rank - 1 if rank + 1 in above else rank + 1


def _turns(trees: Sequence[Parents]) -> dict[tuple[int, int], int]:
    """Return the round of each edge in its level, 0 or 1, by (tree, child): edges of one child or one parent differ.

    A rank is a child once in each tree, and the edges to its children are paired in order. So an edge differs from at
    most two others, one at either end, and the paths of such edges are coloured alternately.
    """
    every = [(number, rank) for number, tree in enumerate(trees) for rank in sorted(tree) if tree[rank] != -1]
    below: dict[int, list[tuple[int, int]]] = {}
    for number, rank in every:
        below.setdefault(trees[number][rank], []).append((number, rank))
    sibling: dict[tuple[int, int], tuple[int, int]] = {}
    for edges in below.values():
        for edge, next_edge in zip(edges[::2], edges[1::2], strict=False):
            sibling[edge], sibling[next_edge] = next_edge, edge
    known = set(every)
    turns: dict[tuple[int, int], int] = {}
    for start in every:
        todo = [(start, 0)]
        for edge, turn in todo:
            if edge in known and edge not in turns:
                turns[edge] = turn
                todo += [((1 - edge[0], edge[1]), 1 - turn), (sibling.get(edge, edge), 1 - turn)]
    return turns


def _lag(hosts: Sequence[int] | None, late: int) -> Callable[[int, int], int]:
    """Return how many levels a message from rank to rank takes more than one."""
    return lambda src, dst: late if hosts is not None and hosts[src] != hosts[dst] else 0


def _collect(
    build: ScheduleBuilder,
    tree: Parents,
    turns: dict[tuple[int, int], int],
    chunk: int,
    places: dict[int, int],
    lag: Callable[[int, int], int],
) -> tuple[int, int]:
    """Reduce to the top, operands by place; return its slot and the first round after."""
    children = _children(tree)
    order = [_top(tree)]
    for rank in order:
        order += children.get(rank, [])
    held: dict[int, tuple[int, int]] = {}
    for rank in reversed(order):
        level, operands = 0, [(places.get(rank, rank), 0)]
        for child in children.get(rank, []):
            slot, below = held[child]
            round_ = below * LEVEL_ROUNDS + turns[chunk, child]
            operands.append((places.get(child, child), build.send(round_, child, slot, rank, chunk=chunk)))
            level = max(level, below + 1 + lag(child, rank))
        folded = build.fold(level * LEVEL_ROUNDS - 1, rank, [slot for _, slot in sorted(operands)], chunk=chunk)
        held[rank] = folded, level
    slot, level = held[order[0]]
    return slot, level * LEVEL_ROUNDS


def _spread(
    build: ScheduleBuilder,
    tree: Parents,
    turns: dict[tuple[int, int], int],
    chunk: int,
    slot: int,
    after: int,
    lag: Callable[[int, int], int],
) -> None:
    """Broadcast from a slot of the top, beginning in round `after`; every rank's copy is its output."""
    children = _children(tree)
    queue = [(_top(tree), slot, after)]
    for rank, own, round_ in queue:
        build.output(rank, own, chunk=chunk)
        for child in children.get(rank, []):
            arrived = build.send(round_ + turns[chunk, child], rank, own, child, chunk=chunk)
            queue.append((child, arrived, round_ + LEVEL_ROUNDS * (1 + lag(rank, child))))


def _children(tree: Parents) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for rank in sorted(tree):
        children.setdefault(tree[rank], []).append(rank)
    return children
