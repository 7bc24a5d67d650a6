"""One host as a picture: GPUs or cores in a row by NUMA node, the GPU fabric above, PCIe and NICs below."""

from __future__ import annotations

from typing import NamedTuple

from topocomm.topology.draw.describe import devices_words, links_words
from topocomm.topology.draw.device_tree import Host
from topocomm.topology.draw.svg.colours import kind_class
from topocomm.topology.draw.svg.host_blocks import build
from topocomm.topology.draw.svg.host_layout import lay_out
from topocomm.topology.draw.svg.plot import HEADER, STRIP, Box, Plot
from topocomm.topology.draw.svg.svg_page import BOLD_LETTER, LETTER, NAME_LETTER, Page, Point, fitted
from topocomm.topology.model import Link

MOST_ENDS = 16
"""Endpoints that are drawn one by one."""
SIZE = 11.0
"""Font size inside a host, the smallest of the picture."""


class Cable(NamedTuple):
    """Where links leave the host, and the links."""

    at: Point
    links: tuple[Link, ...]


def plot_host(host: Host, most_ends: int = MOST_ENDS) -> Plot:
    """Return the host with coordinates."""
    return lay_out(build(host, most_ends))


def paint_host(page: Page, plot: Plot, host: Host, corner: Point) -> list[Cable]:
    """Draw a plotted host; return its cables, which the caller draws."""

    def moved(point: Point) -> Point:
        return point[0] + corner[0], point[1] + corner[1]

    page.rect(corner, plot.size, "panel")
    for region in plot.regions:
        page.rect(moved(region.corner), region.size, "group")
        if region.words:
            at = moved((region.corner[0] + STRIP - 5, region.corner[1] + region.size[1] - 8))
            page.upright(at, fitted(region.words, SIZE, region.size[1] - 12), "soft")
    for line in sorted(plot.lines, key=lambda line: line.width):
        css = kind_class(line.kind) + (" heavy" if line.heavy else "") + (" guess" if line.words else "")
        points = [moved(point) for point in line.points]
        with page.group(line.words or links_words(line.links), ends=line.links):
            if line.rise:
                page.arc(points[0], points[1], line.rise, css, width=line.width)
            elif len(points) == 2:
                page.line(points[0], points[1], css, width=line.width)
            else:
                page.bend(points, css, width=line.width)
    for box in plot.boxes:
        _box(page, box, moved(box.corner))
    for at, words in plot.captions:
        page.text(moved(at), words, size=SIZE, anchor="middle")
    if plot.left_out:
        page.text(moved((plot.size[0] - 12, HEADER - 11)), f"and {plot.left_out} more", "soft", anchor="end")
    return _cables(plot, host, corner)


def _box(page: Page, box: Box, corner: Point) -> None:
    width, height = box.size
    x, y = corner[0] + width / 2, corner[1] + height / 2
    ids = [device.id for device in box.devices]
    facts = devices_words(box.devices) + page.models_of(ids) if box.devices else box.words[0]
    with page.group(facts, ids):
        page.rect(corner, box.size, "device" + (" guess" if box.role == "mesh" else ""), radius=4)
        if box.role == "end":
            words = fitted(box.words[0], 12, width + 4, letter=BOLD_LETTER)
            page.text((x, y + 4), words, "ink bold", size=12, anchor="middle")
        elif box.role == "nic":
            lines = [fitted(words, SIZE, width, letter=NAME_LETTER) for words in box.words]
            for index, words in enumerate(lines):
                at = (x, y + 4 + 13 * (index - (len(lines) - 1) / 2))
                page.text(at, words, "soft" if index else "ink", size=SIZE, anchor="middle")
        else:
            words = next((words for words in box.words if len(words) * LETTER * SIZE <= width - 8), box.words[-1])
            page.text((x, y + 4), fitted(words, SIZE, width - 4), size=SIZE, anchor="middle")


def _cables(plot: Plot, host: Host, corner: Point) -> list[Cable]:
    """Cables from the bottom of every device with links out of the host."""
    out: dict[str, list[Link]] = {}
    shared = {device.id for device in host.shared}
    for link in host.outward:
        if link.dst not in shared:  # those are drawn as a bar of the host
            out.setdefault(link.src, []).append(link)
    cables = []
    for box in plot.boxes:
        own = [device for device in box.devices if device.id in out]
        for index, device in enumerate(own):
            left = box.corner[0] + box.size[0] * (index + 1) / (len(own) + 1)
            x = left if box.role != "bar" else box.corner[0] + 12
            cables.append(Cable((corner[0] + x, corner[1] + box.corner[1] + box.size[1]), tuple(out[device.id])))
    return cables
