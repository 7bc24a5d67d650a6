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
    template, style, script = (parts.joinpath(f"html_page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    return template.format(title=escape(topology.name), style=style, script=script, svg=svg, notes=notes)
