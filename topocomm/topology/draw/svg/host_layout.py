"""The coordinates of one drawn host: boxes, and the lines between them.

From top to bottom: bars of the GPU fabric, single links above the row, the row of endpoints, links below it, NICs of
endpoints, then the PCIe and NUMA tree as bars under their children, each with its NICs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topocomm.topology.draw.device_tree import shared_cpus
from topocomm.topology.draw.names import label, listed, named, rounded
from topocomm.topology.draw.svg.endpoint_order import ABOVE, BELOW, STRAIGHT
from topocomm.topology.draw.svg.gpu_fabric import Hub, Pair, sum_rate
from topocomm.topology.draw.svg.host_blocks import CELL, GAP, INSET, Block, HostBlocks, gaps, nic_width, nic_words, walk
from topocomm.topology.draw.svg.plot import (
    BAR_HEIGHT,
    BOLD,
    END_HEIGHT,
    HEADER,
    LEAST_BOLD,
    MARGIN,
    MOST_THIN,
    NIC_HEIGHT,
    STRIP,
    THIN,
    TRACK,
    Box,
    Line,
    Plot,
    Region,
    free_rows,
    ladder,
    track_levels,
)
from topocomm.topology.draw.svg.svg_page import Point
from topocomm.topology.model import Link

ARC_HEIGHT, ARC = 96.0, 1.8
"""Height of the widest arc of a mesh, and width of its line."""


def lay_out(blocks: HostBlocks) -> Plot:
    """Return the host with coordinates."""
    return _Layout(blocks).plot


class _Layout:
    def __init__(self, blocks: HostBlocks) -> None:
        self.blocks, self.plot = blocks, Plot(left_out=len(blocks.left_out))
        self.right = self._across()
        rates = [sum_rate(own, end) for hub in blocks.fabric.hubs for end, own in hub.links_of.items()]
        single = (*blocks.fabric.chords.values(), *blocks.fabric.arcs.values())
        rates += [sum_rate(links, links[0].src) for links in single]
        known = [rounded_rate for rate in rates if rate and (rounded_rate := _rounded(rate))]
        self.widths = ladder(known, LEAST_BOLD, BOLD)
        self.fastest = max(known, default=0.0)
        self.plot.widths = thin_widths(link for own in blocks.links_of.values() for link in own)
        self._down()

    def _across(self) -> float:
        """Place the blocks side by side; return the right edge."""
        x, previous = MARGIN, None
        for root in self.blocks.roots:
            place = root.devices[0].numa if root.is_end else root.devices[0].id
            if previous is not None and previous != (root.is_end, place):
                x += GAP
            if root.is_end and place is not None and previous != (True, place):
                x += STRIP
            previous = (root.is_end, place)
            _put(root, x)
            x += root.width
        return x

    def _down(self) -> None:
        ends = [end for root in self.blocks.roots for end in root.ends()]
        middles = {d.id: end.x + end.width / 2 for end in ends for d in end.devices}
        hubs = [hub for hub in self.blocks.fabric.hubs if any(end in middles for end in hub.links_of)]
        stretches = [[middles[end] for end in hub.links_of if end in middles] for hub in hubs]
        rows = free_rows([(min(stretch), max(stretch)) for stretch in stretches])
        spans = _chord_ends(self.blocks)
        levels = {
            side: track_levels({p: span for p, (s, span) in spans.items() if s == side}) for side in (ABOVE, BELOW)
        }
        rooms = {side: TRACK * (1 + max(own.values())) + 8 if own else 0.0 for side, own in levels.items()}
        top = HEADER + (BAR_HEIGHT + 14) * (1 + max(rows)) + 4 if rows else HEADER
        arcs = self._arc_room(middles)
        row = top + rooms[ABOVE] + arcs + (6 if not rows else 8)
        for end in ends:
            self._box(end, row, END_HEIGHT)
        self._hubs(hubs, rows, row)
        self._chords(spans, levels, row)
        self._arcs(ends, row, arcs)
        y = self._nics(ends, row + END_HEIGHT, row + END_HEIGHT + rooms[BELOW])
        y = self._bars(y)
        unplaced = [root for root in self.blocks.roots if root.devices[0].kind == "nic"]
        for nic in unplaced:
            self._nic(nic, (nic.x + INSET, y + 16), nic.width - 2 * INSET)
        y += 16 + NIC_HEIGHT if unplaced else 0
        y = self._rest(y)
        self._regions(row, y)
        self.plot.size = (max(self.right + MARGIN, 280.0), y + MARGIN)

    def _box(self, block: Block, y: float, height: float) -> Box:
        words: tuple[str, ...] = (listed(block.devices),)
        if not block.is_end:
            ends = [d for end in block.ends() for d in end.devices]
            cpus = shared_cpus(ends) if block.devices[0].kind == "numa" else None
            words = (named(block.devices[0]) + (f"  CPUs {cpus}" if cpus else ""), label(block.devices[0]))
        role = "end" if block.is_end else "bar"
        corner, size = (block.x + block.inset, y), (block.width - 2 * block.inset, height)
        return self.plot.add(Box(tuple(block.devices), corner, size, role, words))

    def _width(self, links: Sequence[Link], end: str) -> tuple[float, bool]:
        rate = sum_rate(links, end)
        if rate is None or not self.fastest:
            return (LEAST_BOLD + BOLD) / 2, True
        return self.widths[_rounded(rate)], _rounded(rate) == self.fastest

    def _hubs(self, hubs: Sequence[Hub], rows: Sequence[int], row: float) -> None:
        """Bars above the row; lines into higher bars run beside the others."""
        for hub, level in zip(hubs, rows, strict=True):
            ends = [self.plot.at[end] for end in hub.links_of if end in self.plot.at]
            left, right = min(e.corner[0] for e in ends), max(e.corner[0] + e.size[0] for e in ends)
            y = HEADER + (BAR_HEIGHT + 14) * (max(rows) - level)
            role = "bar" if hub.switches else "mesh"
            bar = Box(tuple(hub.switches), (left, y), (right - left, BAR_HEIGHT), role, hub.words)
            self.plot.add(bar)
            drawn: set[Point] = set()
            for end, links in hub.links_of.items():
                if end not in self.plot.at:
                    continue
                x = self.plot.at[end].middle[0] + 9 * ((level + 1) // 2) * (-1) ** level
                if (x, y) not in drawn:
                    width, heavy = self._width(links, end)
                    drawn.add((x, y))
                    points = ((x, y + BAR_HEIGHT), (x, row))
                    self.plot.lines.append(Line(points, links[0].kind, width, tuple(links), heavy))
        for link in self.blocks.fabric.trunks:
            a, b = self.plot.at.get(link.src), self.plot.at.get(link.dst)
            if a and b and a is not b and link.src < link.dst:
                self.plot.straight(a, b, [link], self._width([link], link.src))

    def _chords(self, spans: dict[Pair, tuple[int, Point]], levels: dict[int, dict[Pair, int]], row: float) -> None:
        for pair, (side, (left, right)) in spans.items():
            links = self.blocks.fabric.chords[pair]
            width, heavy = self._width(links, links[0].src)
            if side == STRAIGHT:
                y = row + END_HEIGHT / 2
                points: tuple[Point, ...] = ((left, y), (right, y))
            else:
                start = row if side == ABOVE else row + END_HEIGHT
                y = start + side * (8 + TRACK * levels[side][pair])
                points = ((left, start), (left, y), (right, y), (right, start))
            self.plot.lines.append(Line(points, links[0].kind, width, tuple(links), heavy))

    def _arc_room(self, middles: dict[str, float]) -> float:
        """Height for the arcs of meshes above the row, and their caption."""
        wide = max((abs(middles[a] - middles[b]) for a, b in self.blocks.fabric.arcs), default=0.0)
        return 26 + ARC_HEIGHT * min(wide / 400, 1.0) if wide else 0.0

    def _arcs(self, ends: Sequence[Block], row: float, room: float) -> None:
        """The links of meshes, each end beside the others along the top of its box, the farthest in the middle."""
        arcs = self.blocks.fabric.arcs
        if not arcs:
            return
        place = {end.devices[0].id: index for index, end in enumerate(ends)}
        at = {end.devices[0].id: end for end in ends}
        pitch = min(7.0, (CELL - 2 * INSET - 6) / max(len(ends) - 1, 1))
        wide = max(abs(at[a].x - at[b].x) for a, b in arcs)
        for pair, links in arcs.items():
            a, b = sorted(pair, key=place.__getitem__)
            count = len(ends)
            xs = [
                at[one].x
                + at[one].width / 2
                + pitch * (((place[one] - place[other]) % count) - count / 2) * (1 if count > 2 else 0)
                for one, other in ((a, b), (b, a))
            ]
            rise = (room - 26) * (at[b].x - at[a].x) / wide
            line = Line(((xs[0], row), (xs[1], row)), links[0].kind, ARC, tuple(links), False, "", rise)
            self.plot.lines.append(line)
        middle = (at[ends[0].devices[0].id].x + ends[-1].x + ends[-1].width) / 2
        for index, words in enumerate(self.blocks.fabric.mesh_words):
            self.plot.captions.append(((middle, row - room + 12 - 14 * index), words))

    def _nics(self, owners: Sequence[Block], start: float, y: float) -> float:
        """The NICs of one row of blocks, in a row below; returns the bottom."""
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
                    self.plot.lines.append(Line(ends, "other", THIN, (), False, words))
                elif nic.link:
                    self.plot.thin(ends, self._both(nic, owner))
        return y + NIC_HEIGHT

    def _nic(self, nic: Block, corner: Point, width: float) -> Box:
        return self.plot.add(Box(tuple(nic.devices), corner, (width, NIC_HEIGHT), "nic", nic_words(nic)))

    def _bars(self, y: float) -> float:
        """The tree below the row, its roots on one line."""
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
                    box = self.plot.at[kid.devices[0].id]
                    x = kid.x + kid.width / 2  # the link leaves a block in its middle, or beside its NICs
                    if kid.slot:
                        x = kid.x + kid.width - kid.inset - kid.slot / 2
                    self.plot.thin(((x, box.corner[1] + box.size[1]), (x, y)), self._both(kid, bar))
            y = self._nics(row, y + BAR_HEIGHT, y + BAR_HEIGHT)
        return y

    def _both(self, kid: Block, parent: Block) -> list[Link]:
        ids = {d.id for d in (*kid.devices, *parent.devices)}
        return [link for link in self.blocks.tree_links(kid.devices) if {link.src, link.dst} <= ids]

    def _rest(self, y: float) -> float:
        """Links outside the tree and the fabric; those between bars of one row may need room below everything."""
        pairs: dict[Pair, list[Link]] = {}
        for link in self.blocks.rest:
            pairs.setdefault((min(link.src, link.dst), max(link.src, link.dst)), []).append(link)
        level: dict[Pair, list[Link]] = {}
        for pair, links in pairs.items():
            a, b = self.plot.at[pair[0]], self.plot.at[pair[1]]
            if a.role == b.role == "bar" and a.corner[1] == b.corner[1]:
                level[pair] = links
            elif a is not b:
                self.plot.straight(a, b, links, (THIN, False))
        bars = {self.plot.at[name].corner: self.plot.at[name] for pair in level for name in pair}
        ends = [bars[corner] for corner in sorted(bars)]
        links = [link for own in level.values() for link in own]
        is_mesh = len(level) == len(ends) * (len(ends) - 1) // 2 and len({link[2:6] for link in links}) == 1
        if len(ends) < 3 or not is_mesh:
            return self._between_bars(level, ends, y)
        y += 18
        left, right = ends[0].corner[0], ends[-1].corner[0] + ends[-1].size[0]
        words = ("between NUMA nodes, each to each", "each to each")
        self.plot.add(Box((), (left, y), (right - left, BAR_HEIGHT), "mesh", words))
        for end in ends:
            names = {device.id for device in end.devices}
            x = end.corner[0] + end.size[0] - 7
            own = [link for link in links if {link.src, link.dst} & names]
            self.plot.thin(((x, end.corner[1] + end.size[1]), (x, y)), own)
        return y + BAR_HEIGHT

    def _between_bars(self, pairs: dict[Pair, list[Link]], ends: Sequence[Box], y: float) -> float:
        """Straight lines between neighbouring bars, others below everything."""
        order = [end.corner for end in ends]
        spans: dict[Pair, Point] = {}
        for pair, links in pairs.items():
            a, b = sorted((self.plot.at[name] for name in pair), key=lambda box: box.corner)
            if order.index(b.corner) - order.index(a.corner) == 1:
                middle = a.middle[1]
                self.plot.thin(((a.corner[0] + a.size[0], middle), (b.corner[0], middle)), links)
            else:
                spans[pair] = (a.corner[0] + a.size[0] - 10 - 5 * len(spans), b.corner[0] + 10 + 5 * len(spans))
        levels = track_levels(spans)
        for pair, (left, right) in spans.items():
            box = self.plot.at[pair[0]]
            foot, low = box.corner[1] + box.size[1], y + 10 + TRACK * levels[pair]
            self.plot.thin(((left, foot), (left, low), (right, low), (right, foot)), pairs[pair])
        return y + (14 + TRACK * max(levels.values()) if levels else 0.0)

    def _regions(self, row: float, bottom: float) -> None:
        """Tinted regions below the parts of a root, and around endpoints of one NUMA node without a root."""
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


def thin_widths(links: Iterable[Link]) -> dict[tuple[str, float], float]:
    """Return the line width of links outside the GPU fabric, by kind and GB/s."""
    rates: dict[str, set[float]] = {}
    for link in links:
        rates.setdefault(link.kind, set()).add(link.gb_per_s or 0.0)
    return {
        (kind, rate): width
        for kind, own in rates.items()
        if len(own) > 1
        for rate, width in ladder(own, THIN, MOST_THIN).items()
    }


def _rounded(rate: float) -> float:
    """The rate that words tell: equal words, equal lines."""
    return float(rounded(rate))


def _put(block: Block, x: float) -> None:
    block.x = x
    x += (block.width - sum(kid.width for kid in block.kids) - sum(gaps(block))) / 2
    for kid, gap in zip(block.kids, [*gaps(block), 0.0], strict=False):
        _put(kid, x)
        x += kid.width + gap


def _chord_ends(blocks: HostBlocks) -> dict[Pair, tuple[int, Point]]:
    """By single link, its side and its x at both endpoints, so that links do not cross at a box."""
    spans: dict[Pair, tuple[int, Point]] = {}
    ends = {end.devices[0].id: end for root in blocks.roots for end in root.ends()}
    place = {name: index for index, name in enumerate(blocks.row.order)}
    at: dict[tuple[Pair, str], float] = {}
    for name, end in ends.items():
        for side in (ABOVE, BELOW):
            own = [pair for pair, s in blocks.row.sides.items() if s == side and name in pair]
            others = {pair: place[pair[0] if pair[1] == name else pair[1]] - place[name] for pair in own}
            left = sorted((pair for pair in own if others[pair] < 0), key=lambda pair: others[pair])
            right = sorted((pair for pair in own if others[pair] > 0), key=lambda pair: -others[pair])
            pitch = min(8.0, (end.width / 2 - end.inset - 4) / max(len(left), len(right), 1))
            for sign, pairs in ((-1, left), (1, right)):  # the farthest next to the middle
                for index, pair in enumerate(pairs, 1):
                    at[pair, name] = end.x + end.width / 2 + sign * pitch * index
    for pair, side in blocks.row.sides.items():
        a, b = sorted(pair, key=lambda name: place[name])
        if side == STRAIGHT:
            spans[pair] = side, (ends[a].x + ends[a].width - ends[a].inset, ends[b].x + ends[b].inset)
        else:
            spans[pair] = side, (at[pair, a], at[pair, b])
    return spans
