"""The network between hosts: a line for each switch that NICs are on, with a dot for each cable.

A cable that crosses a line without a dot is not on it. Switches that join only switches stand upright at the right.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.topology.draw.describe import device_words, links_words
from topocomm.topology.draw.device_tree import FABRICS
from topocomm.topology.draw.svg.host_layout import thin_widths
from topocomm.topology.draw.svg.host_svg import SIZE, Cable
from topocomm.topology.draw.svg.svg_page import LETTER, Page, Point, fitted
from topocomm.topology.draw.topology_text import network_lines
from topocomm.topology.model import Device, Link, Topology

PITCH = 17.0
SPINE = 26.0
MOST_LINES = 16
MOST_SPINES = 4
MOST_WORDS = 12
"""Lines of the network in words."""


def draw_network(
    page: Page, topology: Topology, cables: Sequence[Cable], corner: Point, width: float
) -> tuple[float, list[tuple[Link, float]]]:
    """Draw the switches outside of hosts below these, or say which; return the bottom, and links with their widths."""
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
) -> tuple[float, list[tuple[Link, float]]]:
    left, top = corner[0], corner[1] + 22
    name = max(len(_short(d)) for d in lines) * LETTER * SIZE + 14
    right = left + width - (SPINE + 8) * len(spines)
    heights = {d.id: top + PITCH * index for index, d in enumerate(lines)}
    drawn: list[tuple[Link, float]] = []
    upright = {d.id: right + 8 + (SPINE + 8) * index for index, d in enumerate(spines)}
    towards = [link for link in topology.links if link.src in heights and link.dst in upright]
    widths = thin_widths([*towards, *(link for cable in cables for link in cable.links)])

    def width_of(link: Link) -> float:
        return widths.get((link.kind, link.gb_per_s or 0.0), 1.6)

    for device in lines:
        y = heights[device.id]
        with page.group(device_words(device), [device.id]):
            page.text((left, y + 4), _short(device), "soft", size=SIZE)
            up = [width_of(link) for link in towards if link.src == device.id]
            page.line((left + name, y), (right, y), "network", width=max(up, default=2.4))
        for link in (link for link in towards if link.src == device.id):
            with page.group(links_words([link]), ends=[link]):
                page.line((right, y), (upright[link.dst], y), "network", width=width_of(link))
            drawn.append((link, width_of(link)))
    for cable in cables:
        for end in dict.fromkeys(link.dst for link in cable.links if link.dst in heights):
            own, y = [link for link in cable.links if link.dst == end], heights[end]
            with page.group(links_words(own), ends=own):
                page.line(cable.at, (cable.at[0], y), "network", width=width_of(own[0]))
                page.circle((cable.at[0], y), 3.2, "network fill")
            drawn.append((own[0], width_of(own[0])))
    bottom = top + PITCH * (len(lines) - 1)
    for device in spines:
        x = upright[device.id]
        tall = max(bottom - top + 16, len(_short(device)) * LETTER * SIZE + 14)
        with page.group(device_words(device), [device.id]):
            page.rect((x, top - 8), (SPINE, tall), "device", radius=4)
            page.upright((x + SPINE / 2 + 4, top - 8 + tall - 6), _short(device), size=SIZE)
        bottom = max(bottom, top - 8 + tall)
    return bottom + 8, drawn


def _short(device: Device) -> str:
    return fitted(device.id, SIZE, 120)
