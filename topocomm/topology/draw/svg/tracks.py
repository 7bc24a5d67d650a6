"""Rows for things that share a stretch of a line, so that none lies on another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from topocomm.topology.draw.svg.svg_page import Point

_Key = TypeVar("_Key")


def lanes(spans: Sequence[Point]) -> list[int]:
    """For each stretch (left, right) the lowest row where it touches none before it."""
    taken: list[list[Point]] = []
    found = []
    for left, right in spans:
        free = [i for i, row in enumerate(taken) if all(right < a or b < left for a, b in row)]
        lane = free[0] if free else len(taken)
        if not free:
            taken.append([])
        taken[lane].append((left, right))
        found.append(lane)
    return found


def track_levels(spans: Mapping[_Key, Point]) -> dict[_Key, int]:
    """For each stretch a level above all those inside it, and another one than those it overlaps."""
    levels: dict[_Key, int] = {}
    for key, (left, right) in sorted(spans.items(), key=lambda item: (item[1][1] - item[1][0], item[1])):
        inside = [levels[k] for k in levels if left <= spans[k][0] and spans[k][1] <= right]
        over = {levels[k] for k in levels if spans[k][0] < right and left < spans[k][1]}
        level = 1 + max(inside, default=-1)
        while level in over:
            level += 1
        levels[key] = level
    return levels
