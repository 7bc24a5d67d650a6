"""A topology as one self-contained HTML file: the picture to move and zoom, facts of each part, and warnings."""

from __future__ import annotations

import re
from html import escape
from importlib import resources

from topocomm.topology.draw.svg.machine_svg import picture
from topocomm.topology.model import Topology


def render(topology: Topology) -> str:
    """Return the file, ending in a newline."""
    page, width, height = picture(topology)
    svg = page.render(width, height)
    svg = re.sub(r' xmlns="[^"]*"| role="img"', "", svg, count=2).rstrip("\n")
    svg = svg.replace("<svg ", '<svg id="picture" tabindex="0" ', 1)
    parts = resources.files("topocomm.topology.draw")
    notes = "".join(f"<li>{escape(words)}</li>" for words in topology.warnings)
    if notes:
        count = len(topology.warnings)
        words = f"{count} note{'' if count == 1 else 's'} of the reader"
        notes = f'<details id="notes" open><summary>{words}</summary><ul>{notes}</ul></details>'
    return _PAGE.format(
        title=escape(topology.name),
        style=parts.joinpath("html_page.css").read_text("utf-8"),
        script=parts.joinpath("html_page.js").read_text("utf-8"),
        svg=svg,
        notes=notes,
    )


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main id="stage">
{svg}
<div id="buttons" role="toolbar" aria-label="View">
<button type="button" id="in" aria-label="Zoom in">+</button>
<button type="button" id="out" aria-label="Zoom out">&minus;</button>
<button type="button" id="fit">Fit</button>
</div>
<div id="facts" role="tooltip" hidden></div>
</main>
<p id="help">Drag to move, wheel to zoom, double click to fit; with keys: arrows, + and -, 0 to fit,
Tab for the facts of each part.</p>
{notes}
<script>
{script}</script>
</body>
</html>
"""
