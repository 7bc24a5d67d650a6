"""From link counts per GPU pair (`NV12`) to NVLinks: direct ones, or links into an NVSwitch.

A tool prints the same code for both. On a switched machine NV18 in every cell means 18 links from each GPU into
the switch, 18 in all; on a point-to-point machine the counts of a row add up. No GPU has more than 18 links, so a
row that adds up to more is switched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from topocomm.topology.inference.host_tree import Group, PairKey, merge_groups
from topocomm.topology.links import KINDS, NVSWITCH_HOP_US, both_ways
from topocomm.topology.model import Device, FigureSource, InNetworkKind, Link, Pair

MAX_LINKS_PER_GPU = 18
"""H100 to B200. The NVSwitches of these, and of none before, reduce by themselves (NVLS)."""

_SWITCHED_COUNTS = (6, 8, 12, 18)
"""Links per GPU of the models that NVSwitch machines are built of: V100, A800 and H800, A100, H100 and later."""

_GENERATION_BY_TOTAL: dict[int, str] = {6: "nvlink2", 8: "nvlink3", 12: "nvlink3", 18: "nvlink4"}
"""Generation by links per GPU. Every model with 6, 8 or 12 links has 25 GB/s on each; with 18 it may be NVLink 5."""


class NVLinks(NamedTuple):
    """NVSwitch devices, links, the figures of each pair, and what had to be assumed."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    pairs: dict[PairKey, Pair]
    warnings: tuple[str, ...]


def nvlinks(gpus: Sequence[Device], counts: Mapping[PairKey, int]) -> NVLinks:
    """The NVLinks of one host.

    Args:
        gpus: All GPUs of the host.
        counts: Links by pair as printed, in the order of `gpus`; pairs without NVLink are absent.
    """
    ids = [gpu.id for gpu in gpus]
    islands = [g for g in merge_groups([(name,) for name in ids], counts) if len(g) > 1]
    switched = {group for group in islands if _is_switched(group, counts)}
    total = max((_links_of(name, group, counts, group in switched) for group in islands for name in group), default=0)
    kind = _GENERATION_BY_TOTAL.get(total, "nvlink")
    source: FigureSource | None = None if kind == "nvlink" else "assumed" if total == MAX_LINKS_PER_GPU else "table"
    devices: list[Device] = []
    links: list[Link] = []
    for group in islands:
        if group in switched:
            most = max(_links_of(name, group, counts, True) for name in group)
            in_network: InNetworkKind | None = "nvls" if most == MAX_LINKS_PER_GPU else None
            switch = Device(f"nvswitch{len(devices)}", "switch", gpus[0].host, "NVSwitch", in_network=in_network)
            devices.append(switch)
            for name in group:
                lanes = _links_of(name, group, counts, True)
                links += both_ways(name, switch.id, kind, lanes=lanes, latency_us=NVSWITCH_HOP_US)
        else:
            for (a, b), lanes in counts.items():
                if a in group:
                    links += both_ways(a, b, kind, lanes=lanes)
    links = [link._replace(gb_per_s_source=source) for link in links]
    through = {name for group in switched for name in group}
    pairs = {}
    for (a, b), lanes in counts.items():
        latency_us = 2 * NVSWITCH_HOP_US if a in through else KINDS["nvlink4"].latency_us
        rate = KINDS[kind].gb_per_s * lanes if kind in KINDS else None
        pairs[a, b] = Pair(a, b, f"NV{lanes}", rate, latency_us, source, "assumed")
    return NVLinks(tuple(devices), tuple(links), pairs, tuple(_warnings(total, counts, islands)))


def _is_switched(group: Group, counts: Mapping[PairKey, int]) -> bool:
    inside = [counts.get(pair, 0) for pair in combinations(group, 2)]
    if len(group) < 3 or min(inside) == 0:  # through a switch every GPU reaches every other
        return False
    most = max(sum(n for pair, n in counts.items() if name in pair) for name in group)
    if most > MAX_LINKS_PER_GPU:
        return True
    # Three GPUs of a larger machine, as a container shows them: 8 links to each of two others are no bridge,
    # while 6 to each of two or three are what four-GPU H100 boards have.
    return len(set(inside)) == 1 and inside[0] in _SWITCHED_COUNTS and inside[0] != 6


def _links_of(name: str, group: Group, counts: Mapping[PairKey, int], switched: bool) -> int:
    mine = [n for pair, n in counts.items() if name in pair and pair[0] in group]
    return max(mine) if switched else sum(mine)


def _warnings(total: int, counts: Mapping[PairKey, int], islands: Sequence[Group]) -> list[str]:
    if not counts:
        return []
    found = []
    if total == MAX_LINKS_PER_GPU:
        found.append("18 links per GPU: 25 GB/s each assumed (NVLink 4: H100, H200); B200 and later have 50")
    elif total not in _GENERATION_BY_TOTAL:
        found.append(f"GB/s of NVLink unknown: at most {total} links per GPU do not tell the GPU model")
    if any(len(g) in (3, 4) and {counts.get(p) for p in combinations(g, 2)} == {6} for g in islands):
        found.append("NV6 between all pairs is read as direct links (4-GPU H100); behind an NVSwitch it is 6 in all")
    return found
