"""A plan as a picture: its figures, its tree on the machine, its rounds over time, and what was proved.

Where parts of the value take trees of their own, each tree is drawn in a colour of its own.
"""

from __future__ import annotations

from math import hypot
from textwrap import wrap

from topocomm.planning.plan import Plan
from topocomm.planning.report.plan_text import least_rounds
from topocomm.planning.report.plan_trees import PartTree, focus, part_trees
from topocomm.planning.report.round_panels import ring_places
from topocomm.planning.report.timeline_svg import draw_timeline
from topocomm.planning.report.tree_svg import draw_tree
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Transfer
from topocomm.topology.catalog.gpu_models import gpu_models
from topocomm.topology.draw.names import plural, rounded
from topocomm.topology.draw.svg.colours import hue_class
from topocomm.topology.draw.svg.svg_page import LETTER, Page, Point, fitted
from topocomm.topology.model import Topology

WIDTH = 800.0
EDGE = 20.0
MOST_RANKS = 24
"""Ranks of a plan whose trees are drawn beside each other."""
TREE_COLUMNS, TREE_ROWS = 4, 3
"""Panels of trees, at most."""


def dumps(plan: Plan, topology: Topology) -> str:
    """Return the picture as an SVG file, ending in a newline."""
    page, y = picture(plan, topology, PathFinder(topology))
    return page.render(WIDTH, y)


def picture(plan: Plan, topology: Topology, paths: PathFinder, *, live: bool = False) -> tuple[Page, float]:
    """Return the picture and its bottom; `live` for a page that has a script."""
    page = Page(f"{plan.title} on {topology.name}", plan.summary(), live=live, models=gpu_models(topology))
    y = _head(page, plan, topology)
    trees, moves = drawn_trees(plan), list[Transfer]()
    if trees:
        y = _part_trees(page, trees, len(plan.ranks), y)
    else:
        tree = focus(plan)
        moves = tree.moves
        y = draw_tree(page, plan, paths, tree, (EDGE, y), WIDTH - 2 * EDGE)
    y = draw_timeline(page, plan, paths, (EDGE, y + 12), WIDTH - 2 * EDGE, moves)
    return page, _proof(page, plan, y + 8)


def drawn_trees(plan: Plan) -> list[PartTree]:
    """Return the trees of parts of the value, each drawn in a colour of its own; else rounds have the colours."""
    return part_trees(plan) if len(plan.ranks) <= MOST_RANKS else []


def _head(page: Page, plan: Plan, topology: Topology) -> float:
    """The title, and the plan's figures in large digits."""
    f, c = plan.figures, plan.certificate
    page.text((EDGE, 36), fitted(page.title, 20, WIDTH - 2 * EDGE), "ink bold", size=20)
    what = f"{plural(len(plan.ranks), 'rank')}, {_bytes(plan.payload_bytes)}"
    if plan.objective == "throughput" and f.throughput_gb_per_s is not None:
        first = (f"{rounded(f.throughput_gb_per_s)} GB/s", f"pipelined, {what}")
    elif plan.payload_bytes:
        first = (f"{f.predicted_us:.2f} us", f"predicted, {what}")
    else:
        first = (f"{f.alpha_us:.2f} us", f"without bytes, {what}")
    at_most = f"{'below ' * (plan.objective == 'throughput')}the best possible, at most"
    bound = f"{c.gap:.2f} x" if c.gap >= 1.005 else "optimal"
    stats = [
        first,
        (bound, f"no plan beats it ({plan.objective})" if c.gap < 1.005 else at_most),
        (plural(f.rounds, "round"), f"{f.transfers:,} messages, {plan.algorithm}"),
    ]
    x = EDGE
    for number, words in stats:
        page.text((x, 70), number, "ink bold", size=20)
        page.text((x, 87), words, "soft", size=11.5)
        x += max(len(number) * 20 * 0.68, len(words) * 11.5 * LETTER) + 30
    return 104.0


def _bytes(count: int) -> str:
    return f"{count:,} B" if count else "no bytes"


def _part_trees(page: Page, trees: list[PartTree], ranks: int, y: float) -> float:
    """One panel a tree: its ranks in a ring, its edges in the colour of the tree."""
    words = f"{len(trees)} trees carry the value, each a part of it; a ring marks the root"
    page.text((EDGE, y + 14), words, "ink bold", size=13)
    y += 24
    places, size = ring_places(ranks)
    columns = max(min(TREE_COLUMNS, int((WIDTH - 2 * EDGE + 10) // (size[0] + 10))), 1)
    wide = (WIDTH - 2 * EDGE + 10) / columns - 10
    tall = size[1] - 30
    shown = trees[: TREE_ROWS * columns]
    for index, tree in enumerate(shown):
        corner = EDGE + index % columns * (wide + 10), y + index // columns * (tall + 10)
        page.rect(corner, (wide, tall), "panel")
        page.text((corner[0] + 10, corner[1] + 17), f"tree {index + 1}: {tree.share:.1%} of the rows", "soft", size=11)
        at = {r: (x + corner[0] + (wide - size[0]) / 2, z + corner[1] - 26) for r, (x, z) in places.items()}
        _tree(page, tree, at, hue_class(index))
    y += ((len(shown) + columns - 1) // columns) * (tall + 10)
    if len(trees) > len(shown):
        page.text((EDGE, y + 10), f"and {len(trees) - len(shown)} more trees", "soft")
        y += 16
    return y


def _tree(page: Page, tree: PartTree, at: dict[int, Point], css: str) -> None:
    for a, b in tree.edges:
        (ax, ay), (bx, by) = at[a], at[b]
        if hypot(ax - bx, ay - by):
            page.line((ax, ay), (bx, by), css, width=2.4)
    for rank, centre in at.items():
        page.circle(centre, 10, "device")
        if rank == tree.root:
            page.circle(centre, 13, f"{css} wire edge")
        page.text((centre[0], centre[1] + 4), str(rank), size=11, anchor="middle")


def _proof(page: Page, plan: Plan, y: float) -> float:
    """What was proved of the plan, what bounds it, and what it assumes."""
    c = plan.certificate
    bounds = [least_rounds(plan), f"time >= {c.alpha_lower_bound_us:.2f} us"]
    if c.predicted_lower_bound_us is not None:
        bounds.append(f"with these bytes >= {c.predicted_lower_bound_us:.2f} us")
    if c.throughput_upper_bound_gb_per_s is not None:
        bounds.append(f"throughput <= {rounded(c.throughput_upper_bound_gb_per_s)} GB/s")
    proved = [name.replace("_", " ") for name in vars(plan.proof) if getattr(plan.proof, name)]
    notes = [
        f"No plan of {plural(plan.ports, 'port')} beats {', '.join(bounds)}. "
        f"This one: {c.gap:.3f} x the {plan.objective} bound ({c.argument}).",
        f"Proved: {', '.join(proved)}.",
        *([f"Calls take {plan.native_call} instead, predicted {plan.call_us:.2f} us."] if plan.native_call else []),
        *(f"Assumed: {note}." for note in plan.assumed),
    ]
    letters = int((WIDTH - 2 * EDGE) / (11.5 * LETTER))
    for line in (line for note in notes for line in wrap(note, letters)):
        page.text((EDGE, y + 12), line, "soft", size=11.5)
        y += 16
    return y + 14
