"""Links of a drawn host that neither its tree nor its GPU fabric has: between NUMA nodes, to further endpoints."""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.topology.draw.svg.gpu_fabric import Pair
from topocomm.topology.draw.svg.plot import BAR_HEIGHT, THIN, TRACK, Box, Plot
from topocomm.topology.draw.svg.svg_page import Point
from topocomm.topology.draw.svg.tracks import track_levels
from topocomm.topology.model import Link


def draw_rest(plot: Plot, links: Sequence[Link], y: float) -> float:
    """Draws the links; those between bars of one row may need room below everything.

    Args:
        plot: The host, with boxes for the ends of all links.
        links: What is left to draw.
        y: Where the host ends so far.

    Returns:
        Where it ends now.
    """
    pairs: dict[Pair, list[Link]] = {}
    for link in links:
        pairs.setdefault((min(link.src, link.dst), max(link.src, link.dst)), []).append(link)
    level = []
    for pair, own in pairs.items():
        a, b = plot.at[pair[0]], plot.at[pair[1]]
        if a.role == b.role == "bar" and a.corner[1] == b.corner[1]:
            level.append(pair)
        elif a is not b:
            plot.straight(a, b, own, (THIN, False))
    bars = {plot.at[name].corner: plot.at[name] for pair in level for name in pair}
    ends = [bars[corner] for corner in sorted(bars)]
    figures = {link[2:6] for pair in level for link in pairs[pair]}
    if len(ends) > 2 and len(level) == len(ends) * (len(ends) - 1) // 2 and len(figures) == 1:
        return _joint(plot, ends, [link for pair in level for link in pairs[pair]], y + 18)
    return _beside(plot, {pair: pairs[pair] for pair in level}, ends, y)


def _joint(plot: Plot, ends: Sequence[Box], links: Sequence[Link], y: float) -> float:
    """One bar for bars that are joined each to each."""
    left, right = ends[0].corner[0], ends[-1].corner[0] + ends[-1].size[0]
    words = ("between NUMA nodes, each to each", "each to each")
    plot.add(Box((), (left, y), (right - left, BAR_HEIGHT), "mesh", words))
    for end in ends:
        names = {device.id for device in end.devices}
        x = end.corner[0] + end.size[0] - 7
        own = [link for link in links if {link.src, link.dst} & names]
        plot.thin(((x, end.corner[1] + end.size[1]), (x, y)), own)
    return y + BAR_HEIGHT


def _beside(plot: Plot, pairs: dict[Pair, list[Link]], ends: Sequence[Box], y: float) -> float:
    """Straight between bars that are neighbours, else under everything."""
    order = [end.corner for end in ends]
    spans: dict[Pair, Point] = {}
    for pair, links in pairs.items():
        a, b = sorted((plot.at[name] for name in pair), key=lambda box: box.corner)
        if order.index(b.corner) - order.index(a.corner) == 1:
            middle = a.middle[1]
            plot.thin(((a.corner[0] + a.size[0], middle), (b.corner[0], middle)), links)
        else:
            spans[pair] = (a.corner[0] + a.size[0] - 10 - 5 * len(spans), b.corner[0] + 10 + 5 * len(spans))
    levels = track_levels(spans)
    for pair, (left, right) in spans.items():
        box = plot.at[pair[0]]
        foot, low = box.corner[1] + box.size[1], y + 10 + TRACK * levels[pair]
        plot.thin(((left, foot), (left, low), (right, low), (right, foot)), pairs[pair])
    return y + (14 + TRACK * max(levels.values()) if levels else 0.0)
