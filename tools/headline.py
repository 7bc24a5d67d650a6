"""The chart at the head of the README: a merge and a whole job beside what people use instead.

python -m tools.headline

draws docs/pictures/headline.svg from docs/results/headline.json. Each number there is a median of the results page that
its panel names, where the machine, the command and the spread stand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "results" / "headline.json"
PICTURE = ROOT / "docs" / "pictures" / "headline.svg"
WIDTH, PANEL, NAMES, LONGEST = 800, 400, 150, 150
"""Pixels: the picture, one panel, the column of names, the longest bar."""
ROW, HEAD, TOP = 19, 26, 44
STYLE = """
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1b2330 }
.title { font-weight: 600; font-size: 15px } .group { font-weight: 600 } .soft { fill: #5b6472; font-size: 12px }
.ours { fill: #1f8a4c } .other { fill: #9aa4b2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e8ecf2 } .soft { fill: #a7b0be } .ours { fill: #4cc38a } .other { fill: #5d6878 }
}"""


class Bar(NamedTuple):
    """One measured way: its name, the time in the unit of its group, whether it is topocomm's."""

    name: str
    time: float
    ours: bool


def draw(panels: list[dict[str, Any]]) -> str:
    """Return the SVG of panels side by side, each with its title, source and groups of bars."""
    drawn = [_panel(panel, PANEL * place) for place, panel in enumerate(panels)]
    height = max(bottom for _, bottom in drawn)
    body = "\n".join(text for text, _ in drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img">\n<title>{escape("; ".join(panel["title"] for panel in panels))}</title>\n'
        f"<style>{STYLE}\n</style>\n{body}\n</svg>\n"
    )


def _panel(panel: dict[str, Any], left: int) -> tuple[str, int]:
    """Return a panel's SVG, and where it ends."""
    parts = [_text(left, 17, panel["title"], "title"), _text(left, 34, panel["below"], "soft")]
    down = TOP
    for group in panel["groups"]:
        bars = [Bar(name, time, name.startswith("topocomm")) for name, time in group["bars"]]
        most = max(bar.time for bar in bars)
        parts.append(_text(left, down + 17, group["name"], "group"))
        down += HEAD
        for bar in bars:
            long = max(2, round(LONGEST * bar.time / most))
            kind = "ours" if bar.ours else "other"
            parts.append(_text(left, down + 12, bar.name))
            parts.append(f'<rect class="{kind}" x="{left + NAMES}" y="{down}" width="{long}" height="14" rx="2"/>')
            parts.append(_text(left + NAMES + long + 6, down + 12, f"{bar.time:g} {group['unit']}"))
            down += ROW
    return "\n".join(parts), down + 8


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x}" y="{y}">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(json.loads(FIGURES.read_text())))
    print(PICTURE.relative_to(ROOT))
