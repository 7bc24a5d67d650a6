"""The order of endpoints in a row and the side on which each link between them runs, with few crossings.

A link between neighbours runs straight, any other above or below the row. Two links of one side cross if their ends
alternate in the row (a two-page book drawing). Local search: reverse a piece of the order while that saves crossings
and keeps every group together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

Pair = tuple[str, str]
ABOVE, STRAIGHT, BELOW = -1, 0, 1
MOST_TRIES = 500
"""Number of orders that are tried."""


class Row(NamedTuple):
    """Endpoints from left to right, the side of every link, and the pairs of links that cross."""

    order: tuple[str, ...]
    sides: dict[Pair, int]
    crossings: tuple[tuple[Pair, Pair], ...]


def arrange(ends: Sequence[str], groups: Sequence[Collection[str]], chords: Mapping[Pair, float]) -> Row:
    """Return a row with few crossings; deterministic.

    Args:
        ends: Endpoints in the preferred order.
        groups: Sets of endpoints that must stay side by side.
        chords: Weight of the links between two endpoints, one entry for both directions; of rows with equally many
            crossings the one is taken where lighter links cross.
    """
    best = tuple(ends)
    rank = {name: index for index, name in enumerate(ends)}
    cost, sides = _sides(best, chords)
    tries = 0
    improved = cost > (0, 0.0)
    while improved and tries < MOST_TRIES:
        improved = False
        following, next_cost = best, cost
        for start, stop in combinations(range(len(ends) + 1), 2):
            if stop - start < 2 or tries >= MOST_TRIES:
                continue
            turned = (*best[:start], *reversed(best[start:stop]), *best[stop:])
            if not _keeps_groups(turned, groups):
                continue
            tries += 1
            new_cost, _ = _sides(turned, chords)
            is_nearer = [rank[name] for name in turned] < [rank[name] for name in following]
            if new_cost < next_cost or (improved and new_cost == next_cost and is_nearer):
                following, next_cost, improved = turned, new_cost, True
        best = following
        cost, sides = _sides(best, chords)
    return Row(best, sides, tuple(_crossings(best, sides)))


def _keeps_groups(order: Sequence[str], groups: Sequence[Collection[str]]) -> bool:
    place = {name: index for index, name in enumerate(order)}
    for group in groups:
        places = [place[name] for name in group]
        if max(places) - min(places) >= len(places):
            return False
    return True


def _conflicts(order: Sequence[str], chords: Collection[Pair]) -> dict[Pair, list[Pair]]:
    """For each link, the links that it would cross on the same side."""
    place = {name: index for index, name in enumerate(order)}
    spans = {pair: sorted((place[pair[0]], place[pair[1]])) for pair in chords}
    conflicts: dict[Pair, list[Pair]] = {pair: [] for pair, (a, b) in spans.items() if b - a > 1}
    for one, other in combinations(conflicts, 2):
        (a, b), (c, d) = spans[one], spans[other]
        if a < c < b < d or c < a < d < b:
            conflicts[one].append(other)
            conflicts[other].append(one)
    return conflicts


def _sides(order: Sequence[str], chords: Mapping[Pair, float]) -> tuple[tuple[int, float], dict[Pair, int]]:
    """Sides of the links for an order, and their cost: crossings, then the weight of crossing links."""
    conflicts = _conflicts(order, chords)
    sides: dict[Pair, int] = {}
    for start in conflicts:  # a 2-colouring, exact where two sides suffice
        stack = [(start, ABOVE)]
        while stack:
            pair, side = stack.pop()
            if pair not in sides:
                sides[pair] = side
                stack += [(other, -side) for other in conflicts[pair]]
    for _ in range(len(sides)):
        moved = False
        for pair, others in conflicts.items():
            kept, flipped = (_cost(pair, others, sides, chords, side) for side in (sides[pair], -sides[pair]))
            if flipped < kept:
                sides[pair], moved = -sides[pair], True
        if not moved:
            break
    count, weight = 0, 0.0
    for pair, others in conflicts.items():
        more, heavier = _cost(pair, others, sides, chords, sides[pair])
        count, weight = count + more, weight + heavier
    sides.update({pair: STRAIGHT for pair in chords if pair not in conflicts})
    return (count // 2, round(weight, 6)), sides


def _cost(
    pair: Pair, others: Sequence[Pair], sides: Mapping[Pair, int], chords: Mapping[Pair, float], side: int
) -> tuple[int, float]:
    crossed = [chords[other] for other in others if sides[other] == side]
    return len(crossed), sum(weight * chords[pair] for weight in crossed)


def _crossings(order: Sequence[str], sides: Mapping[Pair, int]) -> list[tuple[Pair, Pair]]:
    conflicts = _conflicts(order, sides)
    return [
        (pair, other)
        for pair, others in conflicts.items()
        for other in others
        if sides[pair] == sides[other] and pair < other
    ]
