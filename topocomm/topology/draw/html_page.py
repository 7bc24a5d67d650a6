"""A topology as one self-contained HTML file: the picture to move and zoom, facts of each part, and warnings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources

from topocomm.topology.draw.svg.machine_svg import picture
from topocomm.topology.model import Topology


def render(topology: Topology) -> str:
    """Return the file, ending in a newline."""
    page, width, height = picture(topology, live=True)
    return page_of(page.render(width, height), topology.name, topology.warnings)


def page_of(svg: str, title: str, warnings: Sequence[str] = ()) -> str:
    """Return the page around a picture, which a `live` Page rendered."""
    svg = re.sub(r' xmlns="[^"]*"| role="img"', "", svg, count=2).rstrip("\n")
    svg = svg.replace("<svg ", '<svg id="picture" tabindex="0" ', 1)
    parts = resources.files("topocomm.topology.draw")
    notes = "".join(f"<li>{escape(words)}</li>" for words in warnings)
    if notes:
        count = len(warnings)
        words = f"{count} note{'' if count == 1 else 's'} of the reader"
        notes = f'<details id="notes" open><summary>{words}</summary><ul>{notes}</ul></details>'
    template, style, script = (parts.joinpath(f"html_page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    return template.format(title=escape(title), style=style, script=script, svg=svg, notes=notes)
