"""The parts of a drawn host with coordinates: boxes, lines, tinted regions; and rows for what would overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from topocomm.topology.draw.svg.svg_page import Point
from topocomm.topology.model import Device, Link

HEADER = 30.0
MARGIN = 10.0
STRIP = 18.0
"""Width of the column for the name of a NUMA node."""
END_HEIGHT, NIC_HEIGHT, BAR_HEIGHT = 40.0, 42.0, 24.0
TRACK = 13.0
BOLD, THIN = 5.0, 1.4
"""Line widths of the GPU fabric's fastest link, and of links outside the fabric."""
LEAST_BOLD = 2.2
MOST_THIN = 3.2
"""Width of the fastest of several links of one kind outside the fabric."""


class Box(NamedTuple):
    """A rectangle; `role` is end, nic, bar or mesh."""

    devices: tuple[Device, ...]
    corner: Point
    size: Point
    role: str
    words: tuple[str, ...]

    @property
    def middle(self) -> Point:
        """Centre of the box."""
        return self.corner[0] + self.size[0] / 2, self.corner[1] + self.size[1] / 2


class Line(NamedTuple):
    """A line that stands for `links`; `heavy` marks the fastest links of the GPU fabric."""

    points: tuple[Point, ...]
    kind: str
    width: float
    links: tuple[Link, ...]
    heavy: bool = False
    words: str = ""
    """Facts of a line without links, which is dashed."""
    rise: float = 0.0
    """Height of a curve from end to end, 0 for straight pieces."""


class Region(NamedTuple):
    """A tinted rectangle behind the devices of one NUMA node."""

    corner: Point
    size: Point
    words: str


@dataclass
class Plot:
    """One host, with coordinates from its upper left corner."""

    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    at: dict[str, Box] = field(default_factory=dict)
    """Box by device id."""
    widths: dict[tuple[str, float], float] = field(default_factory=dict)
    """Line width by kind and GB/s of links outside the fabric, THIN where it has none."""
    size: Point = (0.0, 0.0)
    captions: list[tuple[Point, str]] = field(default_factory=list)
    """Words in the middle above a point."""
    left_out: int = 0
    """Number of endpoints without room."""

    def add(self, box: Box) -> Box:
        """Add a box and register it for its devices."""
        self.boxes.append(box)
        self.at.update({device.id: box for device in box.devices})
        return box

    def straight(self, a: Box, b: Box, links: Sequence[Link], look: tuple[float, bool]) -> None:
        """Add a line from edge to edge: upright where one box is above the other, else with a corner."""
        upper, lower = sorted((a, b), key=lambda box: box.corner[1])
        x = min(max(upper.middle[0], lower.corner[0] + 8), lower.corner[0] + lower.size[0] - 8)
        foot = upper.corner[1] + upper.size[1]
        if upper.corner[0] <= x <= upper.corner[0] + upper.size[0]:
            points: tuple[Point, ...] = ((x, foot), (x, lower.corner[1]))
        else:
            side = lower.corner[0] + (lower.size[0] if upper.middle[0] > lower.middle[0] else 0.0)
            x = upper.corner[0] + 8 if upper.middle[0] > lower.middle[0] else upper.corner[0] + upper.size[0] - 8
            points = ((x, foot), (x, lower.middle[1]), (side, lower.middle[1]))
        self.lines.append(Line(points, links[0].kind, look[0], tuple(links), look[1]))

    def thin(self, points: Sequence[Point], links: Sequence[Link]) -> None:
        """Add a line outside the GPU fabric; nothing without links."""
        if links:
            width = self.widths.get((links[0].kind, links[0].gb_per_s or 0.0), THIN)
            self.lines.append(Line(tuple(points), links[0].kind, width, tuple(links)))


_Key = TypeVar("_Key")


def ladder(rates: Iterable[float], low: float, high: float) -> dict[float, float]:
    """Return a line width for each rate: equal steps from `low` to `high`, so that unequal rates differ in looks."""
    ordered = sorted(set(rates))
    if len(ordered) < 2:
        return dict.fromkeys(ordered, high)
    return {rate: low + (high - low) * step / (len(ordered) - 1) for step, rate in enumerate(ordered)}


def free_rows(spans: Sequence[Point]) -> list[int]:
    """Return for each stretch (left, right) the lowest row where it touches none before it."""
    taken: list[list[Point]] = []
    rows = []
    for left, right in spans:
        free = (i for i, row in enumerate(taken) if all(right < a or b < left for a, b in row))
        rows.append(next(free, len(taken)))
        if rows[-1] == len(taken):
            taken.append([])
        taken[rows[-1]].append((left, right))
    return rows


def track_levels(spans: Mapping[_Key, Point]) -> dict[_Key, int]:
    """Return for each stretch a level above those inside it and different from those that overlap it."""
    levels: dict[_Key, int] = {}
    for key, (left, right) in sorted(spans.items(), key=lambda item: (item[1][1] - item[1][0], item[1])):
        inside = [levels[k] for k in levels if left <= spans[k][0] and spans[k][1] <= right]
        over = {levels[k] for k in levels if spans[k][0] < right and left < spans[k][1]}
        level = 1 + max(inside, default=-1)
        while level in over:
            level += 1
        levels[key] = level
    return levels
