"""Plots as SVG: measured times as dots, predicted ones as lines, over bytes, both logarithmic; light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

from topocomm.calibration.error_report import RowError

WIDTH, HEIGHT, COLUMNS = 330, 250, 3
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 34, 34
COLORS: tuple[tuple[str, str], ...] = (
    ("#1d5fc2", "#7fb0ff"),
    ("#b36b00", "#ffb84d"),
    ("#1f8a4c", "#63d391"),
    ("#7a45b5", "#c79bff"),
)
COLORS += (("#c2374a", "#ff8896"), ("#0b7a7d", "#4fd0d3"))
"""Colours of series on light and on dark paper."""


class Panel(NamedTuple):
    """One plot: a title, and series of rows by name."""

    title: str
    series: dict[str, list[RowError]]


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Return a picture of panels in rows of three."""
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width, height = columns * WIDTH, rows * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        "<desc>dots: measured; lines: predicted; filled dots were fitted, empty ones were not</desc>",
        _style(),
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number % columns * WIDTH},{number // columns * HEIGHT})">')
        parts += _panel(panel)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _style() -> str:
    light = "".join(f".s{i}{{stroke:{a};color:{a}}}" for i, (a, _) in enumerate(COLORS))
    dark = "".join(f".s{i}{{stroke:{b};color:{b}}}" for i, (_, b) in enumerate(COLORS))
    return (
        "<style>text{font:11px system-ui,'DejaVu Sans',Arial,sans-serif;fill:#1b2330}.paper{fill:#ffffff}"
        ".axis{stroke:#5b6472;stroke-width:1;fill:none}.grid{stroke:#d9dde3;stroke-width:.6}.line{fill:none;stroke-width:1.5}"
        f".dot{{fill:currentColor;stroke-width:1}}.open{{fill:none;stroke-width:1}}.bold{{font-weight:600}}{light}"
        "@media (prefers-color-scheme:dark){text{fill:#e6e9ee}.paper{fill:#14181f}.axis{stroke:#98a1ae}"
        ".grid{stroke:#2c333d}"
        f"{dark}}}</style>"
    )


def _panel(panel: Panel) -> list[str]:
    rows = [row for own in panel.series.values() for row in own]
    sizes = [max(row.row.payload_bytes, 1) for row in rows]
    times = [time for row in rows for time in (row.row.time_us, row.predicted_us)]
    x = _Scale(min(sizes), max(sizes), LEFT, WIDTH - RIGHT)
    y = _Scale(min(times), max(times), HEIGHT - BOTTOM, TOP)
    parts = [f'<text class="bold" x="{LEFT}" y="14">{escape(panel.title)}</text>']
    for power in y.powers():
        at = y(10.0**power)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{_time(10.0**power)}</text>')
    for power in range(0, 40, 10):
        for name, size in ((_size(2**power), 2**power), (_size(32 * 2**power), 32 * 2**power)):
            if min(sizes) <= size <= max(sizes):
                at = x(size)
                parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
                parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{name}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    legend_x = float(LEFT)
    for number, (name, own) in enumerate(panel.series.items()):
        color = f"s{number % len(COLORS)}"
        points = [(x(max(row.row.payload_bytes, 1)), y(row.predicted_us)) for row in own]
        way = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts.append(f'<path class="line {color}" d="M{way}"/>')
        for row in own:
            kind = "dot" if row.fitted else "open"
            at_x, at_y = x(max(row.row.payload_bytes, 1)), y(row.row.time_us)
            parts.append(f'<circle class="{kind} {color}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="2.2"/>')
        parts.append(f'<circle class="dot {color}" cx="{legend_x + 4:.0f}" cy="24" r="3"/>')
        parts.append(f'<text x="{legend_x + 11:.0f}" y="28">{escape(name)}</text>')
        legend_x += 20 + 6.2 * len(name)
    return parts


class _Scale:
    """A logarithmic scale from values to places."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = log10(low) - 0.03, log10(high) + 0.03
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        return self.start + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def powers(self) -> range:
        """Powers of ten on the scale."""
        return range(floor(self.low) + 1, floor(self.high) + 1)


def _time(time_us: float) -> str:
    return f"{time_us:g} us" if time_us < 1e3 else f"{time_us / 1e3:g} ms" if time_us < 1e6 else f"{time_us / 1e6:g} s"


def _size(nbytes: int) -> str:
    for unit, name in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}B"
    return f"{nbytes} B"
