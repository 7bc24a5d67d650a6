"""The network between hosts: a line for each switch that NICs are on, with a dot for each of their cables.

A cable that crosses a line without a dot is not on it. Switches that join only switches stand upright at the right.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.topology.draw.describe import device_words, links_words
from topocomm.topology.draw.device_tree import FABRICS
from topocomm.topology.draw.svg.host_svg import SIZE, Cable
from topocomm.topology.draw.svg.svg_page import LETTER, Page, Point, fitted
from topocomm.topology.draw.topology_text import network_lines
from topocomm.topology.model import Device, Link, Topology

PITCH = 17.0
SPINE = 26.0
MOST_LINES = 16
MOST_SPINES = 4
MOST_WORDS = 12
"""Lines of the network in words, where it cannot be drawn."""


def draw_network(
    page: Page, topology: Topology, cables: Sequence[Cable], corner: Point, width: float
) -> tuple[float, list[Link]]:
    """Draws the network below the hosts.

    Args:
        page: What to draw on.
        topology: The cluster; nothing is drawn where there is no switch outside of hosts.
        cables: Ways out of the drawn hosts, all of which have free way downwards; none if they have not.
        corner: Upper left corner.
        width: From left to right.

    Returns:
        Where it ends, and the links that are drawn.
    """
    hosts = set(topology.hosts)
    plain = {end for link in topology.links if link.kind not in FABRICS for end in link[:2]}
    switches = {d.id: d for d in topology.devices if d.kind == "switch" and d.host not in hosts and d.id in plain}
    if not switches:
        return corner[1], []
    below = {link.dst for cable in cables for link in cable.links}
    lines = [d for d in switches.values() if d.id in below]
    spines = [d for d in switches.values() if d.id not in below]
    if not lines or len(lines) > MOST_LINES or len(spines) > MOST_SPINES:
        return _in_words(page, topology, corner, width), []
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
    towards: dict[str, list[Link]] = {}
    for link in topology.links:
        if link.src in heights and link.dst in upright:
            towards.setdefault(link.src, []).append(link)
    for device in lines:
        y = heights[device.id]
        page.begin(device_words(device))
        page.text((left, y + 4), _short(device), "soft", size=SIZE)
        page.line((left + name, y), (right, y), "network", width=2.4)
        page.end()
        for link in towards.get(device.id, ()):
            page.begin(links_words([link]))
            page.line((right, y), (upright[link.dst], y), "network", width=2.4)
            page.end()
            drawn.append(link)
    for cable in cables:
        for link in cable.links:
            if link.dst not in heights:
                continue
            y = heights[link.dst]
            page.begin(links_words([link]))
            page.line(cable.at, (cable.at[0], y), "network")
            page.circle((cable.at[0], y), 3.2, "network fill")
            page.end()
            drawn.append(link)
    bottom = top + PITCH * (len(lines) - 1)
    for device in spines:
        x = upright[device.id]
        tall = max(bottom - top + 16, len(_short(device)) * LETTER * SIZE + 14)
        page.begin(device_words(device))
        page.rect((x, top - 8), (SPINE, tall), "device", radius=4)
        page.upright((x + SPINE / 2 + 4, top - 8 + tall - 6), _short(device), size=SIZE)
        page.end()
        bottom = max(bottom, top - 8 + tall)
    return bottom + 8, drawn


def _in_words(page: Page, topology: Topology, corner: Point, width: float) -> float:
    lines = network_lines(topology)[1:]
    if len(lines) > MOST_WORDS:
        lines = [*lines[:MOST_WORDS], f"and {len(lines) - MOST_WORDS} more"]
    x, y = corner[0], corner[1] + 14
    page.rect((x, y), (width, 30 + 17 * len(lines)), "panel")
    page.text((x + 12, y + 19), "Network", "ink bold")
    for index, words in enumerate(lines):
        page.text((x + 12, y + 37 + 17 * index), fitted(words.lstrip("├└─ "), 12, width - 24), "soft")
    return y + 30 + 17 * len(lines)


def _short(device: Device) -> str:
    return fitted(device.id, SIZE, 120)
