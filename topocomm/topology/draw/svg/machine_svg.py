"""A topology as a picture: its hosts, the network between them, and a legend.

Of many hosts one of each kind is drawn whole, and all of them as rows (`cluster_svg`).
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

from topocomm.topology.catalog.gpu_models import gpu_models
from topocomm.topology.draw.device_tree import FABRICS, Host, alike, split_hosts
from topocomm.topology.draw.names import counts, kind_words, plural, ranges, rate_words
from topocomm.topology.draw.svg.cluster_svg import draw_cluster
from topocomm.topology.draw.svg.colours import kind_class
from topocomm.topology.draw.svg.host_svg import Cable, paint_host, plot_host
from topocomm.topology.draw.svg.network_svg import draw_network
from topocomm.topology.draw.svg.plot import Plot
from topocomm.topology.draw.svg.svg_page import LETTER, Page, fitted
from topocomm.topology.model import Link, Topology

EDGE = 20.0
WIDTH = 1280.0
"""Largest width of hosts side by side, in pixels."""
LEAST_WIDTH = 720.0
FEW_HOSTS, MOST_KINDS, MANY_HOSTS = 2, 4, 16
"""Hosts that are all drawn whole, kinds of which one is where there are more, and hosts that get a wide page."""
MOST_ENDS = 32
MOST_NOTES = 3


class _Placed(NamedTuple):
    host: Host
    plot: Plot
    title: str
    corner: tuple[float, float]


def render(topology: Topology) -> str:
    """Return the picture as an SVG file that ends in a newline, with the reader's warnings below."""
    page, width, y = picture(topology)
    for words in topology.warnings[:MOST_NOTES]:
        for line in _wrapped(f"Note: {words}", width):
            page.text((EDGE, y), line, "soft")
            y += 17
    if len(topology.warnings) > MOST_NOTES:
        page.text((EDGE, y), f"{plural(len(topology.warnings) - MOST_NOTES, 'more note')}: --format json", "soft")
        y += 17
    return page.render(width, y)


def picture(topology: Topology, *, live: bool = False) -> tuple[Page, float, float]:
    """Return the picture without the warnings, its width, and its bottom; `live` with what an HTML page needs."""
    page = Page(topology.name, counts(topology), live=live, models=gpu_models(topology))
    hosts = split_hosts(topology)
    kinds = alike(hosts, outward=False)
    each = len(hosts) <= FEW_HOSTS or len(kinds) == len(hosts) <= MOST_KINDS
    rows, width = _placed([[host] for host in hosts] if each else kinds[:MOST_KINDS])
    width = width if each else max(width, WIDTH if len(hosts) > MANY_HOSTS else 0.0)
    page.text((EDGE, 34), fitted(f"{topology.name} ({topology.source})", 18, width - 2 * EDGE), "ink bold", size=18)
    y = 54.0
    for words in _wrapped(counts(topology), width):
        page.text((EDGE, y), words, "soft")
        y += 17
    drawn_links: list[tuple[Link, float]] = []
    cables: list[Cable] = []
    bottom = y
    for placed in (placed for row in rows for placed in row):
        corner = (placed.corner[0], placed.corner[1] + y)
        foot = corner[1] + placed.plot.size[1]
        bottom = max(bottom, foot)
        own = paint_host(page, placed.plot, placed.host, corner)
        for cable in own if not each or len(rows) > 1 else []:
            page.line(cable.at, (cable.at[0], foot), "network")
        cables += own
        page.text((corner[0] + 12, corner[1] + 19), placed.title, "ink bold")
        drawn_links += [(link, line.width) for line in placed.plot.lines for link in line.links]
    if not each:
        bottom, cables = draw_cluster(page, hosts, (EDGE, bottom + 12), width - 2 * EDGE)
    y, network = draw_network(
        page, topology, cables if len(rows) == 1 or not each else [], (EDGE, bottom), width - 2 * EDGE
    )
    return page, width, _legend(page, [*drawn_links, *network], width, y + 24)


def _wrapped(words: str, width: float) -> list[str]:
    return wrap(words, int((width - 2 * EDGE) / (LETTER * 12)), max_lines=2, placeholder=" ...")


def _placed(groups: Sequence[Sequence[Host]]) -> tuple[list[list[_Placed]], float]:
    """The first host of each group by row, and the width of the page."""
    rows: list[list[_Placed]] = [[]]
    plots = [plot_host(group[0], MOST_ENDS) for group in groups]
    right = max([LEAST_WIDTH, *(plot.size[0] + 2 * EDGE for plot in plots)])
    x, y, bottom = EDGE, 0.0, 0.0
    for group, plot in zip(groups, plots, strict=True):
        host = group[0]
        title = host.name
        if len(group) > 1:
            title = f"{host.name}, one of {len(group)} hosts alike: {ranges(each.name for each in group)}"
        title = fitted(title, 12, WIDTH - 2 * EDGE - 40)
        plot.size = (max(plot.size[0], len(title) * LETTER * 12 + 40), plot.size[1])
        if rows[-1] and x + plot.size[0] > WIDTH - EDGE:
            rows.append([])
            x, y = EDGE, bottom + 14
        rows[-1].append(_Placed(host, plot, title, (x, y)))
        x, bottom = x + plot.size[0] + 14, max(bottom, y + plot.size[1])
        right = max(right, x - 14 + EDGE)
    return rows, right


def _legend(page: Page, links: list[tuple[Link, float]], width: float, y: float) -> float:
    """A sample for each kind of link and rate, the fastest first."""
    kinds: dict[tuple[str, int, str], tuple[float, float]] = {}
    for link, line_width in links:
        kinds[link.kind, link.lanes or 1, rate_words(link.gb_per_s)] = (link.gb_per_s or 0.0, line_width)
    ordered = sorted(kinds, key=lambda key: (key[0] not in FABRICS, key[0] == "network", key[0], -kinds[key][0]))
    x = EDGE
    for kind, lanes, words in ordered:
        text = f"{kind_words(kind)}{f' x{lanes}' if lanes > 1 else ''}, {words}"
        room = 34 + len(text) * LETTER * 12 + 22
        if x > EDGE and x + room > width - EDGE:
            x, y = EDGE, y + 20
        page.line((x, y - 4), (x + 26, y - 4), kind_class(kind), width=kinds[kind, lanes, words][1])
        page.text((x + 34, y), text, "soft")
        x += room
    return y + 22 if ordered else y
