"""NVLinks from link counts per GPU pair (`NV12`): direct links, or links into an NVSwitch.

Tools print the same code for both. On a switched machine NV18 in every cell means 18 links from each GPU into the
switch; on a point-to-point machine the counts of a row add up. No GPU has more than 18 links: a row with a larger sum
is switched.
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
"""Links per GPU of the models in NVSwitch machines: V100, A800 and H800, A100, H100 and later."""

_GENERATION_BY_TOTAL: dict[int, str] = {6: "nvlink2", 8: "nvlink3", 12: "nvlink3", 18: "nvlink4"}
"""Generation by links per GPU: 25 GB/s each on every model with 6, 8 or 12 links; 18 may also be NVLink 5."""


class GpuFabric(NamedTuple):
    """NVLinks or xGMI of a host: switches, links, the figures of each pair, and warnings."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    pairs: dict[PairKey, Pair]
    warnings: tuple[str, ...]


def nvlinks(gpus: Sequence[Device], counts: Mapping[PairKey, int]) -> GpuFabric:
    """Return the NVLinks of one host by the printed number of links of its pairs, which have the order of all GPUs."""
    ids = [gpu.id for gpu in gpus]
    islands = [g for g in merge_groups([(name,) for name in ids], counts) if len(g) > 1]
    switched = {group for group in islands if _is_switched(group, counts)}
    lanes_of = {}
    for group in islands:
        for name in group:
            own = [n for pair, n in counts.items() if name in pair]
            lanes_of[name] = max(own) if group in switched else sum(own)
    total = max(lanes_of.values(), default=0)
    kind = _GENERATION_BY_TOTAL.get(total, "nvlink")
    source: FigureSource | None = None if kind == "nvlink" else "assumed" if total == MAX_LINKS_PER_GPU else "table"
    devices: list[Device] = []
    links: list[Link] = []
    for group in islands:
        if group in switched:
            most = max(lanes_of[name] for name in group)
            in_network: InNetworkKind | None = "nvls" if most == MAX_LINKS_PER_GPU else None
            switch = Device(f"nvswitch{len(devices)}", "switch", gpus[0].host, "NVSwitch", in_network=in_network)
            devices.append(switch)
            for name in group:
                links += both_ways(name, switch.id, kind, lanes=lanes_of[name], latency_us=NVSWITCH_HOP_US)
        else:
            for (a, b), lanes in counts.items():
                if a in group:
                    links += both_ways(a, b, kind, lanes=lanes)
    links = [link._replace(gb_per_s_source=source) for link in links]
    through = {name for group in switched for name in group}
    pairs = {}
    for (a, b), lanes in counts.items():
        latency_us = 2 * NVSWITCH_HOP_US if a in through else KINDS["nvlink4"].latency_us
        pairs[a, b] = nvlink_pair(a, b, kind, lanes, latency_us)._replace(gb_per_s_source=source)
    warnings = []
    if total == MAX_LINKS_PER_GPU:
        warnings.append("18 links per GPU: 25 GB/s each assumed (NVLink 4: H100, H200); B200 and later have 50")
    elif counts and total not in _GENERATION_BY_TOTAL:
        warnings.append(f"GB/s of NVLink unknown: at most {total} links per GPU do not tell the GPU model")
    if any(len(g) in (3, 4) and {counts.get(p) for p in combinations(g, 2)} == {6} for g in islands):
        warnings.append("NV6 between all pairs is read as direct links (4-GPU H100); behind an NVSwitch it is 6 in all")
    return GpuFabric(tuple(devices), tuple(links), pairs, tuple(warnings))


def nvlink_fabric(
    kinds: Mapping[str, str],
    into: Mapping[str, int],
    counts: Mapping[PairKey, int],
    *,
    reduces: bool = False,
    host: str = "host0",
) -> GpuFabric:
    """Return the NVLinks of a host whose ends are known; NVSwitches are one device, as in NCCL.

    Args:
        kinds: Row of `links.KINDS` by GPU, or `nvlink` where the generation is unknown.
        into: Links into switches by GPU.
        counts: Direct links by pair.
        reduces: Whether the switches reduce.
        host: Name of the host.
    """
    devices: list[Device] = []
    links: list[Link] = []
    pairs: dict[PairKey, Pair] = {}
    if into:
        devices.append(Device("nvswitch0", "switch", host, "NVSwitch", in_network="nvls" if reduces else None))
    for name, lanes in into.items():
        links += both_ways(name, "nvswitch0", kinds[name], lanes=lanes, latency_us=NVSWITCH_HOP_US)
    for a, b in combinations(into, 2):
        pairs[a, b] = nvlink_pair(a, b, kinds[a], min(into[a], into[b]), 2 * NVSWITCH_HOP_US)
    for (a, b), lanes in counts.items():
        links += both_ways(a, b, kinds[a], lanes=lanes)
        pairs.setdefault((a, b), nvlink_pair(a, b, kinds[a], lanes, KINDS["nvlink4"].latency_us))
    unknown = sorted({name for name, kind in kinds.items() if kind == "nvlink"} & {link.src for link in links})
    warnings = [f"GB/s of NVLink not known: {', '.join(unknown)} of an unknown generation"] if unknown else []
    return GpuFabric(tuple(devices), tuple(links), pairs, tuple(warnings))


def nvlink_pair(a: str, b: str, kind: str, lanes: int, latency_us: float) -> Pair:
    """Return the pair of two GPUs that NVLinks join, with the latency of the whole path.

    The kind is a row of `links.KINDS`, or `nvlink` where the generation is unknown; `lanes` are links between the two,
    or of each into a switch.
    """
    rate = KINDS[kind].gb_per_s * lanes if kind in KINDS else None
    return Pair(a, b, f"NV{lanes}", rate, latency_us, None if rate is None else "table", "assumed")


def _is_switched(group: Group, counts: Mapping[PairKey, int]) -> bool:
    inside = [counts.get(pair, 0) for pair in combinations(group, 2)]
    if len(group) < 3 or min(inside) == 0:  # through a switch every GPU reaches every other
        return False
    most = max(sum(n for pair, n in counts.items() if name in pair) for name in group)
    if most > MAX_LINKS_PER_GPU:
        return True
    # A container may show three GPUs of a switched machine. Direct links of 6 to each other are those of 4-GPU H100
    # boards; no board has more.
    return len(set(inside)) == 1 and inside[0] in _SWITCHED_COUNTS and inside[0] != 6
