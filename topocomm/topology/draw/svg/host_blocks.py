"""One host as nested blocks: bars over or under their children, endpoints in a row, NICs beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from topocomm.topology.draw.device_tree import FABRICS, Host, Node, fabric_links, forest, loose_nodes, numa_order
from topocomm.topology.draw.names import label, ranges
from topocomm.topology.draw.svg.endpoint_order import Row, arrange
from topocomm.topology.draw.svg.gpu_fabric import Fabric, Pair, find_fabric, sum_rate
from topocomm.topology.draw.svg.svg_page import NAME_LETTER
from topocomm.topology.model import ENDPOINT_KINDS, Device, Link

CELL = 62.0
"""Width of one endpoint in the row."""
FOLDED = 110.0
"""Width of several devices drawn as one."""
NIC_CELL = 62.0
"""Width of one NIC."""
SLOT = 14.0
"""Width of the link to the parent, beside NICs."""
INSET = 4.0
"""Space between the edge of a cell and its box."""
SPREAD = 18.0
"""Extra space between endpoints where links run between neighbours."""
GAP = 16.0
"""Space between blocks without a common parent."""
NAME_LETTERS = 16
"""Letters of a NIC's name in one line; longer names take two."""
WORD_SIZE = 11.0
"""Font size of the words in boxes, in px."""
MOST_NICS = 8
"""NICs of one parent that are drawn; more are drawn as one."""
_NEAR_CODES = ("PIX", "PXB")
"""Pair codes that place a NIC without a link beside a GPU."""


@dataclass
class Block:
    """A device, or several drawn as one, with its children."""

    devices: list[Device]
    link: Link | None = None
    kids: list[Block] = field(default_factory=list)
    """Endpoints and bars, from left to right."""
    nics: list[Block] = field(default_factory=list)
    parent: Block | None = None
    level: int = 0
    """Rows of bars down to the endpoints; 0 is an endpoint."""
    x: float = 0.0
    width: float = 0.0
    inset: float = 0.0
    """Space between the edge of the cell and the box."""
    slot: float = 0.0
    """Width for the link to the parent, beside NICs."""
    loose: bool = False
    """Placed by a pair code or a NUMA number, not by a link."""

    @property
    def is_end(self) -> bool:
        """Whether the device can hold ranks."""
        return self.devices[0].kind in ENDPOINT_KINDS

    def ends(self) -> list[Block]:
        """Return the endpoints of this block, from left to right."""
        return [self] if self.is_end else [end for kid in self.kids for end in kid.ends()]

    def add(self, kid: Block) -> None:
        """Add a block to the list of its kind."""
        kid.parent = self
        (self.nics if kid.devices[0].kind == "nic" else self.kids).append(kid)


@dataclass
class HostBlocks:
    """Everything of one host that is drawn, without coordinates."""

    roots: list[Block]
    row: Row
    fabric: Fabric
    """Its single links are keyed by the ids of the blocks' first devices."""
    home: dict[str, Block]
    """Block by device."""
    rest: list[Link]
    """Links outside the tree and the fabric."""
    left_out: list[Device]
    """Endpoints that are not drawn."""
    links_of: dict[str, list[Link]]
    """By device, its links of the tree, both directions."""

    def tree_links(self, devices: Iterable[Device]) -> list[Link]:
        """Return the links of the tree from and to the devices."""
        return list(dict.fromkeys(link for device in devices for link in self.links_of.get(device.id, ())))


def build(host: Host, most_ends: int) -> HostBlocks:
    """Return the blocks of one host; more than `most_ends` endpoints are drawn as one by parent, or left out."""
    links = fabric_links(host.devices, host.links)
    in_fabric = set(links)
    tree_links = [link for link in host.links if link not in in_fabric]
    roots = _roots(host, tree_links)
    if sum(len(root.ends()) for root in roots) > most_ends:
        roots = _folded(roots)
    extra = [end for root in roots for end in root.ends()][most_ends:]
    for end in extra:
        (end.parent.kids if end.parent else roots).remove(end)
    for block in walk(roots):
        block.nics = _folded_nics(block.nics)
    nics = _folded_nics([root for root in roots if root.devices[0].kind == "nic"])
    roots = [*(root for root in roots if root.devices[0].kind != "nic"), *nics]
    roots.sort(key=lambda root: numa_order(next(iter(root.ends()), root).devices[0].numa))
    home = {d.id: block for block in walk(roots) for d in block.devices}
    fabric = _fabric(host, links, home)
    chords = fabric.chords
    row = _order(roots, chords)
    drawn = {
        frozenset((d.id, block.parent.devices[0].id)) for block in home.values() if block.parent for d in block.devices
    }
    rest = [x for x in tree_links if frozenset((x.src, x.dst)) not in drawn and x.src in home and x.dst in home]
    linked = {name for link in rest for name in link[:2]}
    for root in roots:
        _measure(root, SPREAD if chords else 0.0, linked)
    links_of: dict[str, list[Link]] = {}
    for link in tree_links:
        for name in (link.src, link.dst):
            links_of.setdefault(name, []).append(link)
    left_out = [device for end in extra for device in end.devices]
    return HostBlocks(roots, row, fabric, home, rest, left_out, links_of)


def _fabric(host: Host, links: Sequence[Link], home: Mapping[str, Block]) -> Fabric:
    """The fabric between drawn devices, with the switches that other hosts share; its single links between blocks."""
    shown = [d for d in host.devices if d.id in home or d.kind == "switch"] + list(host.shared)
    ids = {d.id for d in shown}
    links = [*links, *(link for link in host.outward if link.kind in FABRICS)]
    fabric = find_fabric(shown, [link for link in links if {link.src, link.dst} <= ids])
    for hub in fabric.hubs:
        if any(switch in host.shared for switch in hub.switches):
            hub.words = (f"shared by hosts, {hub.words[0]}", f"shared {hub.words[1]}", hub.words[2])
    fabric.chords, fabric.arcs = _of_blocks(fabric.chords, home), _of_blocks(fabric.arcs, home)
    return fabric


def _of_blocks(links: Mapping[Pair, list[Link]], home: Mapping[str, Block]) -> dict[Pair, list[Link]]:
    """The links by the first devices of the two blocks that they join."""
    joined: dict[Pair, list[Link]] = {}
    for pair, own in links.items():
        first, second = (home[name].devices[0].id for name in pair)
        if first != second:
            key = (second, first) if (second, first) in joined else (first, second)
            joined.setdefault(key, []).extend(own)
    return joined


def nic_words(nic: Block) -> tuple[str, ...]:
    """Return the lines that a NIC's box has: label and name, or the number of those drawn as one."""
    device = nic.devices[0]
    short = label(device)
    if len(nic.devices) > 1:
        listed = ranges(map(label, nic.devices))
        return (f"{len(nic.devices)} NICs", *([listed] if len(listed) <= NAME_LETTERS else []))
    if device.name and device.name not in short:
        return short, *wrap(device.name, max(NAME_LETTERS, len(device.name) // 2 + 8))
    own = short if short[4:].isdigit() else short.removeprefix("NIC/").removeprefix("0000:")
    return tuple(own.rsplit(":", 1)) if own.count(":") == 2 else (own,)


def _block(node: Node) -> Block:
    block = Block([node.device], node.link)
    for child in node.children:
        block.add(_block(child))
    return block


def _roots(host: Host, tree_links: Sequence[Link]) -> list[Block]:
    """The trees of the host, then endpoints and NICs outside of them.

    A NIC that several endpoints share goes to the first of them; a NIC without a link to the GPU that a pair code
    names, else on its NUMA node.
    """
    nodes = forest(host.devices, tree_links)
    loose = loose_nodes(host.devices, tree_links, nodes)
    roots = [_block(node) for node in (*nodes, *(node for node in loose if node.device.kind != "nic"))]
    nics = [node for node in loose if node.device.kind == "nic"]
    ends = {d.id: end for root in roots for end in root.ends() for d in end.devices}
    for node in nics:
        for child in node.children:
            if child.device.id not in ends:
                roots.append(Block([child.device]))
                ends[child.device.id] = roots[-1]
        if node.children:
            first = node.children[0]
            ends[first.device.id].add(Block([node.device], first.link))
    codes = {(p.a, p.b): p.code for p in host.pairs}
    taken: dict[str, int] = dict.fromkeys(ends, 0)
    for nic in (node.device for node in nics if not node.children):
        block = Block([nic], loose=True)
        near = [end for code in _NEAR_CODES for end in ends if codes.get((end, nic.id)) == code]
        near = near or [
            name for name, end in ends.items() if not end.parent and end.devices[0].numa == nic.numa is not None
        ]
        bars = [r for r in roots if r.devices[0].kind == "numa" and r.devices[0].numa == nic.numa is not None]
        if near:
            best = min(near, key=lambda end: taken[end])
            taken[best] += 1
            ends[best].add(block)
        elif bars:
            bars[0].add(block)
        else:
            roots.append(block)
    return roots


def _folded(roots: list[Block]) -> list[Block]:
    """The roots with endpoints of equal parent and figures drawn as one; those without a parent by NUMA node."""

    def fold(kids: Iterable[Block]) -> list[Block]:
        groups: dict[object, Block] = {}
        for kid in kids:
            key = (kid.devices[0].kind, kid.devices[0].numa, kid.link and kid.link[2:])
            if not kid.is_end or kid.nics:
                groups[id(kid)] = kid
            elif key in groups:
                groups[key].devices += kid.devices
            else:
                groups[key] = kid
        return list(groups.values())

    for block in walk(roots):
        block.kids = fold(block.kids)
    return fold(roots)


def _folded_nics(nics: list[Block]) -> list[Block]:
    """The NICs of one parent, as one block where they are too many."""
    if len(nics) <= MOST_NICS:
        return nics
    nics[0].devices = [d for nic in nics for d in nic.devices]
    return nics[:1]


def _order(roots: list[Block], chords: Mapping[Pair, list[Link]]) -> Row:
    """Choose the order of the endpoints and sort the blocks by it."""
    ends = [end for root in roots for end in root.ends()]
    names = [end.devices[0].id for end in ends]
    groups = [[end.devices[0].id for end in block.ends()] for block in walk(roots)]
    by_numa: dict[object, list[str]] = {}
    for end in ends:
        if end.parent is None:
            by_numa.setdefault(end.devices[0].numa, []).append(end.devices[0].id)
    weights = {(a, b): sum_rate(links, links[0].src) or 1.0 for (a, b), links in chords.items()}
    row = arrange(names, [g for g in (*groups, *by_numa.values()) if len(g) > 1], weights)
    place = {name: index for index, name in enumerate(row.order)}

    def first(block: Block) -> int:
        return min((place[end.devices[0].id] for end in block.ends()), default=len(place))

    for block in walk(roots):
        block.kids.sort(key=first)
    roots.sort(key=first)
    return row


def _measure(block: Block, spread: float, linked: Collection[str]) -> None:
    for kid in block.kids:
        _measure(kid, spread, linked)
    block.level = 0 if block.is_end else 1 + max((kid.level for kid in block.kids), default=0)
    block.inset = INSET + (spread / 2 if block.is_end else 0.0)
    nics = sum(nic_width(nic) for nic in block.nics)
    has_uplink = block.parent or any(d.id in linked for d in block.devices)
    block.slot = SLOT if nics and has_uplink else 0.0
    kids = sum(kid.width for kid in block.kids) + sum(gaps(block))
    spread = spread if block.is_end else 0.0
    words = len(label(block.devices[0])) * NAME_LETTER * WORD_SIZE + 2 * INSET + 6
    own = FOLDED if len(block.devices) > 1 else CELL if block.is_end else max(CELL, words)
    block.width = max(nics + block.slot + spread, kids, own + spread)


def gaps(block: Block) -> list[float]:
    """Return the space before each kid of a block but the first: NUMA nodes stand apart."""
    return [GAP if kid.devices[0].kind == "numa" else 0.0 for kid in block.kids[1:]]


def nic_width(nic: Block) -> float:
    """Return the width of a NIC, or of several drawn as one: its words have room."""
    words = max(map(len, nic_words(nic))) * NAME_LETTER * WORD_SIZE + 2 * INSET + 6
    return max(NIC_CELL, words) if len(nic.devices) == 1 else FOLDED


def walk(roots: Iterable[Block]) -> list[Block]:
    """Return the blocks and all below them, NICs too, each before its children."""
    blocks: list[Block] = []
    stack = list(roots)[::-1]
    while stack:
        block = stack.pop()
        blocks.append(block)
        stack += [*block.nics, *block.kids][::-1]
    return blocks
