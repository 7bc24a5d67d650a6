"""A page of shapes and words as one SVG file without scripts or fonts: the same bytes every time.

Shapes have classes, which `colours` gives their colours. Coordinates are pixels, to a tenth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import dist, hypot
from types import MappingProxyType
from typing import Any
from xml.sax import saxutils

from topocomm.topology.draw.svg.colours import style_sheet

Point = tuple[float, float]

LETTER = 0.56
"""Estimated width of a letter, as a part of its size."""
BOLD_LETTER = 0.68
NAME_LETTER = 0.64
"""The same for bold words, and for names that are mostly digits."""
_UNWRITABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Control characters, which no XML file can hold."""
_CLASSES = re.compile('class="([^"]*)"')


def fitted(words: str, size: float, room: float, *, letter: float = LETTER) -> str:
    """Return the words, cut where they would be wider than the room."""
    most = max(int(room / (letter * size)), 1)
    return words if len(words) <= most else words[: max(most - 1, 0)] + "…"


class Page:
    """Shapes in the order in which they are painted."""

    def __init__(
        self, title: str, description: str, *, live: bool = False, models: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.title, self.description, self.live = title, description, live
        self._models = models  # words on the model of a device, by its id
        self.items: list[str] = []
        self._numbers: dict[str, int] = {}

    def rect(self, corner: Point, size: Point, css: str, *, radius: float = 6) -> None:
        """Add a rectangle with round corners."""
        (x, y), (width, height) = corner, size
        self.items.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(radius)}" class="{css}"/>'
        )

    def boxes(self, corners: Sequence[Point], size: Point, css: str) -> None:
        """Add many rectangles of one size as one shape."""
        width, height = map(_n, size)
        parts = "".join(f"M{_n(x)} {_n(y)}h{width}v{height}h-{width}z" for x, y in corners)
        self.items.append(f'<path d="{parts}" class="{css}"/>')

    def area(self, points: Sequence[Point], css: str) -> None:
        """Add a filled polygon."""
        corners = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.items.append(f'<polygon points="{corners}" class="{css}"/>')

    def models_of(self, ids: Iterable[str]) -> str:
        """Return what is known of the models of devices beyond their names, a line each with its break before it."""
        known = dict.fromkeys(self._models[name] for name in ids if name in self._models)
        return "".join(f"\n{words}" for words in known)

    @contextmanager
    def group(self, facts: str, ids: Iterable[str] = (), ends: Iterable[tuple[Any, ...]] = ()) -> Iterator[None]:
        """Group the shapes that are added within; viewers show the facts when pointed at them.

        A `live` page also says which devices (`ids`) or links (`ends`) they stand for: its script lights links up.
        """
        of = ""
        if self.live:
            at = " ".join(dict.fromkeys(self._number(name) for name in ids))
            to = " ".join(dict.fromkeys("-".join(sorted(map(self._number, pair[:2]))) for pair in ends))
            of = (f' data-at="{at}"' if at else "") + (f' data-to="{to}"' if to else "")
        self.items.append(f'<g class="hot"{of}><title>{_escaped(facts)}</title>')
        yield
        self.items.append("</g>")

    def bend(self, points: Sequence[Point], css: str, *, width: float = 1.6, radius: float = 7) -> None:
        """Add a line along points, with round corners."""
        parts = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
        for before, corner, after in zip(points, points[1:], points[2:], strict=False):
            near = min(radius, dist(before, corner) / 2, dist(corner, after) / 2)
            (ax, ay), (bx, by) = _towards(corner, before, near), _towards(corner, after, near)
            parts.append(f"L{_n(ax)} {_n(ay)} Q{_n(corner[0])} {_n(corner[1])} {_n(bx)} {_n(by)}")
        parts.append(f"L{_n(points[-1][0])} {_n(points[-1][1])}")
        self.items.append(f'<path d="{" ".join(parts)}" class="{css} wire" stroke-width="{_n(width)}"/>')

    def arc(self, a: Point, b: Point, height: float, css: str, *, width: float = 1.6, head: bool = False) -> None:
        """Add a curve from a to b whose top is `height` above them, or below; with a head at b."""
        rise = 4 / 3 * height
        if head:
            up = -9.0 if height > 0 else 9.0
            points = " ".join(f"{_n(b[0] + dx)},{_n(b[1] + dy)}" for dx, dy in ((0, 0), (-4.5, up), (4.5, up)))
            self.items.append(f'<polygon points="{points}" class="{css} head"/>')
            b = b[0], b[1] + 0.7 * up
        self.items.append(
            f'<path d="M{_n(a[0])} {_n(a[1])} C{_n(a[0])} {_n(a[1] - rise)} {_n(b[0])} {_n(b[1] - rise)} '
            f'{_n(b[0])} {_n(b[1])}" class="{css} wire" stroke-width="{_n(width)}"/>'
        )

    def circle(self, centre: Point, radius: float, css: str) -> None:
        """Add a circle."""
        self.items.append(f'<circle cx="{_n(centre[0])}" cy="{_n(centre[1])}" r="{_n(radius)}" class="{css}"/>')

    def line(self, a: Point, b: Point, css: str, *, width: float = 1.6) -> None:
        """Add a straight line."""
        self.items.append(
            f'<line x1="{_n(a[0])}" y1="{_n(a[1])}" x2="{_n(b[0])}" y2="{_n(b[1])}" class="{css} wire" '
            f'stroke-width="{_n(width)}"/>'
        )

    def arrow(self, a: Point, bend: Point, b: Point, css: str, *, apart: float, both: bool, width: float = 1.6) -> None:
        """Add a bent curve between two circles of radius `apart`, with a head at its end, or at both."""
        long = 6.0 if width < 2 else 9.0
        start, end = _towards(a, bend, apart + long if both else apart), _towards(b, bend, apart + long)
        self.items.append(
            f'<path d="M{_n(start[0])} {_n(start[1])} Q{_n(bend[0])} {_n(bend[1])} {_n(end[0])} {_n(end[1])}" '
            f'class="{css} wire" stroke-width="{_n(width)}"/>'
        )
        for tip, back in [(_towards(b, bend, apart), end)] + [(_towards(a, bend, apart), start)] * both:
            dx, dy = tip[0] - back[0], tip[1] - back[1]
            left, right = (back[0] - dy / 2, back[1] + dx / 2), (back[0] + dy / 2, back[1] - dx / 2)
            points = " ".join(f"{_n(x)},{_n(y)}" for x, y in (tip, left, right))
            self.items.append(f'<polygon points="{points}" class="{css} head"/>')

    def text(self, at: Point, words: str, css: str = "ink", *, size: float = 12, anchor: str = "start") -> None:
        """Add words in one line, `at` their baseline."""
        self.items.append(
            f'<text x="{_n(at[0])}" y="{_n(at[1])}" class="{css} words" font-size="{_n(size)}" '
            f'text-anchor="{anchor}">{_escaped(words)}</text>'
        )

    def upright(self, at: Point, words: str, css: str = "ink", *, size: float = 12) -> None:
        """Add words that run upwards from `at`."""
        self.items.append(
            f'<text x="{_n(at[0])}" y="{_n(at[1])}" class="{css} words" font-size="{_n(size)}" '
            f'transform="rotate(-90 {_n(at[0])} {_n(at[1])})">{_escaped(words)}</text>'
        )

    def _number(self, name: str) -> str:
        return str(self._numbers.setdefault(name, len(self._numbers)))

    def render(self, width: float, height: float) -> str:
        """Return the file."""
        used = {name for item in self.items for own in _CLASSES.findall(item) for name in own.split()}
        name = saxutils.quoteattr(_UNWRITABLE.sub("\ufffd", self.title))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
                f'viewBox="0 0 {_n(width)} {_n(height)}" role="img" aria-label={name}>',
                f"<title>{_escaped(self.title)}</title>",
                f"<desc>{_escaped(self.description)}</desc>",
                f"<style>{style_sheet(used)}</style>",
                f'<rect x="0" y="0" width="{_n(width)}" height="{_n(height)}" class="paper"/>',
                *self.items,
                "</svg>",
                "",
            ]
        )


def _escaped(words: str) -> str:
    return saxutils.escape(_UNWRITABLE.sub("\ufffd", words))


def _towards(a: Point, b: Point, distance: float) -> Point:
    length = hypot(b[0] - a[0], b[1] - a[1]) or 1.0
    return a[0] + (b[0] - a[0]) * distance / length, a[1] + (b[1] - a[1]) * distance / length


def _n(value: float) -> str:
    """A number to a tenth, without a trailing zero."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"
