"""The GPU fabric of one host as drawn: bars for switches, arcs for full meshes, chords for single links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from topocomm.topology.draw.device_tree import FABRICS
from topocomm.topology.draw.names import label, ranges, rate_words
from topocomm.topology.model import Device, Link

Pair = tuple[str, str]
LEAST_MESH = 5
"""Fewest endpoints of a mesh; four joined each to each are drawn link by link without a crossing."""
MOST_MESH = 12
"""Most endpoints of a mesh whose links are drawn as arcs; larger ones get a bar."""
MOST_CHORDS = 120
"""Largest number of single links that are drawn; more get one bar."""
MOST_LOST = 0.2
"""Largest part of a mesh's pairs without a link; words name them."""


@dataclass
class Hub:
    """Switches that join the same devices, or (without switches) devices joined each to each; drawn as one bar."""

    switches: list[Device]
    links_of: dict[str, list[Link]]
    """By endpoint, its links to the switches or to other endpoints, both directions."""
    words: tuple[str, ...]
    """Text of the bar, in full and shorter."""


@dataclass
class Fabric:
    """The fabric of one host: bars, single links (both directions), and links between switches."""

    hubs: list[Hub] = field(default_factory=list)
    chords: dict[Pair, list[Link]] = field(default_factory=dict)
    arcs: dict[Pair, list[Link]] = field(default_factory=dict)
    """Links of meshes, which cross."""
    mesh_words: list[str] = field(default_factory=list)
    """One line for each mesh that is drawn as arcs."""
    trunks: list[Link] = field(default_factory=list)


def find_fabric(devices: Sequence[Device], links: Sequence[Link]) -> Fabric:
    """Return the fabric of one host from its links of kinds in `FABRICS`."""
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
    for switch, links_of in members.items():
        same.setdefault(frozenset(links_of), []).append(switch)
    for names in same.values():
        ends = [name for name in by_id if name in members[names[0]]]
        links_of = {end: [link for name in names for link in members[name][end]] for end in ends}
        shown = ranges(label(by_id[name]) for name in names)
        totals = _totals(links_of)
        words = (f"{shown}: {totals}", f"{shown}: {totals.split(', ')[-1].removesuffix(' from each GPU')}", shown)
        fabric.hubs.append(Hub([by_id[name] for name in names], links_of, words))
    for mesh in _meshes(direct):
        hub = _mesh_hub(mesh, direct, by_id)
        inside = {pair: direct.pop(pair) for pair in list(direct) if set(pair) <= mesh}
        if len(mesh) <= MOST_MESH and len({link[2:6] for own in inside.values() for link in own}) == 1:
            fabric.arcs |= inside
            fabric.mesh_words.append(hub.words[0])
        else:
            fabric.hubs.append(hub)
    fabric.chords = direct
    return fabric


def _meshes(direct: dict[Pair, list[Link]]) -> list[set[str]]:
    """Sets of endpoints that get a bar: nearly all joined by links of equal figures, or too many links."""
    islands: list[set[str]] = []
    for pair in direct:
        touched = [island for island in islands if island & set(pair)]
        islands = [island for island in islands if island not in touched] + [set(pair).union(*touched)]
    meshes = []
    for island in islands:
        inside = [links for pair, links in direct.items() if set(pair) <= island]
        figures = {link[2:6] for links in inside for link in links}
        pairs = len(island) * (len(island) - 1) / 2
        is_mesh = len(island) >= LEAST_MESH and len(figures) == 1 and len(inside) >= (1 - MOST_LOST) * pairs
        if is_mesh or len(inside) > MOST_CHORDS:
            meshes.append(island)
    return meshes


def _mesh_hub(mesh: set[str], direct: dict[Pair, list[Link]], by_id: dict[str, Device]) -> Hub:
    ends = [name for name in by_id if name in mesh]
    links_of: dict[str, list[Link]] = {end: [] for end in ends}
    for pair, links in direct.items():
        for end in set(pair) & mesh:
            links_of[end] += links
    if len({link[2:6] for own in links_of.values() for link in own}) > 1 or len(direct) < len(ends):
        kind = FABRICS[links_of[ends[0]][0].kind]
        return Hub([], links_of, (f"{kind}, {len(direct)} links that differ", kind))
    missing = [pair for pair in combinations(ends, 2) if pair not in direct and pair[::-1] not in direct]
    but = ", ".join(f"{label(by_id[a])}-{label(by_id[b]).split('/')[-1]}" for a, b in missing[:4])
    but = f" but {but}{' ...' if len(missing) > 4 else ''}" if missing else ""
    link = links_of[ends[0]][0]
    lanes = f" x{link.lanes}" if link.lanes and link.lanes > 1 else ""
    words = f"each to each{but}: {FABRICS[link.kind]}{lanes}, {rate_words(link.gb_per_s)}"
    return Hub([], links_of, (words, f"each to each{but}", "each to each"))


def _totals(links_of: dict[str, list[Link]]) -> str:
    """Links and GB/s of each endpoint into its switches, where all have the same."""
    totals = {(_total(x.lanes for x in own if x.src == end), sum_rate(own, end)) for end, own in links_of.items()}
    kind = FABRICS[next(iter(links_of.values()))[0].kind]
    if len(totals) > 1:
        return f"{kind}, figures differ"
    lanes, gb_per_s = next(iter(totals))
    words = f"{lanes} {kind}s" if lanes else kind
    return f"{words}, {rate_words(gb_per_s)} from each GPU"


def sum_rate(links: Iterable[Link], end: str) -> float | None:
    """Return GB/s out of an endpoint, None where a link does not give its rate."""
    return _total(link.gb_per_s for link in links if link.src == end)


def _total(figures: Iterable[float | None]) -> float | None:
    values = list(figures)
    return sum(value for value in values if value) if all(values) else None
