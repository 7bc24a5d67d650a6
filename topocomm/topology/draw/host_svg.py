"""One host as a picture: its GPUs or cores in a row by NUMA node, what joins them directly above, PCIe and NICs below.

A switch, a host bridge or a NUMA node is a bar over or under all that hang on it, so that links are short and upright.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from topocomm.topology.draw.names import label, named
from topocomm.topology.draw.svg_page import Page, Point, fitted, kind_class
from topocomm.topology.model import ENDPOINT_KINDS, Device, Link, Topology

FABRICS = ("nvlink", "xgmi")
CELL = 62.0
"""Room of one endpoint in a row."""
END_WIDTH, END_HEIGHT = 52.0, 36.0
BAR_HEIGHT = 20.0
ROW = 40.0
"""From one row of bars to the next."""
MARGIN = 9.0
GAP = 20.0
"""Between NUMA nodes."""
MOST_ENDS = 16


@dataclass
class _Plot:
    """Where every device of the host is: its middle, and half its width."""

    page: Page
    topology: Topology
    links: dict[tuple[str, str], Link]
    middle: dict[str, Point] = field(default_factory=dict)
    half: dict[str, float] = field(default_factory=dict)


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
    devices = [d for d in topology.devices if d.host == host]
    ids = {d.id for d in devices}
    links: dict[tuple[str, str], Link] = {}
    for link in topology.links:
        if {link.src, link.dst} <= ids and (link.dst, link.src) not in links:
            links.setdefault((link.src, link.dst), link)
    plot = _Plot(page, topology, links)
    ends = [d for d in devices if d.kind in ENDPOINT_KINDS and d.id in set(topology.endpoints)]
    ends.sort(key=lambda d: (d.numa is None, str(d.numa).zfill(9)))
    ends = ends[:MOST_ENDS]
    above, below = _sides(devices, ends, links)
    arcs = [link for (a, b), link in links.items() if a in {e.id for e in ends} and b in {e.id for e in ends}]
    top = corner[1] + 30 + ROW * len(above) + _arc_room(ends, arcs)
    groups = _place_ends(plot, ends, (corner[0] + MARGIN, top + 14))
    nics = [d for d in devices if d.kind == "nic" and any(d.id in pair for pair in links)]
    floor = top + 14 + END_HEIGHT + 22
    for index, row in enumerate(below):
        floor = _place_bars(plot, [row], floor, +1)
        if index < len(below) - 1:
            floor = _place_aside(plot, [nic for nic in nics if nic.id not in plot.middle], row, floor)
    _place_bars(plot, above, top - 24, -1)
    floor = max(_place_nics(plot, [nic for nic in nics if nic.id not in plot.middle], floor), top + END_HEIGHT + 22)
    right = max([x + plot.half[name] for name, (x, _) in plot.middle.items()], default=corner[0] + 200) + 2 * MARGIN
    size = (max(right - corner[0], 280.0), floor + 12 - corner[1])
    page.rect(corner, size, "panel")
    for name, low, high in groups:
        page.rect((low - 4, top), (high - low + 8, END_HEIGHT + 22), "group")
        page.text((low, top + 10), name, "soft", size=8)
    cabled = [nic for nic in nics if nic.id in plot.middle and _is_cabled(topology, nic)]
    for nic in cabled:
        x, y = plot.middle[nic.id]
        page.line((x, y), (x, corner[1] + size[1]), "network")
    _draw_links(plot, arcs)
    for device in (*chain(*above), *chain(*below), *nics):
        _bar(plot, device)
    for end in ends:
        x, y = plot.middle[end.id]
        page.rect((x - END_WIDTH / 2, y - END_HEIGHT / 2), (END_WIDTH, END_HEIGHT), "device")
        note = notes.get(end.id)
        page.text((x, y + (-2 if note else 4)), fitted(label(end), 11, END_WIDTH), "ink bold", size=11, anchor="middle")
        if note:
            page.text((x, y + 12), fitted(note, 10, END_WIDTH), "soft", size=10, anchor="middle")
    return size, [(plot.middle[nic.id][0], corner[1] + size[1]) for nic in cabled]


def _is_cabled(topology: Topology, nic: Device) -> bool:
    """Whether the NIC links to something outside its host."""
    return any(link.src == nic.id and topology.by_id[link.dst].host != nic.host for link in topology.links)


def _sides(
    devices: Sequence[Device], ends: Sequence[Device], links: Mapping[tuple[str, str], Link]
) -> tuple[list[list[Device]], list[list[Device]]]:
    """What goes above (switches of the GPU fabric) and below (PCIe switches, bridges, NUMA nodes), row by row.

    A row has what is as many links away from the endpoints.
    """
    fabric = {name for pair, link in links.items() if link.kind in FABRICS for name in pair}
    forwards = [d for d in devices if d.kind in ("switch", "numa", "host")]
    above = [d for d in forwards if d.id in fabric and d.kind == "switch"]
    rest = {d.id: d for d in forwards if d not in above}
    below: list[list[Device]] = []
    reached = {end.id for end in ends}
    while rest:
        near = {b if a in reached else a for a, b in links if (a in reached) != (b in reached)}
        row = [d for name, d in rest.items() if name in near]
        if not row:
            break
        below.append(row)
        for device in row:
            reached.add(device.id)
            del rest[device.id]
    return [[device] for device in above], below


def _arc_room(ends: Sequence[Device], arcs: Sequence[Link]) -> float:
    """How high the links between endpoints rise."""
    place = {end.id: index for index, end in enumerate(ends)}
    return max([_rise(abs(place[arc.src] - place[arc.dst])) / 2 + 6 for arc in arcs], default=0.0)


def _rise(steps: int) -> float:
    return 26.0 + 17.0 * steps


def _place_ends(plot: _Plot, ends: Sequence[Device], corner: Point) -> list[tuple[str, float, float]]:
    """Puts the endpoints in a row; returns (name, left, right) of every NUMA node."""
    groups: list[tuple[str, float, float]] = []
    x = corner[0]
    for end in ends:
        name = "" if end.numa is None else f"NUMA {end.numa}"
        if not groups or groups[-1][0] != name:
            x += GAP if groups else 10
            groups.append((name, x - 6, x))
        groups[-1] = (name, groups[-1][1], x + CELL - (CELL - END_WIDTH) / 2 + 2)
        plot.middle[end.id] = (x + CELL / 2, corner[1] + END_HEIGHT / 2)
        plot.half[end.id] = END_WIDTH / 2
        x += CELL
    return groups


def _place_bars(plot: _Plot, rows: Sequence[Sequence[Device]], y: float, way: int) -> float:
    """Puts each device over or under all that it links to and that has its place; returns where the next row goes."""
    for row in rows:
        lanes: list[float] = []
        placed = []
        for device in row:
            spans = [
                (plot.middle[other][0] - plot.half[other] * 0.7, plot.middle[other][0] + plot.half[other] * 0.7)
                for pair in plot.links
                if device.id in pair
                for other in pair
                if other in plot.middle and other not in {d.id for d in row}
            ]
            low, high = min(a for a, _ in spans), max(b for _, b in spans)
            middle, half = (low + high) / 2, max((high - low) / 2, 28.0)
            placed.append((middle - half, device, middle, half))
        for left, device, middle, half in sorted(placed, key=lambda entry: (entry[0], entry[1].id)):
            lane = next((i for i, right in enumerate(lanes) if right + 6 <= left), len(lanes))
            lanes[lane : lane + 1] = [middle + half]
            plot.middle[device.id] = (middle, y + way * lane * ROW)
            plot.half[device.id] = half
        y += way * ROW * max(len(lanes), 1)
    return y


def _place_aside(plot: _Plot, nics: Sequence[Device], row: Sequence[Device], y: float) -> float:
    """NICs of bars that have rows below them: under the ends of the bar, clear of the link that leaves its middle."""
    found = False
    for bar in row:
        own = [nic for nic in nics if any({nic.id, bar.id} == set(pair) for pair in plot.links)]
        half = min(plot.half[bar.id] / 2 - 3, END_WIDTH / 2)
        if not own or len(own) > 2 or half < 15:
            continue
        for nic, side in zip(own, (-1, 1), strict=False):
            plot.middle[nic.id] = (plot.middle[bar.id][0] + side * (half + 3), y)
            plot.half[nic.id] = half
            found = True
    return y + ROW * found


def _place_nics(plot: _Plot, nics: Sequence[Device], y: float) -> float:
    """A row of NICs, each below what it hangs on, apart from each other."""
    wanted = []
    for nic in nics:
        hangs = [plot.middle[o][0] for pair in plot.links if nic.id in pair for o in pair if o in plot.middle]
        if hangs:
            wanted.append((sum(hangs) / len(hangs), nic))
    right = -1e9
    for x, nic in sorted(wanted, key=lambda entry: entry[0]):
        x = max(x, right + CELL)
        plot.middle[nic.id], plot.half[nic.id] = (x, y), END_WIDTH / 2
        right = x
    return y + BAR_HEIGHT / 2 if wanted else y - ROW + BAR_HEIGHT / 2


def _draw_links(plot: _Plot, arcs: Sequence[Link]) -> None:
    order = {name: index for index, name in enumerate(plot.middle)}
    for (a, b), link in plot.links.items():
        if a not in plot.middle or b not in plot.middle:
            continue
        wide = min(1.2 + 0.5 * (link.lanes or 1), 4.0) if link.kind in FABRICS and link in arcs else 1.6
        (ax, ay), (bx, by) = plot.middle[a], plot.middle[b]
        if link in arcs:
            top = min(ay, by) - END_HEIGHT / 2
            rise = _rise(abs(order[a] - order[b]))
            plot.page.curve((ax, top), ((ax + bx) / 2, top - rise), (bx, top), kind_class(link.kind), width=wide)
        elif ay == by:
            plot.page.line((ax, ay), (bx, by), kind_class(link.kind), width=2.4)
        else:
            x = ax if plot.half[a] < plot.half[b] else bx
            plot.page.line((x, ay), (x, by), kind_class(link.kind), width=wide)


def _bar(plot: _Plot, device: Device) -> None:
    if device.id not in plot.middle:
        return
    (x, y), half = plot.middle[device.id], plot.half[device.id]
    plot.page.rect((x - half, y - BAR_HEIGHT / 2), (2 * half, BAR_HEIGHT), "device", radius=4)
    words = named(device) if half > 60 else label(device)
    plot.page.text((x, y + 4), fitted(words, 10, 2 * half), size=10, anchor="middle")
