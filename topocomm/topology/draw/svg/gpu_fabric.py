"""What joins the GPUs of one host directly: bars for switches and full meshes, chords for single links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from topocomm.topology.draw.device_tree import FABRICS
from topocomm.topology.draw.names import label, ranges
from topocomm.topology.model import Device, Link

Pair = tuple[str, str]
LEAST_MESH = 5
"""Endpoints that are joined each to each; four can be drawn link by link without a crossing."""
MOST_CHORDS = 120
"""More single links than can be told apart; what they join gets one bar."""
MOST_LOST = 0.2
"""Part of the pairs of a mesh that may have no link; the bar's words name them."""


@dataclass
class Hub:
    """Switches that join the same devices, or (without switches) devices joined each to each; drawn as one bar."""

    switches: list[Device]
    ways: dict[str, list[Link]]
    """By endpoint, its links into the switches or to the others, both directions."""
    words: tuple[str, ...]
    """What the bar says, in full and shorter."""


@dataclass
class Fabric:
    """The fabric of one host: bars, single links with both directions, and links between its switches."""

    hubs: list[Hub] = field(default_factory=list)
    chords: dict[Pair, list[Link]] = field(default_factory=dict)
    trunks: list[Link] = field(default_factory=list)


def find_fabric(devices: Sequence[Device], links: Sequence[Link]) -> Fabric:
    """The fabric in the links of one host.

    Args:
        devices: All devices of the host.
        links: Of kinds in `forest.FABRICS`, between GPUs and switches.
    """
    by_id = {d.id: d for d in devices}
    fabric = Fabric()
    members: dict[str, dict[str, list[Link]]] = {}
    direct: dict[Pair, list[Link]] = {}
    for link in links:
        switches = [end for end in (link.src, link.dst) if by_id[end].kind == "switch"]
        if len(switches) == 2:
            fabric.trunks.append(link)
        elif switches:
            end = link.dst if link.src == switches[0] else link.src
            members.setdefault(switches[0], {}).setdefault(end, []).append(link)
        else:
            pair = (link.src, link.dst) if (link.dst, link.src) not in direct else (link.dst, link.src)
            direct.setdefault(pair, []).append(link)
    same: dict[frozenset[str], list[str]] = {}
    for switch, ways in members.items():
        same.setdefault(frozenset(ways), []).append(switch)
    for names in same.values():
        ends = [name for name in by_id if name in members[names[0]]]
        ways = {end: [link for name in names for link in members[name][end]] for end in ends}
        shown = ranges(label(by_id[name]) for name in names)
        each = _each(ways)
        words = (f"{shown}: {each}", f"{shown}: {each.split(', ')[-1].removesuffix(' from each GPU')}", shown)
        fabric.hubs.append(Hub([by_id[name] for name in names], ways, words))
    for mesh in _meshes(direct):
        fabric.hubs.append(_mesh_hub(mesh, direct, by_id))
        for pair in [pair for pair in direct if set(pair) <= mesh]:
            del direct[pair]
    fabric.chords = direct
    return fabric


def _meshes(direct: dict[Pair, list[Link]]) -> list[set[str]]:
    """Sets of endpoints that a bar stands for: nearly all joined each to each by links of one figure, or too many."""
    islands: list[set[str]] = []
    for pair in direct:
        touched = [island for island in islands if island & set(pair)]
        islands = [island for island in islands if island not in touched] + [set(pair).union(*touched)]
    found = []
    for island in islands:
        inside = [links for pair, links in direct.items() if set(pair) <= island]
        figures = {link[2:6] for links in inside for link in links}
        pairs = len(island) * (len(island) - 1) / 2
        whole = len(island) >= LEAST_MESH and len(figures) == 1 and len(inside) >= (1 - MOST_LOST) * pairs
        if whole or len(inside) > MOST_CHORDS:
            found.append(island)
    return found


def _mesh_hub(mesh: set[str], direct: dict[Pair, list[Link]], by_id: dict[str, Device]) -> Hub:
    ends = [name for name in by_id if name in mesh]
    ways: dict[str, list[Link]] = {end: [] for end in ends}
    for pair, links in direct.items():
        for end in set(pair) & mesh:
            ways[end] += links
    if len({link[2:6] for own in ways.values() for link in own}) > 1 or len(direct) < len(ends):
        kind = FABRICS[ways[ends[0]][0].kind]
        return Hub([], ways, (f"{kind}, {len(direct)} links that differ", kind))
    lost = [pair for pair in combinations(ends, 2) if pair not in direct and pair[::-1] not in direct]
    but = ", ".join(f"{label(by_id[a])}-{label(by_id[b]).split('/')[-1]}" for a, b in lost[:4])
    but = f" but {but}{' ...' if len(lost) > 4 else ''}" if lost else ""
    link = ways[ends[0]][0]
    lanes = f" x{link.lanes}" if link.lanes and link.lanes > 1 else ""
    words = f"each to each{but}: {FABRICS[link.kind]}{lanes}, {rate(link)}"
    return Hub([], ways, (words, f"each to each{but}", "each to each"))


def _each(ways: dict[str, list[Link]]) -> str:
    """What each endpoint has into its switches, where all have the same."""
    totals = {(sum_lanes(own, end), sum_rate(own, end)) for end, own in ways.items()}
    kind = FABRICS[next(iter(ways.values()))[0].kind]
    if len(totals) > 1:
        return f"{kind}, figures differ"
    lanes, gb_per_s = next(iter(totals))
    words = f"{lanes} {kind}s" if lanes else kind
    return f"{words}, {'GB/s not known' if gb_per_s is None else f'{gb_per_s:.6g} GB/s'} from each GPU"


def rate(link: Link) -> str:
    """GB/s of a link in words."""
    return "GB/s not known" if link.gb_per_s is None else f"{link.gb_per_s:.6g} GB/s"


def sum_lanes(links: Iterable[Link], end: str) -> int | None:
    """Bonded links out of an endpoint, None where one does not say."""
    lanes = [link.lanes for link in links if link.src == end]
    return sum(lane for lane in lanes if lane) if all(lanes) else None


def sum_rate(links: Iterable[Link], end: str) -> float | None:
    """GB/s out of an endpoint, None where one does not say."""
    rates = [link.gb_per_s for link in links if link.src == end]
    return sum(r for r in rates if r) if all(rates) else None
