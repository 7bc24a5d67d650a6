"""Pieces of HTML for notebooks: pictures that keep their colours to themselves, and tables in those of the page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape

from topocomm.topology.draw.names import counts
from topocomm.topology.draw.svg.machine_svg import render
from topocomm.topology.model import Topology


def image(svg: str, words: str) -> str:
    """Return an SVG file as an image, whose style sheet does not reach the page; it is light or dark as the viewer."""
    data = b64encode(svg.encode()).decode()
    style = "max-width:100%;height:auto"
    return f'<img alt="{escape(words)}" style="{style}" src="data:image/svg+xml;base64,{data}"/>'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table without colours of its own; numbers stand to the right."""
    head = "".join(f'<th style="text-align:left">{escape(word)}</th>' for word in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table>"


def _row(cells: Sequence[object]) -> str:
    texts = [(escape(str(cell)), str(cell).replace(",", "").replace(".", "").isdigit()) for cell in cells]
    sides = (f'<td style="text-align:{"right" if number else "left"}">{text}</td>' for text, number in texts)
    return f"<tr>{''.join(sides)}</tr>"


def html(topology: Topology) -> str:
    """Return a machine for a notebook: its picture."""
    return image(render(topology), f"{topology.name}: {counts(topology)}")
