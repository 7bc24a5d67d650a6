"""The trees in a plan: the messages that make one rank's result, and the trees of its parts where these differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topocomm.planning.collectives import CARRYING, FROM_ROOT, TO_ROOT
from topocomm.planning.plan import Plan
from topocomm.planning.schedule.schedule import Combine, Place, Transfer

MOST_MESSAGES = 200_000
"""Transfers above which a schedule is not searched for trees: a picture could not show them."""


class Focus(NamedTuple):
    """The messages that a result is made of, the rank that it belongs to or comes from, and what it is."""

    moves: list[Transfer]
    rank: int
    words: str


class PartTree(NamedTuple):
    """The tree over which some of the rows go: pairs of ranks, its root where it has one, and its part of the rows."""

    edges: tuple[tuple[int, int], ...]
    root: int | None
    share: float


def focus(plan: Plan) -> Focus:
    """Return the messages that make the result of one rank, or of all where they share a source."""
    name, ranks = plan.collective.name, len(plan.ranks)
    if name in FROM_ROOT:
        root = plan.collective.root
        words = f"How rank {root}'s {'value reaches' if name == 'broadcast' else 'parts reach'} all ranks"
        outputs = plan.schedule.outputs.tolist()
        if name == "broadcast":
            outputs, words = _first_part(plan, outputs, words)
        return Focus(list(_sources(plan, outputs)), root, words)
    rank = plan.collective.root if name in TO_ROOT else ranks - 1 if "scan" in name else 0
    outputs, words = plan.schedule.outputs_of(rank), f"How rank {rank} gets its result"
    if name not in CARRYING:
        outputs, words = _first_part(plan, outputs, words)
    others = "" if name in TO_ROOT or ranks < 2 else "; all else at the same time is pale"
    return Focus(list(_sources(plan, outputs)), rank, f"{words}{others}")


def _first_part(plan: Plan, outputs: list[list[int]], words: str) -> tuple[list[list[int]], str]:
    """Of a value in parts that take trees of their own, the first part."""
    chunks = {row[2] for row in outputs}
    if len(chunks) < 2:
        return outputs, words
    first = min(chunks)
    part = round(plan.schedule.rows / max(plan.schedule.chunks[first][1], 1))
    return [row for row in outputs if row[2] == first], f"{words}: the first 1/{part} of it"


def _sources(plan: Plan, outputs: Sequence[Sequence[int]]) -> dict[Transfer, None]:
    """The transfers whose values are in these outputs, from the last back."""
    schedule = plan.schedule
    if len(schedule.transfers) > MOST_MESSAGES:
        return {}
    moves: dict[Place, Transfer] = {(m.dst, m.dst_slot, m.chunk): m for m in schedule.transfer_list()}
    folds: dict[Place, Combine] = {(c.rank, c.out_slot, c.chunk): c for c in schedule.combine_list()}
    waiting: list[Place] = [(row[0], row[1], row[2]) for row in outputs]
    seen, found = set(waiting), dict[Transfer, None]()
    while waiting:
        place = waiting.pop()
        before: list[Place] = []
        if place in moves:
            move = moves[place]
            found[move] = None
            before = [(move.src, move.src_slot, move.chunk)]
        elif place in folds:
            before = [(place[0], slot, place[2]) for slot in folds[place].operands]
        fresh = [each for each in before if each not in seen]
        seen.update(fresh)
        waiting += fresh
    return found


def part_trees(plan: Plan) -> list[PartTree]:
    """Return the trees of the parts of a value, most rows first; none where all rows take the same messages.

    Only parts whose messages span all ranks as a tree do count: all of them, or there is none.
    """
    schedule = plan.schedule
    if not len(schedule.chunks) >= 2 or len(schedule.transfers) > MOST_MESSAGES:
        return []
    moves: list[list[Transfer]] = [[] for _ in schedule.chunks]
    for move in schedule.transfer_list():
        moves[move.chunk].append(move)
    rows: dict[tuple[tuple[tuple[int, int], ...], int | None], int] = {}
    for (_, count), own in zip(schedule.chunks, moves, strict=True):
        edges = tuple(sorted({(min(m.src, m.dst), max(m.src, m.dst)) for m in own}))
        if not count:
            continue
        if len(edges) != schedule.ranks - 1 or not _is_connected(edges, schedule.ranks):
            return []
        key = edges, _root(own, schedule.ranks, carried=plan.collective.name in CARRYING)
        rows[key] = rows.get(key, 0) + count
    whole = max(sum(rows.values()), 1)
    trees = [PartTree(edges, root, count / whole) for (edges, root), count in rows.items()]
    return sorted(trees, key=lambda tree: -tree.share) if len(trees) > 1 else []


def _is_connected(edges: Sequence[tuple[int, int]], ranks: int) -> bool:
    group = list(range(ranks))

    def top(rank: int) -> int:
        while group[rank] != rank:
            rank = group[rank]
        return rank

    for a, b in edges:
        group[top(a)] = top(b)
    return len({top(rank) for rank in range(ranks)}) == 1


def _root(moves: Sequence[Transfer], ranks: int, *, carried: bool) -> int | None:
    """The rank that a value comes from, or where values meet: it sends after all others first do; None if several."""
    if carried:
        roots = sorted(set(range(ranks)) - {move.dst for move in moves})
    else:
        first: dict[int, int] = {}
        for move in moves:
            first[move.src] = min(first.get(move.src, move.round), move.round)
        begins = [first.get(rank, 1 << 30) for rank in range(ranks)]
        roots = [rank for rank, round_ in enumerate(begins) if round_ == max(begins)]
    return roots[0] if len(roots) == 1 else None
