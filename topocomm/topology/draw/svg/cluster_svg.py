"""Many hosts in one picture: a row of squares for each host, over the lines of the network that they are on.

Hosts that share switches of the GPU fabric, as the trays of a rack do, stand on both sides of a bar for these switches.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from topocomm.topology.draw.describe import device_words, devices_words, links_words
from topocomm.topology.draw.device_tree import FABRICS, Host, alike
from topocomm.topology.draw.names import label, plural, ranges, rate_words
from topocomm.topology.draw.svg.colours import kind_class
from topocomm.topology.draw.svg.host_svg import SIZE, Cable
from topocomm.topology.draw.svg.plot import BAR_HEIGHT
from topocomm.topology.draw.svg.svg_page import LETTER, Page, Point, fitted
from topocomm.topology.inference.pci_tree import natural
from topocomm.topology.model import ENDPOINT_KINDS, Device, Link

CELL, PITCH, ROW = 13.0, 17.0, 16.0
"""Side of a square, and from one to the next in a row and between rows."""
BETWEEN = 20.0
"""Space between blocks of rows."""
LEAST_INDENT, SPINES = 12.0, 48.0
"""Room at the left, for the names of the network's lines, and at the right, for switches that join them."""
MOST_CELLS = 16
"""Endpoints of a host that are squares; more are one box."""
MOST_HOSTS = 128
"""Hosts that are drawn; more are counted."""
MOST_RACKS = 4
TRAY_CELL, TRAY_GAP, LEG = 25.0, 10.0, 26.0
"""Side of an endpoint of a tray, space between trays, and length of the links to the bar."""


class _Block(NamedTuple):
    """Hosts of one kind on the same switches, one above the other."""

    hosts: tuple[Host, ...]
    name: float
    """Width of the names."""
    cells: int

    @property
    def width(self) -> float:
        return self.name + PITCH * self.cells


def draw_cluster(page: Page, hosts: Sequence[Host], corner: Point, width: float) -> tuple[float, list[Cable]]:
    """Draw hosts below a point in this width; return the bottom, and where their cables to switches begin."""
    racks: dict[tuple[str, ...], list[Host]] = {}
    for host in hosts:
        racks.setdefault(tuple(device.id for device in host.shared), []).append(host)
    loose = racks.pop((), [])
    y, drawn = corner[1], 0
    for own in list(racks.values())[:MOST_RACKS]:
        y = _rack(page, own, (corner[0], y), width) + 12
        drawn += len(own)
    if drawn < len(hosts) - len(loose):
        rest = [host.name for own in list(racks.values())[MOST_RACKS:] for host in own]
        page.text((corner[0], y + 10), f"and {plural(len(rest), 'more host')}: {ranges(rest)}", "soft")
        y += 24
    return _rows(page, loose, (corner[0], y), width) if loose else (y, [])


def _parts(hosts: Sequence[Host], most: int) -> list[tuple[Host, ...]]:
    return [tuple(hosts[start : start + most]) for start in range(0, len(hosts), most)]


def _ends(host: Host) -> list[Device]:
    return [device for device in host.devices if device.kind in ENDPOINT_KINDS]


def _rows(page: Page, hosts: Sequence[Host], corner: Point, width: float) -> tuple[float, list[Cable]]:
    """Hosts in blocks side by side, each on the same switches."""
    names = {link.dst for host in hosts for link in host.outward}
    indent = LEAST_INDENT + max(map(len, names), default=0) * LETTER * SIZE / 2  # to the right of the lines' names
    blocks = _blocks(hosts[:MOST_HOSTS], width - indent - SPINES)
    page.text((corner[0], corner[1] + 12), _caption(hosts), "soft")
    top, tall = corner[1] + 40, max(len(block.hosts) for block in blocks)
    cables: list[Cable] = []
    x = corner[0] + indent
    for block in blocks:
        cables += _block(page, block, (x, top), tall)
        x += block.width + BETWEEN
    bottom = top + ROW * tall
    if len(hosts) > MOST_HOSTS:
        rest = [host.name for host in hosts[MOST_HOSTS:]]
        page.text((corner[0], bottom + 16), f"and {plural(len(rest), 'more host')}: {ranges(rest)}", "soft")
        bottom += 22
    return bottom, cables


def _caption(hosts: Sequence[Host]) -> str:
    ends = {device.kind for host in hosts for device in _ends(host)}
    what = "GPU" if "gpu" in ends else "set of cores"
    joined = sorted({FABRICS[link.kind] for host in hosts for link in host.links if link.kind in FABRICS})
    by = f", joined by {' and '.join(joined)}" if joined else ""
    return f"A row is a host, a square a {what}{by}; a column is on the network line where it ends"


def _blocks(hosts: Sequence[Host], width: float) -> list[_Block]:
    """The hosts by kind and switches, in as many blocks as have room side by side."""
    groups: dict[tuple[int, tuple[str, ...]], list[Host]] = {}
    for kind, own in enumerate(alike(hosts, outward=False)):
        for host in own:
            groups.setdefault((kind, tuple(sorted({link.dst for link in host.outward}))), []).append(host)
    wholes = []
    for own in groups.values():
        name = max(min(len(host.name), 18) for host in own) * LETTER * SIZE + 14
        ends = len(_ends(own[0]))
        wholes.append(_Block(tuple(own), name, ends if ends <= MOST_CELLS else MOST_CELLS // 2))
    rows = 4
    while True:  # the fewest rows that fit
        parts = [block._replace(hosts=part) for block in wholes for part in _parts(block.hosts, rows)]
        if sum(part.width + BETWEEN for part in parts) - BETWEEN <= width or rows >= len(hosts):
            return parts
        rows += 4


def _block(page: Page, block: _Block, corner: Point, tall: int) -> list[Cable]:
    """Draw one block; return its cables, from below its columns."""
    left, top = corner[0] + block.name, corner[1]
    ends = _ends(block.hosts[0])
    low = top + ROW * (len(block.hosts) - 1) + CELL
    cables = []
    out: dict[str, list[Link]] = {}
    for host in block.hosts:
        for link in host.outward:
            out.setdefault(link.src.removeprefix(f"{host.name}/"), []).append(link)
    for index, name in enumerate(sorted(out, key=natural)):
        x = left + PITCH * block.cells * (index + 0.5) / len(out) - (PITCH - CELL) / 2
        with page.group(links_words(out[name]), ends=out[name]):
            page.line((x, top + CELL / 2), (x, low + ROW * (tall - len(block.hosts)) + 2), "network", width=1.2)
        cables.append(Cable((x, low + ROW * (tall - len(block.hosts)) + 2), tuple(out[name])))
    if len(ends) <= MOST_CELLS:
        for index, end in enumerate(ends):
            number = label(end).split("/")[-1]
            page.text((left + PITCH * index + CELL / 2, top - 6), number, "soft", size=SIZE, anchor="middle")
    for index, host in enumerate(block.hosts):
        _row(page, host, block, (left, top + ROW * index))
    return cables


def _row(page: Page, host: Host, block: _Block, corner: Point) -> None:
    """One host: its name, a line for what joins its endpoints, and their squares."""
    (x, y), ends = corner, _ends(host)
    kinds = [link.kind for link in host.links if link.kind in FABRICS] or [link.kind for link in host.links]
    ids = [end.id for end in ends]
    with page.group(f"host {host.name}\n{devices_words(ends)}{page.models_of(ids)}", ids):
        page.text((x - 7, y + CELL - 3), fitted(host.name, SIZE, block.name), "ink", size=SIZE, anchor="end")
        if kinds:
            middle = y + CELL / 2
            page.line((x, middle), (x + PITCH * (block.cells - 1) + CELL, middle), kind_class(kinds[0]), width=4)
        if len(ends) <= MOST_CELLS:
            page.boxes([(x + PITCH * index, y) for index in range(len(ends))], (CELL, CELL), "device")
        else:
            page.rect((x, y), (PITCH * block.cells - 4, CELL), "device", radius=3)
            words = f"{len(ends)} x {label(ends[0]).split('/')[0]}"
            page.text((x + PITCH * block.cells / 2, y + CELL - 3), words, size=SIZE, anchor="middle")


def _rack(page: Page, hosts: Sequence[Host], corner: Point, width: float) -> float:
    """Hosts that share switches of the GPU fabric, above and below a bar for these; return the bottom."""
    switches, (left, top) = hosts[0].shared, corner
    inner = max(len(_ends(host)) for host in hosts) * (TRAY_CELL + 3) + 9
    across = min(int((width - 24 + TRAY_GAP) // (inner + TRAY_GAP)), ceil(len(hosts) / 2))
    lines = _parts(hosts, max(across, 1))
    tray = TRAY_CELL + 26
    above = lines[: ceil(len(lines) / 2)]
    bar = top + 34 + len(above) * (tray + LEG) + 2
    bottom = bar + BAR_HEIGHT + (len(lines) - len(above)) * (tray + LEG) + 14
    wide = len(lines[0]) * (inner + TRAY_GAP) - TRAY_GAP
    page.rect(corner, (wide + 24, bottom - top), "panel")
    ends = sum(len(_ends(host)) for host in hosts)
    title = f"{plural(len(hosts), 'host')}, {plural(ends, 'GPU')} on one GPU fabric"
    page.text((left + 12, top + 20), title, "ink bold", size=12)
    joined = [device.id for device in switches]
    for row, line in enumerate(lines):
        y = (
            top + 34 + row * (tray + LEG)
            if row < len(above)
            else bar + BAR_HEIGHT + LEG + (row - len(above)) * (tray + LEG)
        )
        for index, host in enumerate(line):
            x = left + 12 + index * (inner + TRAY_GAP)
            _tray(page, host, (x, y), (inner, tray), bar if row < len(above) else bar + BAR_HEIGHT, joined)
    rates = {rate_words(link.gb_per_s) for host in hosts for link in host.outward if link.dst in joined}
    kinds = sorted({FABRICS[link.kind] for host in hosts for link in host.outward if link.dst in joined})
    words = f"{ranges(map(label, switches))}: {' '.join(kinds)}, {' or '.join(sorted(rates))} from each GPU"
    with page.group(devices_words(switches), joined):
        page.rect((left + 12, bar), (wide, BAR_HEIGHT), "device", radius=4)
        page.text((left + 12 + wide / 2, bar + 16), fitted(words, 12, wide - 10), size=12, anchor="middle")
    return bottom


def _tray(page: Page, host: Host, corner: Point, size: Point, bar: float, joined: Sequence[str]) -> None:
    """One host beside the bar: a box with its name and its endpoints, each with its line to the bar."""
    x, y = corner
    ends = _ends(host)
    to_bar: dict[str, list[Link]] = {}
    for link in host.outward:
        if link.dst in joined:
            to_bar.setdefault(link.src, []).append(link)
    is_above = y < bar
    cells_y = y + 21 if is_above else y + 5
    for index, end in enumerate(ends):
        at = x + 6 + (TRAY_CELL + 3) * index + TRAY_CELL / 2
        own = to_bar.get(end.id, [])
        if own:
            with page.group(links_words(own), ends=own):
                foot = cells_y + TRAY_CELL if is_above else cells_y
                page.line((at, foot), (at, bar), kind_class(own[0].kind), width=3)
    page.rect(corner, size, "group")
    name_y = y + 15 if is_above else y + size[1] - 6
    page.text((x + 7, name_y), fitted(host.name, SIZE, size[0] - 10), "soft", size=SIZE)
    for index, end in enumerate(ends):
        at = x + 6 + (TRAY_CELL + 3) * index
        with page.group(device_words(end) + page.models_of([end.id]), [end.id]):
            page.rect((at, cells_y), (TRAY_CELL, TRAY_CELL), "device", radius=4)
            number = label(end).split("/")[-1]
            page.text((at + TRAY_CELL / 2, cells_y + 17), number, "ink bold", size=12, anchor="middle")
