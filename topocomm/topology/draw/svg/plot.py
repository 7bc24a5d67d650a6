"""The parts of a drawn host: boxes, lines between them, tinted regions, all with coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from topocomm.topology.draw.svg.svg_page import Point
from topocomm.topology.model import Device, Link

HEADER = 30.0
MARGIN = 10.0
STRIP = 18.0
"""Beside the endpoints of a NUMA node, for its name."""
END_HEIGHT, NIC_HEIGHT, BAR_HEIGHT = 40.0, 34.0, 24.0
TRACK = 13.0
BOLD, THIN = 5.0, 1.4
"""Widths of the fastest link of the GPU fabric, and of all links that are not of it."""
LEAST_BOLD = 2.2


class Box(NamedTuple):
    """Something drawn as a rectangle; `role` is end, nic, bar or mesh."""

    devices: tuple[Device, ...]
    corner: Point
    size: Point
    role: str
    words: tuple[str, ...]

    @property
    def middle(self) -> Point:
        """Its centre."""
        return self.corner[0] + self.size[0] / 2, self.corner[1] + self.size[1] / 2


class Wire(NamedTuple):
    """A line through points; `links` are what it stands for, `heavy` is the fastest of the host's GPU fabric."""

    points: tuple[Point, ...]
    kind: str
    width: float
    links: tuple[Link, ...]
    heavy: bool = False
    words: str = ""
    """Said instead of the links' facts; such a line is dashed."""


class Region(NamedTuple):
    """A tinted rectangle behind the parts of one NUMA node."""

    corner: Point
    size: Point
    words: str


@dataclass
class Plot:
    """One host with coordinates from its upper left corner."""

    boxes: list[Box] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    at: dict[str, Box] = field(default_factory=dict)
    """By device."""
    size: Point = (0.0, 0.0)
    left_out: int = 0
    """Endpoints that have no room."""

    def add(self, box: Box) -> Box:
        """Takes in a box, which stands for its devices from now on."""
        self.boxes.append(box)
        self.at.update({device.id: box for device in box.devices})
        return box

    def straight(self, a: Box, b: Box, links: Sequence[Link], look: tuple[float, bool]) -> None:
        """From edge to edge: upright where one is above the other, else over a corner."""
        upper, lower = sorted((a, b), key=lambda box: box.corner[1])
        x = min(max(upper.middle[0], lower.corner[0] + 8), lower.corner[0] + lower.size[0] - 8)
        foot = upper.corner[1] + upper.size[1]
        if upper.corner[0] <= x <= upper.corner[0] + upper.size[0]:
            points: tuple[Point, ...] = ((x, foot), (x, lower.corner[1]))
        else:
            side = lower.corner[0] + (lower.size[0] if upper.middle[0] > lower.middle[0] else 0.0)
            x = upper.corner[0] + 8 if upper.middle[0] > lower.middle[0] else upper.corner[0] + upper.size[0] - 8
            points = ((x, foot), (x, lower.middle[1]), (side, lower.middle[1]))
        self.wires.append(Wire(points, links[0].kind, look[0], tuple(links), look[1]))

    def thin(self, points: Sequence[Point], links: Sequence[Link]) -> None:
        """A line that is not of the GPU fabric; none where there is no link."""
        if links:
            self.wires.append(Wire(tuple(points), links[0].kind, THIN, tuple(links)))


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
