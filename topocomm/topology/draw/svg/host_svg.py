"""One host as a picture: its GPUs or cores in a row by NUMA node, what joins them directly above, PCIe and NICs below.

A switch, a host bridge or a NUMA node is a bar over or under all that hang on it, so that links are short and upright.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from topocomm.topology.draw.describe import devices_words, links_words
from topocomm.topology.draw.device_tree import Host, split_hosts
from topocomm.topology.draw.svg.host_blocks import build
from topocomm.topology.draw.svg.host_layout import lay_out
from topocomm.topology.draw.svg.plot import HEADER, STRIP, Box, Plot, Wire
from topocomm.topology.draw.svg.svg_page import BOLD_LETTER, LETTER, NAME_LETTER, Page, Point, fitted, kind_class
from topocomm.topology.model import Link, Topology

MOST_ENDS = 16
SIZE = 11.0
"""Of the letters inside a host; the smallest of the picture."""


class Cable(NamedTuple):
    """Where a way out of the host begins, and the links it stands for."""

    at: Point
    links: tuple[Link, ...]


def draw_host(
    page: Page, topology: Topology, host: str, corner: Point, notes: Mapping[str, str]
) -> tuple[Point, list[Point]]:
    """Draws one host in a box.

    Args:
        page: What to draw on.
        topology: The machine.
        host: Name of the host.
        corner: Upper left corner of the box.
        notes: A word below the name of an endpoint, such as its rank.

    Returns:
        Width and height of the box, and where the cables of its NICs leave it.
    """
    own = next(part for part in split_hosts(topology) if part.name == host)
    plot = plot_host(own, topology)
    cables = paint_host(page, plot, own, corner, notes)
    bottom = corner[1] + plot.size[1]
    for cable in cables:
        page.line(cable.at, (cable.at[0], bottom), "network")
    return plot.size, [(cable.at[0], bottom) for cable in cables]


def plot_host(host: Host, topology: Topology, most_ends: int = MOST_ENDS) -> Plot:
    """Where everything of the host goes."""
    ids = {d.id for d in host.devices}
    codes = {(p.a, p.b): p.code for p in topology.pairs if p.a in ids}
    return lay_out(build(host, codes, most_ends))


def paint_host(page: Page, plot: Plot, host: Host, corner: Point, notes: Mapping[str, str]) -> list[Cable]:
    """Draws what is plotted; returns where the ways out of the host begin, which are left to the caller."""

    def moved(point: Point) -> Point:
        return point[0] + corner[0], point[1] + corner[1]

    page.rect(corner, plot.size, "panel")
    for region in plot.regions:
        page.rect(moved(region.corner), region.size, "group")
        if region.words:
            x, y = moved(region.corner)
            page.upright(
                (x + STRIP - 5, y + region.size[1] - 8), fitted(region.words, SIZE, region.size[1] - 12), "soft"
            )
    for wire in sorted(plot.wires, key=lambda wire: wire.width):
        _wire(page, wire, [moved(point) for point in wire.points])
    for box in plot.boxes:
        _box(page, box, moved(box.corner), notes)
    if plot.left_out:
        page.text(moved((plot.size[0] - 12, HEADER - 11)), f"and {plot.left_out} more", "soft", anchor="end")
    return _cables(plot, host, corner)


def _wire(page: Page, wire: Wire, points: list[Point]) -> None:
    css = kind_class(wire.kind) + (" heavy" if wire.heavy else "") + (" guess" if wire.words else "")
    page.begin(wire.words or links_words(wire.links))
    if len(points) == 2:
        page.line(points[0], points[1], css, width=wire.width)
    else:
        page.bend(points, css, width=wire.width)
    page.end()


def _box(page: Page, box: Box, corner: Point, notes: Mapping[str, str]) -> None:
    width, height = box.size
    x, y = corner[0] + width / 2, corner[1] + height / 2
    page.begin(devices_words(box.devices) if box.devices else box.words[0])
    page.rect(corner, box.size, "device" + (" guess" if box.role == "mesh" else ""), radius=4)
    if box.role == "end":
        note = notes.get(box.devices[0].id, "") if len(box.devices) == 1 else ""
        words = fitted(box.words[0], 12, width + 4, letter=BOLD_LETTER)
        page.text((x, y + (-2 if note else 4)), words, "ink bold", size=12, anchor="middle")
        if note:
            page.text((x, y + 13), fitted(note, SIZE, width), "soft", size=SIZE, anchor="middle")
    elif box.role == "nic":
        lines = [fitted(words, SIZE, width, letter=NAME_LETTER) for words in box.words]
        first = y + 4 if len(lines) == 1 else y - 3
        for index, words in enumerate(lines):
            page.text((x, first + 13 * index), words, "soft" if index else "ink", size=SIZE, anchor="middle")
    else:
        words = next((words for words in box.words if len(words) * LETTER * SIZE <= width - 8), box.words[-1])
        page.text((x, y + 4), fitted(words, SIZE, width - 4), size=SIZE, anchor="middle")
    page.end()


def _cables(plot: Plot, host: Host, corner: Point) -> list[Cable]:
    """From the bottom of every NIC that has a link out of the host; from bars where no NIC has one."""
    out: dict[str, list[Link]] = {}
    shared = {device.id for device in host.shared}
    for link in host.outward:
        if link.dst in shared:  # drawn as a bar of the host
            continue
        out.setdefault(link.src, []).append(link)
    cables = []
    for box in plot.boxes:
        own = [device for device in box.devices if device.id in out]
        for index, device in enumerate(own):
            left = box.corner[0] + box.size[0] * (index + 1) / (len(own) + 1)
            x = left if box.role != "bar" else box.corner[0] + 12
            cables.append(Cable((corner[0] + x, corner[1] + box.corner[1] + box.size[1]), tuple(out[device.id])))
    return cables
