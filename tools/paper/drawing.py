"""Pictures by matplotlib as SVG that are light or dark as the viewer is; matplotlib is needed here alone."""

from __future__ import annotations

import re
from io import StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from topocomm import TopocommError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHARACTERS = 16.5
"""Characters of the footer in an inch."""
PAPER, INK, SOFT, GRID = "#ffffff", "#1b2330", "#5b6472", "#d9dde3"
METHOD_COLOURS = {
    "ring": "#c2374a",
    "ring-partials": "#5b6472",
    "three-allreduce": "#b36b00",
    "tree": "#1f8a4c",
    "allgather": "#1d5fc2",
    "max-sum": "#7a45b5",
    "dcp": "#0b7a7d",
    "dcp-a2a": "#66701c",
    "helix": "#a3348c",
}
MARKERS = {
    "ring": "o", "ring-partials": "P", "three-allreduce": "s", "tree": "D", "allgather": "^", "max-sum": "v",
    "dcp": "<", "dcp-a2a": ">", "helix": "X",
}  # fmt: skip
"""Marks of methods, so that no picture needs its colours."""
_DARK = {
    PAPER: "#14181f", INK: "#e8ecf2", SOFT: "#a7b0be", GRID: "#2c333d",
    "#c2374a": "#f2777f", "#b36b00": "#f0b04d", "#1f8a4c": "#4cc38a", "#1d5fc2": "#74a9ff", "#7a45b5": "#b794f0",
    "#0b7a7d": "#4dc4c7", "#66701c": "#bccb5c", "#a3348c": "#ee8fd8",
}  # fmt: skip
"""Colour on dark by colour on light."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "topocomm",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "grid.color": GRID,
}


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels, row by row; sizes in inches.

    Raises:
        TopocommError: matplotlib is not installed.
    """
    try:
        from matplotlib import rcParams, use
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TopocommError(
            "tools.paper: drawing needs matplotlib; `pip install --group paper` in the folder of pyproject.toml "
            "(pip 25.1 or later), or leave --write out"
        ) from error
    use("svg")
    rcParams.update(_STYLE)
    figure = Figure(figsize=(width, height))
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def svg_text(figure: Figure, title: str, footer: str) -> str:
    """Return the SVG of a figure, with a title, and lines below that say what was assumed."""
    width, height = figure.get_size_inches()
    footer = "\n".join(
        wrapped for line in footer.split("\n") for wrapped in wrap(line, int(CHARACTERS * width)) or [""]
    )
    lines = footer.count("\n") + 1
    figure.text(0.012, 1 - 0.07 / height, title, fontsize=11.5, fontweight="bold", va="top")
    figure.text(0.012, 0.08 / height, footer, fontsize=7.8, color=SOFT, va="bottom", linespacing=1.35)
    figure.tight_layout(rect=(0.0, (0.14 + 0.155 * lines) / height, 1.0, 1 - 0.36 / height), h_pad=1.2, w_pad=1.2)
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    text = re.sub(r"'DejaVu Sans'", "system-ui, 'DejaVu Sans', Arial, sans-serif", out.getvalue())
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return text.replace("<defs>", f"<style>{dark_rules()}</style>\n <defs>", 1)


def dark_rules() -> str:
    """Return the style rules that give every colour its counterpart where the viewer is dark."""
    rules = (
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in _DARK.items()
        for what in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}"


def us_text(time_us: float, _: object = None) -> str:
    """Return a time with its unit, as axes have it."""
    if time_us < 1e3:
        return f"{time_us:g} us"
    return f"{time_us / 1e3:g} ms" if time_us < 1e6 else f"{time_us / 1e6:g} s"


def tokens_text(tokens: float, _: object = None) -> str:
    """Return a number of tokens, short."""
    return f"{tokens / 1e6:g}M" if tokens >= 1e6 else f"{tokens / 1e3:g}k"


def bytes_text(count: float, _: object = None) -> str:
    """Return a number of bytes with its decimal unit, short."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count:g} B"
