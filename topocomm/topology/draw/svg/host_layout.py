"""Where everything of one host is drawn: boxes, and the lines between them.

From top to bottom: bars of the GPU fabric, single links that run over the row, the row of endpoints, links that run
under it, NICs of endpoints, then the PCIe and NUMA tree as bars under all that hangs on them, each with its NICs.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.topology.draw.names import label, listed, named
from topocomm.topology.draw.svg.endpoint_order import ABOVE, BELOW, STRAIGHT
from topocomm.topology.draw.svg.gpu_fabric import Hub, Pair, sum_rate
from topocomm.topology.draw.svg.host_blocks import GAP, INSET, Block, HostBlocks, gaps, nic_width, walk
from topocomm.topology.draw.svg.plot import (
    BAR_HEIGHT,
    BOLD,
    END_HEIGHT,
    HEADER,
    LEAST_BOLD,
    MARGIN,
    NIC_HEIGHT,
    STRIP,
    THIN,
    TRACK,
    Box,
    Plot,
    Region,
    Wire,
    lanes,
    track_levels,
)
from topocomm.topology.draw.svg.svg_page import Point
from topocomm.topology.model import Link


def lay_out(blocks: HostBlocks) -> Plot:
    """The host with coordinates."""
    return _Layout(blocks).plot


class _Layout:
    def __init__(self, blocks: HostBlocks) -> None:
        self.blocks, self.plot = blocks, Plot()
        self.right = self._across()
        self.fastest = max(
            [sum_rate(own, end) or 0.0 for hub in blocks.fabric.hubs for end, own in hub.ways.items()]
            + [sum_rate(links, links[0].src) or 0.0 for links in blocks.chords.values()],
            default=0.0,
        )
        self.plot.left_out = len(blocks.left_out)
        self._down()

    def _across(self) -> float:
        """Puts the blocks side by side."""
        x, before = MARGIN, None
        for root in self.blocks.roots:
            place = root.devices[0].numa if root.is_end else root.devices[0].id
            if before is not None and before != (root.is_end, place):
                x += GAP
            if root.is_end and place is not None and before != (True, place):
                x += STRIP
            before = (root.is_end, place)
            _put(root, x)
            x += root.width
        return x

    def _down(self) -> None:
        """Goes down the picture, row by row."""
        ends = [end for root in self.blocks.roots for end in root.ends()]
        middles = {d.id: end.x + end.width / 2 for end in ends for d in end.devices}
        hubs = [hub for hub in self.blocks.fabric.hubs if any(end in middles for end in hub.ways)]
        stretches = [[middles[end] for end in hub.ways if end in middles] for hub in hubs]
        rows = lanes([(min(stretch), max(stretch)) for stretch in stretches])
        spans = _chord_ends(self.blocks)
        levels = {
            side: track_levels({p: span for p, (s, span) in spans.items() if s == side}) for side in (ABOVE, BELOW)
        }
        rooms = {side: TRACK * (1 + max(found.values())) + 8 if found else 0.0 for side, found in levels.items()}
        top = HEADER + (BAR_HEIGHT + 14) * (1 + max(rows)) + 4 if rows else HEADER
        row = top + rooms[ABOVE] + (6 if not rows else 8)
        for end in ends:
            self._box(end, row, END_HEIGHT)
        self._hubs(hubs, rows, row)
        self._chords(spans, levels, row)
        y = row + END_HEIGHT + rooms[BELOW]
        y = self._nics(ends, row + END_HEIGHT, y)
        y = self._bars(y)
        y = self._alone(y)
        y = draw_rest(self.plot, self.blocks.rest, y)
        self._regions(row, y)
        self.plot.size = (max(self.right + MARGIN, 280.0), y + MARGIN)

    def _box(self, block: Block, y: float, height: float) -> Box:
        words: tuple[str, ...] = (listed(block.devices),)
        if not block.is_end:
            words = (f"{named(block.devices[0])}{_cpus(block)}", label(block.devices[0]))
        role = "end" if block.is_end else "bar"
        corner, size = (block.x + block.inset, y), (block.width - 2 * block.inset, height)
        return self.plot.add(Box(tuple(block.devices), corner, size, role, words))

    def _bold(self, links: Sequence[Link], end: str) -> tuple[float, bool]:
        rate = sum_rate(links, end)
        if rate is None or not self.fastest:
            return (LEAST_BOLD + BOLD) / 2, True
        return max(LEAST_BOLD, BOLD * rate / self.fastest), rate >= self.fastest * (1 - 1e-9)

    def _hubs(self, hubs: Sequence[Hub], rows: Sequence[int], row: float) -> None:
        """Bars over the row; the wires into those further up are beside the others."""
        for hub, lane in zip(hubs, rows, strict=True):
            ends = [self.plot.at[end] for end in hub.ways if end in self.plot.at]
            left, right = min(e.corner[0] for e in ends), max(e.corner[0] + e.size[0] for e in ends)
            y = HEADER + (BAR_HEIGHT + 14) * (max(rows) - lane)
            role = "bar" if hub.switches else "mesh"
            bar = Box(tuple(hub.switches), (left, y), (right - left, BAR_HEIGHT), role, hub.words)
            self.plot.add(bar)
            drawn: set[Point] = set()
            for end, links in hub.ways.items():
                if end not in self.plot.at:
                    continue
                x = self.plot.at[end].middle[0] + 9 * ((lane + 1) // 2) * (-1) ** lane
                if (x, y) not in drawn:
                    width, heavy = self._bold(links, end)
                    drawn.add((x, y))
                    points = ((x, y + BAR_HEIGHT), (x, row))
                    self.plot.wires.append(Wire(points, links[0].kind, width, tuple(links), heavy))
        for link in self.blocks.fabric.trunks:
            a, b = self.plot.at.get(link.src), self.plot.at.get(link.dst)
            if a and b and a is not b and link.src < link.dst:
                self.plot.straight(a, b, [link], self._bold([link], link.src))

    def _chords(self, spans: dict[Pair, tuple[int, Point]], levels: dict[int, dict[Pair, int]], row: float) -> None:
        for pair, (side, (left, right)) in spans.items():
            links = self.blocks.chords[pair]
            width, heavy = self._bold(links, links[0].src)
            if side == STRAIGHT:
                y = row + END_HEIGHT / 2
                points: tuple[Point, ...] = ((left, y), (right, y))
            else:
                start = row if side == ABOVE else row + END_HEIGHT
                y = start + side * (8 + TRACK * levels[side][pair])
                points = ((left, start), (left, y), (right, y), (right, start))
            self.plot.wires.append(Wire(points, links[0].kind, width, tuple(links), heavy))

    def _nics(self, owners: Sequence[Block], start: float, y: float) -> float:
        """The NICs of one row of blocks, in a row below it; returns where the next row goes."""
        if not any(owner.nics for owner in owners):
            return y
        y += 12
        for owner in owners:
            room = owner.width - owner.slot
            x = owner.x + max((room - sum(map(nic_width, owner.nics))) / 2, 0.0)
            for nic in owner.nics:
                width = nic_width(nic)
                box = self._nic(nic, (x + INSET, y), width - 2 * INSET)
                x += width
                ends = ((box.middle[0], start), (box.middle[0], y))
                if nic.loose:
                    words = f"{nic.devices[0].id} is placed by pair codes or NUMA numbers; no link of it is known"
                    self.plot.wires.append(Wire(ends, "other", THIN, (), False, words))
                elif nic.link:
                    self.plot.thin(ends, self._both(nic, owner))
        return y + NIC_HEIGHT

    def _nic(self, nic: Block, corner: Point, width: float) -> Box:
        device = nic.devices[0]
        short = label(device)
        words: tuple[str, ...] = (short if short[4:].isdigit() else short.removeprefix("NIC/").removeprefix("0000:"),)
        if len(nic.devices) > 1:
            words = (f"{len(nic.devices)} NICs", listed(nic.devices))
        elif device.name and device.name not in short:
            words = (short, device.name)
        return self.plot.add(Box(tuple(nic.devices), corner, (width, NIC_HEIGHT), "nic", words))

    def _bars(self, y: float) -> float:
        """The tree below the row; roots stand on one line."""
        bars = [block for block in walk(self.blocks.roots) if not block.is_end and block.devices[0].kind != "nic"]
        lowest = max((bar.level for bar in bars), default=0)
        for root in self.blocks.roots:
            if root in bars:
                root.level = lowest
        for level in range(1, lowest + 1):
            row = [bar for bar in bars if bar.level == level]
            y += 18
            for bar in row:
                self._box(bar, y, BAR_HEIGHT)
                for kid in bar.kids:
                    self._uplink(kid, bar, y)
            y = self._nics(row, y + BAR_HEIGHT, y + BAR_HEIGHT)
        return y

    def _uplink(self, kid: Block, parent: Block, y: float) -> None:
        x = _down_x(kid)
        box = self.plot.at[kid.devices[0].id]
        self.plot.thin(((x, box.corner[1] + box.size[1]), (x, y)), self._both(kid, parent))

    def _both(self, kid: Block, parent: Block) -> list[Link]:
        """Both directions between a block and its parent."""
        one, other = {d.id for d in kid.devices}, {d.id for d in parent.devices}
        return [link for link in self.blocks.tree_links(kid.devices) if {link.src, link.dst} <= one | other]

    def _alone(self, y: float) -> float:
        """NICs that nothing places, below everything."""
        nics = [root for root in self.blocks.roots if root.devices[0].kind == "nic"]
        for nic in nics:
            self._nic(nic, (nic.x + INSET, y + 16), nic.width - 2 * INSET)
        return y + 16 + NIC_HEIGHT if nics else y

    def _regions(self, row: float, bottom: float) -> None:
        """Tints: below what hangs on a root, and around endpoints of one NUMA node that have no root."""
        groups: dict[int | str, list[Block]] = {}
        for root in self.blocks.roots:
            if root.is_end and root.devices[0].numa is not None:
                groups.setdefault(root.devices[0].numa, []).append(root)
            elif not root.is_end and root.devices[0].kind != "nic":
                for part in [k for k in root.kids if k.devices[0].kind == "numa"] or [root]:
                    own = [self.plot.at[d.id] for block in walk([part]) for d in block.devices]
                    low = max(box.corner[1] + box.size[1] for box in own) + 6
                    self.plot.regions.append(Region((part.x - 2, row - 6), (part.width + 4, low - row + 6), ""))
        for numa, roots in groups.items():
            left, right = roots[0].x - STRIP, roots[-1].x + roots[-1].width
            self.plot.regions.append(Region((left, row - 6), (right - left, bottom - row + 12), f"NUMA {numa}"))


def _put(block: Block, x: float) -> None:
    block.x = x
    x += (block.width - sum(kid.width for kid in block.kids) - sum(gaps(block))) / 2
    for kid, gap in zip(block.kids, [*gaps(block), 0.0], strict=False):
        _put(kid, x)
        x += kid.width + gap


def _down_x(block: Block) -> float:
    """Where the link to the parent leaves a block: its middle, or beside its NICs."""
    return block.x + block.width - block.inset - block.slot / 2 if block.slot else block.x + block.width / 2


def _chord_ends(blocks: HostBlocks) -> dict[Pair, tuple[int, Point]]:
    """For each single link its side and where it leaves and meets the endpoints, so that none cross at a box."""
    found: dict[Pair, tuple[int, Point]] = {}
    ends = {end.devices[0].id: end for root in blocks.roots for end in root.ends()}
    place = {name: index for index, name in enumerate(blocks.row.order)}
    at: dict[tuple[Pair, str], float] = {}
    for name, end in ends.items():
        for side in (ABOVE, BELOW):
            mine = [pair for pair, own in blocks.row.sides.items() if own == side and name in pair]
            others = {pair: place[pair[0] if pair[1] == name else pair[1]] - place[name] for pair in mine}
            left = sorted((pair for pair in mine if others[pair] < 0), key=lambda pair: others[pair])
            right = sorted((pair for pair in mine if others[pair] > 0), key=lambda pair: -others[pair])
            pitch = min(8.0, (end.width / 2 - end.inset - 4) / max(len(left), len(right), 1))
            for sign, pairs in ((-1, left), (1, right)):  # the furthest next to the middle
                for index, pair in enumerate(pairs, 1):
                    at[pair, name] = end.x + end.width / 2 + sign * pitch * index
    for pair, side in blocks.row.sides.items():
        a, b = sorted(pair, key=lambda name: place[name])
        if side == STRAIGHT:
            found[pair] = side, (ends[a].x + ends[a].width - ends[a].inset, ends[b].x + ends[b].inset)
        else:
            found[pair] = side, (at[pair, a], at[pair, b])
    return found


def _cpus(block: Block) -> str:
    """The CPU list that all GPUs of a NUMA node share."""
    if block.devices[0].kind != "numa":
        return ""
    lists = {d.cpu_affinity for end in block.ends() for d in end.devices if d.kind == "gpu"}
    shared = lists.pop() if len(lists) == 1 else None
    return f"  CPUs {shared}" if shared else ""


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
