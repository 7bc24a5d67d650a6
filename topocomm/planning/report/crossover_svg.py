"""A picture of predicted time over payload: the candidates that are best for some size, and where they change."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, floor, log10

from topocomm.planning.report.crossover import Size, changes, human
from topocomm.topology.draw.svg.svg_page import KIND_COLOURS, Page, fitted

WIDTH, HEIGHT = 860.0, 520.0
LEFT, RIGHT, TOP, BOTTOM = 80.0, 200.0, 70.0, 60.0
COLOURS = tuple(kind for kind in KIND_COLOURS if kind != "xgmi-cpu")


def dumps(sizes: Sequence[Size], machine: str) -> str:
    """One SVG document: both axes are logarithmic; a dot marks the best of each size."""
    first = sizes[0].plan
    title = f"{first.collective.name} {first.operator}, {len(first.ranks)} ranks on {machine}"
    page = Page(title, "predicted time over payload bytes, a line per algorithm that is best for some size")
    page.text((LEFT, 30), fitted(title, 16, WIDTH - LEFT - 20), "ink bold", size=16)
    page.text((LEFT, 50), f"predicted time over payload, model {first.port_model}", "soft")
    names = list(dict.fromkeys(name for name, _, _ in changes(sizes)))
    lines = {name: _line(sizes, name) for name in names}
    frame = _Frame([point for line in lines.values() for point in line])
    frame.draw(page, [size.plan.payload_bytes for size in sizes])
    for index, name in enumerate(names):
        css = COLOURS[index % len(COLOURS)]
        for a, b in pairwise(lines[name]):
            page.line(frame.at(a), frame.at(b), css, width=2)
        y = TOP + 20 + 22 * index
        page.line((WIDTH - RIGHT + 20, y - 4), (WIDTH - RIGHT + 44, y - 4), css, width=3)
        page.text((WIDTH - RIGHT + 52, y), fitted(name, 12, RIGHT - 60))
    for size in sizes:
        css = COLOURS[names.index(size.plan.algorithm) % len(COLOURS)]
        page.circle(frame.at((size.plan.payload_bytes, size.plan.figures.predicted_us)), 3.5, f"{css} head")
    return page.render(WIDTH, HEIGHT)


def _line(sizes: Sequence[Size], name: str) -> list[tuple[float, float]]:
    """(bytes, us) of one algorithm wherever it was a candidate."""
    return [
        (float(size.plan.payload_bytes), rival.predicted_us)
        for size in sizes
        for rival in size.rivals
        if rival.algorithm == name and rival.predicted_us > 0
    ]


class _Frame:
    """Logarithmic axes around points."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        xs, ys = [log10(x) for x, _ in points] or [0.0], [log10(y) for _, y in points] or [0.0]
        self.low = (min(xs), floor(min(ys)))
        self.high = (max(max(xs), self.low[0] + 1e-3), max(ceil(max(ys)), self.low[1] + 1))

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a point is on the page."""
        x = (log10(point[0]) - self.low[0]) / (self.high[0] - self.low[0])
        y = (log10(point[1]) - self.low[1]) / (self.high[1] - self.low[1])
        return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)

    def draw(self, page: Page, sizes: Sequence[int]) -> None:
        """The axes: a line for every power of ten us, and some of the sizes."""
        for power in range(int(self.low[1]), int(self.high[1]) + 1):
            x, y = self.at((10.0 ** self.low[0], 10.0**power))
            page.line((x, y), (WIDTH - RIGHT, y), "other", width=0.4)
            page.text((x - 8, y + 4), _time(power), "soft", anchor="end")
        step = max(1, ceil(len(sizes) / 8))
        for size in sizes[::step]:
            x, y = self.at((float(size), 10.0 ** self.low[1]))
            page.line((x, y), (x, y + 5), "other", width=1)
            page.text((x, y + 22), human(size), "soft", anchor="middle")


def _time(power: int) -> str:
    """10^power us in the largest unit in which it is a whole number, or in us."""
    for above, unit in ((6, "s"), (3, "ms")):
        if power >= above:
            return f"{10 ** (power - above)} {unit}"
    return f"{10.0**power:g} us"
