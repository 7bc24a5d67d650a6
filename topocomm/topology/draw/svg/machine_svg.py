"""A topology as a picture: its hosts, the network between them, and a legend.

Hosts that are alike are drawn once where there are many. The network has a line for each switch that NICs are on, with
a dot for each cable; a cable that crosses a line without a dot is not on it. Switches that join only switches stand
upright at the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

from topocomm.topology.draw.describe import device_words, links_words
from topocomm.topology.draw.device_tree import FABRICS, Host, alike, split_hosts
from topocomm.topology.draw.names import counts, kind_words, plural, ranges
from topocomm.topology.draw.svg.colours import kind_class
from topocomm.topology.draw.svg.gpu_fabric import rate_words
from topocomm.topology.draw.svg.host_svg import SIZE, Cable, paint_host, plot_host
from topocomm.topology.draw.svg.plot import Plot
from topocomm.topology.draw.svg.svg_page import LETTER, Page, Point, fitted
from topocomm.topology.draw.topology_text import network_lines
from topocomm.topology.model import Device, Link, Topology

EDGE = 20.0
WIDTH = 1280.0
"""Largest width of hosts side by side, in pixels."""
LEAST_WIDTH = 720.0
MOST_HOSTS = 4
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


def picture(topology: Topology) -> tuple[Page, float, float]:
    """Return the picture without the warnings, its width, and its bottom."""
    page = Page(topology.name, counts(topology))
    rows, width, not_drawn = _rows(topology)
    page.text((EDGE, 34), fitted(f"{topology.name} ({topology.source})", 18, width - 2 * EDGE), "ink bold", size=18)
    y = 54.0
    for words in _wrapped(counts(topology), width):
        page.text((EDGE, y), words, "soft")
        y += 17
    drawn_links: list[tuple[Link, float]] = []
    cables: list[Cable] = []
    bottom = y
    for row in rows:
        for placed in row:
            corner = (placed.corner[0], placed.corner[1] + y)
            bottom = max(bottom, corner[1] + placed.plot.size[1])
            cables += paint_host(page, placed.plot, placed.host, corner, {})
            page.text((corner[0] + 12, corner[1] + 19), placed.title, "ink bold")
            drawn_links += [(link, line.width) for line in placed.plot.lines for link in line.links]
    if not_drawn:
        page.text((EDGE, bottom + 22), f"and {plural(not_drawn, 'host')} of other kinds, not drawn", "soft")
        bottom += 26
    y, network = _network(page, topology, cables if len(rows) == 1 else [], (EDGE, bottom), width - 2 * EDGE)
    if len(rows) > 1:  # the network has no line below every host
        for cable in cables:
            page.line(cable.at, (cable.at[0], cable.at[1] + 8), "network")
    return page, width, _legend(page, [*drawn_links, *((link, 1.6) for link in network)], width, y + 24)


def _wrapped(words: str, width: float) -> list[str]:
    return wrap(words, int((width - 2 * EDGE) / (LETTER * 12)), max_lines=2, placeholder=" ...")


def _rows(topology: Topology) -> tuple[list[list[_Placed]], float, int]:
    """The drawn hosts by row, the width of the page, and the number of hosts that are unlike every drawn one."""
    hosts = split_hosts(topology)
    groups = [[host] for host in hosts] if len(hosts) <= MOST_HOSTS else alike(hosts)
    rows: list[list[_Placed]] = [[]]
    plots = [plot_host(group[0], MOST_ENDS) for group in groups[:MOST_HOSTS]]
    right = max([LEAST_WIDTH, *(plot.size[0] + 2 * EDGE for plot in plots)])
    x, y, bottom = EDGE, 0.0, 0.0
    for group, plot in zip(groups, plots, strict=False):
        host = group[0]
        title = host.name
        if len(group) > 1:
            title = f"{len(group)} hosts alike: {ranges(each.name for each in group)}; {host.name} is drawn"
        plot.size = (max(plot.size[0], len(title) * LETTER * 12 + 40), plot.size[1])
        if rows[-1] and x + plot.size[0] > WIDTH - EDGE:
            rows.append([])
            x, y = EDGE, bottom + 14
        rows[-1].append(_Placed(host, plot, title, (x, y)))
        x, bottom = x + plot.size[0] + 14, max(bottom, y + plot.size[1])
        right = max(right, x - 14 + EDGE)
    return rows, right, sum(map(len, groups[MOST_HOSTS:]))


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


PITCH = 17.0
SPINE = 26.0
MOST_LINES = 16
MOST_SPINES = 4
MOST_WORDS = 12
"""Lines of the network in words."""


def _network(
    page: Page, topology: Topology, cables: Sequence[Cable], corner: Point, width: float
) -> tuple[float, list[Link]]:
    """Draw the switches outside of hosts below these, or say which; return the bottom, and the links that are drawn."""
    hosts = set(topology.hosts)
    plain = {end for link in topology.links if link.kind not in FABRICS for end in link[:2]}
    switches = {d.id: d for d in topology.devices if d.kind == "switch" and d.host not in hosts and d.id in plain}
    if not switches:
        return corner[1], []
    below = {link.dst for cable in cables for link in cable.links}
    lines = [d for d in switches.values() if d.id in below]
    spines = [d for d in switches.values() if d.id not in below]
    if not lines or len(lines) > MOST_LINES or len(spines) > MOST_SPINES:
        words = network_lines(topology)[1:]
        if len(words) > MOST_WORDS:
            words = [*words[:MOST_WORDS], f"and {len(words) - MOST_WORDS} more"]
        x, y = corner[0], corner[1] + 14
        page.rect((x, y), (width, 30 + 17 * len(words)), "panel")
        page.text((x + 12, y + 19), "Network", "ink bold")
        for index, line in enumerate(words):
            page.text((x + 12, y + 37 + 17 * index), fitted(line.lstrip("├└─ "), 12, width - 24), "soft")
        return y + 30 + 17 * len(words), []
    return _drawn(page, topology, cables, lines, spines, corner, width)


def _drawn(
    page: Page,
    topology: Topology,
    cables: Sequence[Cable],
    lines: Sequence[Device],
    spines: Sequence[Device],
    corner: Point,
    width: float,
) -> tuple[float, list[Link]]:
    left, top = corner[0], corner[1] + 22
    name = max(len(_short(d)) for d in lines) * LETTER * SIZE + 14
    right = left + width - (SPINE + 8) * len(spines)
    heights = {d.id: top + PITCH * index for index, d in enumerate(lines)}
    drawn: list[Link] = []
    upright = {d.id: right + 8 + (SPINE + 8) * index for index, d in enumerate(spines)}
    towards = [link for link in topology.links if link.src in heights and link.dst in upright]
    for device in lines:
        y = heights[device.id]
        with page.group(device_words(device)):
            page.text((left, y + 4), _short(device), "soft", size=SIZE)
            page.line((left + name, y), (right, y), "network", width=2.4)
        for link in (link for link in towards if link.src == device.id):
            with page.group(links_words([link])):
                page.line((right, y), (upright[link.dst], y), "network", width=2.4)
            drawn.append(link)
    for cable in cables:
        for link in (link for link in cable.links if link.dst in heights):
            y = heights[link.dst]
            with page.group(links_words([link])):
                page.line(cable.at, (cable.at[0], y), "network")
                page.circle((cable.at[0], y), 3.2, "network fill")
            drawn.append(link)
    bottom = top + PITCH * (len(lines) - 1)
    for device in spines:
        x = upright[device.id]
        tall = max(bottom - top + 16, len(_short(device)) * LETTER * SIZE + 14)
        with page.group(device_words(device)):
            page.rect((x, top - 8), (SPINE, tall), "device", radius=4)
            page.upright((x + SPINE / 2 + 4, top - 8 + tall - 6), _short(device), size=SIZE)
        bottom = max(bottom, top - 8 + tall)
    return bottom + 8, drawn


def _short(device: Device) -> str:
    return fitted(device.id, SIZE, 120)
