"""A plan as one HTML file: its picture to move and zoom, with a panel for each round below."""

from __future__ import annotations

from topocomm.planning.plan import Plan
from topocomm.planning.report.plan_svg import WIDTH, drawn_trees, picture
from topocomm.planning.report.round_panels import draw_rounds
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.draw.html_page import page_of
from topocomm.topology.model import Topology


def dumps(plan: Plan, topology: Topology) -> str:
    """Return the file, ending in a newline."""
    paths = PathFinder(topology)
    page, y = picture(plan, topology, paths, live=True)
    y = draw_rounds(page, plan, paths, y + 6, WIDTH, are_hued=not drawn_trees(plan))
    return page_of(page.render(WIDTH, y + 20), page.title)
