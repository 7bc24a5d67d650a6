"""The picture of docs/concepts/energy.md: the energy of docs/examples/energy.py and the weights of its keys.

python -m tools.energy_picture

draws docs/concepts/energy.svg from what the example computes on three ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np

import topocomm
from attention.energy import attention_from_energy, value_covariance

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/concepts/energy.svg"
EXAMPLE = run_path(str(ROOT / "docs/examples/energy.py"), run_name="energy")
SCORES, VALUES, PROBES, ZERO = (EXAMPLE[name] for name in ("SCORES", "VALUES", "PROBES", "ZERO"))


def draw() -> str:
    """Return the SVG."""
    energy = topocomm.run_local(EXAMPLE["energies"], ranks=3)[0]
    first_row = (EXAMPLE["q"][:, :, :1], EXAMPLE["k"], EXAMPLE["v"])
    slope, curvature = (
        derivative(*first_row, spec=EXAMPLE["SPEC"]).item() for derivative in (attention_from_energy, value_covariance)
    )
    return page(energy_panel(energy, slope, curvature), weights_panel(slope, curvature))


def weights(probe: float) -> Any:
    """Which key was meant: softmax of the scores, tilted by the probe."""
    tilted = np.exp(SCORES + probe * VALUES)
    return tilted / tilted.sum()


def energy_panel(energy: Any, slope: float, curvature: float) -> Panel:
    """The energy above the line of every key, with its tangent and parabola at 0."""
    panel = Panel((52, 400), (-3, 3, 0, 6.2), "the energy F(ζ)")
    for number, (score, value) in enumerate(zip(SCORES, VALUES, strict=True), 1):
        ends = sorted([-3.0, 3.0] if value == 0 else np.clip([-score / value, 3 * np.sign(value)], -3, 3))
        panel.curve(ends, [score + value * x for x in ends], "key")
        label = (-2.85, 2.2) if value < 0 else (3.06, score + 3 * value - 0.1)
        panel.words(label, f"key {number}", "soft")
    near = (PROBES > -2.6) & (PROBES < 2.3)
    panel.curve([-3, 3], energy[ZERO] + slope * np.array([-3, 3]), "mean dashed")
    parabola = energy[ZERO] + slope * PROBES + curvature * PROBES**2 / 2
    panel.curve(PROBES[near], parabola[near], "spread dotted")
    panel.curve(PROBES, energy, "energy")
    panel.dot((0, energy[ZERO]))
    for row, (css, words) in enumerate(
        [
            ("energy", "F(ζ) = ln Σ exp(score + ζ value)"),
            ("mean dashed", f"tangent at 0: slope {slope:.3f} = attention"),
            ("spread dotted", f"parabola at 0: curvature {curvature:.3f} = variance"),
            ("key", "a key alone: score + ζ value"),
        ]
    ):
        panel.legend(row, css, words)
    for x in range(-3, 4):
        panel.words((x, 0), f"{x}", "soft", anchor="middle", down=18)
    for y in range(0, 7, 2):
        panel.words((-3, y), f"{y}", "soft", anchor="end", across=-10, down=4)
    panel.words((0, 0), "probe ζ", "soft", anchor="middle", down=36)
    return panel


def weights_panel(slope: float, curvature: float) -> Panel:
    """The weights of the keys at two probes, with mean and deviation at the first."""
    panel = Panel((520, 340), (-1.6, 2.6, 0, 0.8), "which key was meant")
    for side, probe, css in ((-0.2, 0, "bar"), (0.2, 1, "bar tilted")):
        for value, weight in zip(VALUES, weights(probe), strict=True):
            panel.bar(value + side, weight, css)
            panel.words((value + side, weight), f"{weight:.2f}", "soft small", anchor="middle", down=-5)
    for number, value in enumerate(VALUES, 1):
        panel.words((value, 0), f"key {number}", "soft", anchor="middle", down=18)
        panel.words((value, 0), f"value {value:.0f}", "soft", anchor="middle", down=34)
    low, high = slope - curvature**0.5, slope + curvature**0.5
    panel.curve([low, high], [0.68, 0.68], "spread")
    panel.dot((slope, 0.68))
    panel.words((slope, 0.68), f"at ζ = 0: mean {slope:.3f} ± √{curvature:.3f}", "ink", anchor="middle", down=-10)
    panel.legend(0, "bar", "weight at ζ = 0: softmax of the scores", high=11)
    panel.legend(1, "bar tilted", f"weight at ζ = 1: mean {weights(1) @ VALUES:.3f} = slope of F there", high=11)
    return panel


class Panel:
    """Axes of a picture: shapes are given in numbers and drawn in pixels."""

    def __init__(self, pixels: tuple[int, int], numbers: tuple[float, float, float, float], title: str) -> None:
        (self.x, self.width), self.numbers = pixels, numbers
        self.top, self.bottom = 124, 400
        self.shapes = [f'<text x="{self.x}" y="28" class="ink title">{title}</text>']
        self.shapes.append(f'<path d="M{self.x} {self.bottom}h{self.width}" class="axis"/>')

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        first, last, low, high = self.numbers
        right, up = (x - first) / (last - first), (y - low) / (high - low)
        return self.x + self.width * right, self.bottom - (self.bottom - self.top) * up

    def curve(self, xs: Iterable[float], ys: Iterable[float], css: str) -> None:
        """A line through points."""
        points = " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in zip(xs, ys, strict=True))
        self.shapes.append(f'<polyline points="{points}" class="line {css}"/>')

    def dot(self, where: tuple[float, float]) -> None:
        """A point."""
        self.shapes.append('<circle cx="{:.1f}" cy="{:.1f}" r="4.5" class="dot"/>'.format(*self.at(*where)))

    def bar(self, x: float, height: float, css: str) -> None:
        """A bar from 0, its middle at x."""
        (a, top), (b, bottom) = self.at(x - 0.18, height), self.at(x + 0.18, 0)
        size = f'width="{b - a:.1f}" height="{bottom - top:.1f}"'
        self.shapes.append(f'<rect x="{a:.1f}" y="{top:.1f}" {size} class="{css}"/>')

    def words(
        self, where: tuple[float, float], words: str, css: str, *, anchor: str = "start", across: int = 0, down: int = 0
    ) -> None:
        """Words beside a point, that many pixels off."""
        x, y = self.at(*where)
        place = f'x="{x + across:.1f}" y="{y + down:.1f}" text-anchor="{anchor}"'
        words = words.replace("-", "\N{MINUS SIGN}")
        self.shapes.append(f'<text {place} class="{css}">{words}</text>')

    def legend(self, row: int, css: str, words: str, *, high: int = 0) -> None:
        """What a line, or a bar so many pixels high, stands for."""
        y = 50 + 19 * row
        if high:
            self.shapes.append(f'<rect x="{self.x}" y="{y - high / 2}" width="26" height="{high}" class="{css}"/>')
        else:
            self.shapes.append(f'<path d="M{self.x} {y}h26" class="line {css}"/>')
        self.shapes.append(f'<text x="{self.x + 34}" y="{y + 4.5}" class="ink">{words}</text>')


COLOURS = {  # on light, on dark
    "paper": ("#ffffff", "#14181f"),
    "ink": ("#1b2330", "#e8ecf2"),
    "soft": ("#5b6472", "#a7b0be"),
    "energy": ("#1d5fc2", "#74a9ff"),
    "mean": ("#b35900", "#f0b04d"),
    "spread": ("#7a45b5", "#b794f0"),
    "key": ("#9aa3b0", "#6b7686"),
}


def page(*panels: Panel) -> str:
    """The whole file; it paints its own background, so it can be read on any."""
    styles = [
        "text{font:13px system-ui,-apple-system,'Segoe UI','DejaVu Sans',Arial,sans-serif}.small{font-size:12px}"
        ".title{font-size:16px;font-weight:600}.line{fill:none;stroke-width:2}.line.energy{stroke-width:3.5}"
        ".line.key{stroke-width:1.5}.dashed{stroke-dasharray:8 5}.dotted{stroke-dasharray:2 4;stroke-linecap:round;"
        "stroke-width:3}.axis{stroke-width:1}.bar.tilted{fill-opacity:.25;stroke-width:1.5}"
    ]
    for scheme in range(2):
        of = {name: both[scheme] for name, both in COLOURS.items()}
        rules = "".join(f".{name}{{fill:{of[name]}}}" for name in ("paper", "ink", "soft"))
        rules += "".join(f".line.{name}{{stroke:{of[name]}}}" for name in ("energy", "mean", "spread", "key"))
        rules += (
            f".axis{{stroke:{of['soft']}}}.dot{{fill:{of['mean']}}}.bar{{fill:{of['energy']};stroke:{of['energy']}}}"
        )
        styles.append(f"@media (prefers-color-scheme:dark){{{rules}}}" if scheme else rules)
    title = "An energy of four keys with its tangent at zero, and the weights of the keys"
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" width="880" height="450" viewBox="0 0 880 450" role="img">',
            f"<title>{title}</title>",
            f"<style>{''.join(styles)}</style>",
            '<rect width="880" height="450" class="paper"/>',
            *(shape for panel in panels for shape in panel.shapes),
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
