"""The order of endpoints in a row, and on which side of the row each link between them runs, with few crossings.

Endpoints stand on a line; a link between neighbours runs straight, any other over the row or under it. Two links of one
side cross exactly if their ends alternate on the line (a two-page book drawing). The order starts as given and
changes by turning pieces of it around, as long as that saves crossings and keeps every group together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

Pair = tuple[str, str]
ABOVE, STRAIGHT, BELOW = -1, 0, 1
MOST_TRIES = 500
"""Orders that are looked at."""


class Row(NamedTuple):
    """The endpoints from left to right, the side of every link, and the pairs of links that cross."""

    order: tuple[str, ...]
    sides: dict[Pair, int]
    crossings: tuple[tuple[Pair, Pair], ...]


def arrange(ends: Sequence[str], groups: Sequence[Collection[str]], chords: Mapping[Pair, float]) -> Row:
    """A row with few crossings, the same for the same arguments.

    Args:
        ends: Endpoints in the order that is wanted if nothing speaks against it.
        groups: Sets of endpoints that must stay side by side.
        chords: Links between endpoints, one entry for both directions, with their weight: of two ways with as many
            crossings the one is taken where lighter links cross.
    """
    best = tuple(ends)
    wanted = {name: index for index, name in enumerate(ends)}
    cost, sides = _sides(best, chords)
    tries = 0
    improved = cost > (0, 0.0)
    while improved and tries < MOST_TRIES:
        improved = False
        found, found_cost = best, cost
        for start, stop in combinations(range(len(ends) + 1), 2):
            if stop - start < 2 or tries >= MOST_TRIES:
                continue
            turned = (*best[:start], *reversed(best[start:stop]), *best[stop:])
            if not _together(turned, groups):
                continue
            tries += 1
            new_cost, _ = _sides(turned, chords)
            nearer = [wanted[name] for name in turned] < [wanted[name] for name in found]
            if new_cost < found_cost or (improved and new_cost == found_cost and nearer):
                found, found_cost, improved = turned, new_cost, True
        best = found
        cost, sides = _sides(best, chords)
    return Row(best, sides, tuple(_crossings(best, sides)))


def _together(order: Sequence[str], groups: Sequence[Collection[str]]) -> bool:
    place = {name: index for index, name in enumerate(order)}
    for group in groups:
        places = [place[name] for name in group]
        if max(places) - min(places) >= len(places):
            return False
    return True


def _spans(order: Sequence[str], chords: Collection[Pair]) -> dict[Pair, tuple[int, int]]:
    place = {name: index for index, name in enumerate(order)}
    return {(a, b): (min(place[a], place[b]), max(place[a], place[b])) for a, b in chords}


def _conflicts(order: Sequence[str], chords: Collection[Pair]) -> dict[Pair, list[Pair]]:
    """For each link those that it crosses on the same side."""
    spans = {pair: span for pair, span in _spans(order, chords).items() if span[1] - span[0] > 1}
    found: dict[Pair, list[Pair]] = {pair: [] for pair in spans}
    for (one, (a, b)), (other, (c, d)) in combinations(spans.items(), 2):
        if a < c < b < d or c < a < d < b:
            found[one].append(other)
            found[other].append(one)
    return found


def _sides(order: Sequence[str], chords: Mapping[Pair, float]) -> tuple[tuple[int, float], dict[Pair, int]]:
    """Sides for a given order, and what they cost: crossings, then the weight of what crosses."""
    conflicts = _conflicts(order, chords)
    sides: dict[Pair, int] = {}
    for start in conflicts:  # two colours, exact wherever two sides are enough
        stack = [(start, ABOVE)]
        while stack:
            pair, side = stack.pop()
            if pair not in sides:
                sides[pair] = side
                stack += [(other, -side) for other in conflicts[pair]]
    for _ in range(len(sides)):
        moved = False
        for pair, others in conflicts.items():
            here, there = (_cost(pair, others, sides, chords, side) for side in (sides[pair], -sides[pair]))
            if there < here:
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
