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
    rank = {name: index for index, name in enumerate(ends)}
    cost, row = _row(tuple(ends), chords)
    tries = 0
    improved = cost > (0, 0.0)
    while improved and tries < MOST_TRIES:
        improved = False
        order, next_cost, next_row = row.order, cost, row
        for start, stop in combinations(range(len(ends) + 1), 2):
            if stop - start < 2 or tries >= MOST_TRIES:
                continue
            turned = (*order[:start], *reversed(order[start:stop]), *order[stop:])
            place = {name: index for index, name in enumerate(turned)}
            if any(max(own) - min(own) >= len(own) for own in ([place[name] for name in group] for group in groups)):
                continue
            tries += 1
            new_cost, new_row = _row(turned, chords)
            is_nearer = [rank[name] for name in turned] < [rank[name] for name in next_row.order]
            if new_cost < next_cost or (improved and new_cost == next_cost and is_nearer):
                next_cost, next_row, improved = new_cost, new_row, True
        cost, row = next_cost, next_row
    return row


def _row(order: tuple[str, ...], chords: Mapping[Pair, float]) -> tuple[tuple[int, float], Row]:
    """The row of an order, and its cost: crossings, then the weight of crossing links."""
    place = {name: index for index, name in enumerate(order)}
    spans = {pair: sorted((place[pair[0]], place[pair[1]])) for pair in chords}
    conflicts: dict[Pair, list[Pair]] = {pair: [] for pair, (a, b) in spans.items() if b - a > 1}
    for one, other in combinations(conflicts, 2):  # links that cross on the same side
        (a, b), (c, d) = spans[one], spans[other]
        if a < c < b < d or c < a < d < b:
            conflicts[one].append(other)
            conflicts[other].append(one)
    sides: dict[Pair, int] = {}
    for start in conflicts:  # a 2-colouring, exact where two sides suffice
        stack = [(start, ABOVE)]
        while stack:
            pair, side = stack.pop()
            if pair not in sides:
                sides[pair] = side
                stack += [(other, -side) for other in conflicts[pair]]

    def cost_of(pair: Pair, side: int) -> tuple[int, float]:
        crossed = [chords[other] for other in conflicts[pair] if sides[other] == side]
        return len(crossed), sum(weight * chords[pair] for weight in crossed)

    for _ in range(len(sides)):
        moved = False
        for pair in conflicts:
            if cost_of(pair, -sides[pair]) < cost_of(pair, sides[pair]):
                sides[pair], moved = -sides[pair], True
        if not moved:
            break
    crossings = [(a, b) for a, others in conflicts.items() for b in others if sides[a] == sides[b] and a < b]
    weight = round(sum(chords[a] * chords[b] for a, b in crossings), 6)
    sides |= {pair: STRAIGHT for pair in chords if pair not in conflicts}
    return (len(crossings), weight), Row(order, sides, tuple(crossings))
