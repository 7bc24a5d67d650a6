"""The tree of PCIe switches, host bridges and NUMA nodes of one host, from its pair codes.

The codes PIX < PXB < PHB < NODE < SYS are the levels at which two devices meet, the distances of an ultrametric. The
devices that meet at or below a level form the groups of that level, and groups nest. The tree has one forwarding device
per group of two or more. The latency of a path depends on its level alone (`links.PATH_LATENCY_US`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, count
from typing import NamedTuple

from topocomm.topology.links import PATH_LATENCY_US, both_ways
from topocomm.topology.model import Device, DeviceKind, Link

PIX, PXB, PHB, NODE, SYS = range(5)
LEVELS = {"PIX": PIX, "PXB": PXB, "PHB": PHB, "NODE": NODE, "SYS": SYS, "SOC": SYS}
"""Level of each code; SOC is SYS before 2017."""

_HEIGHT_US = [PATH_LATENCY_US[code] / 2 for code in ("PIX", "PXB", "PHB", "NODE", "SYS")]
"""Latency from the endpoints up to a device of each level."""
_SHAPES: dict[int, tuple[str, DeviceKind, str]] = {
    PIX: ("pcie", "switch", "PCIe switch"),
    PXB: ("pcie", "switch", "PCIe switches"),
    PHB: ("bridge", "switch", "PCIe host bridge"),
    NODE: ("domain", "numa", "NUMA node without a single number"),
}

PairKey = tuple[str, str]
Group = tuple[str, ...]
"""Device ids in the order of the source."""


class HostTree(NamedTuple):
    """Devices of a host (NICs with the NUMA node of their group) and its forwarding devices, links, and warnings."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    warnings: tuple[str, ...]


def host_tree(
    devices: Sequence[Device], codes: Mapping[PairKey, str], *, pcie: str = "pcie", smp: str = "smp"
) -> HostTree:
    """Return the PCIe and NUMA tree of one host.

    A pair without a code of `LEVELS` (NVLink hides the PCIe path) is placed by NUMA number, else by CPU affinity,
    unless a code separates the two. A device without a place is linked to the host. Pairs have the order of devices.
    `pcie` and `smp` (between NUMA nodes) are rows of `links.KINDS`, or families where the generation is unknown.
    """
    tree = _Tree(devices, {pair: LEVELS[code] for pair, code in codes.items() if code in LEVELS}, pcie, smp)
    numbers = {name: number for group, number in tree.number.items() for name in group}
    placed = [d._replace(numa=numbers.get(d.id)) if d.kind == "nic" and d.numa is None else d for d in devices]
    return HostTree((*placed, *tree.devices), tuple(tree.links), tuple(tree.warnings()))


class _Tree:
    """The groups of devices at each level, numbers of those that are NUMA nodes, forwarding devices and links."""

    def __init__(self, devices: Sequence[Device], level: Mapping[PairKey, int], pcie: str, smp: str) -> None:
        self.by_id = {d.id: d for d in devices}
        self.level, self.host, self.pcie = level, devices[0].host, pcie
        self.at: list[list[Group]] = []
        groups: list[Group] = [(name,) for name in self.by_id]
        for limit in range(NODE + 1):
            groups = self._united(groups, [pair for pair, at in level.items() if at <= limit], limit)
            self.at.append(groups)
        place = {d.id: d.numa if d.numa is not None else d.cpu_affinity for d in devices}
        uncoded = [pair for pair in combinations(self.by_id, 2) if pair not in level]
        same_place = [(a, b) for a, b in uncoded if place[a] is not None and place[a] == place[b]]
        self.at[NODE] = self._united(groups, same_place)
        numas = {d.id: d.numa for d in devices if d.numa is not None}
        self.named = {group: {numas[name] for name in group if name in numas} for group in self.at[NODE]}
        self.number: dict[Group, int | str] = {
            group: next(iter(numbers))
            for group, numbers in self.named.items()
            if len(numbers) == 1 and sum(bool(numbers & other) for other in self.named.values()) == 1
        }
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.taken = set(self.by_id)
        root = self._new("host", "host", None, None) if len(self.at[NODE]) > 1 else None
        for group in self.at[NODE]:
            child, height_us = self._add(group, self.number.get(group))
            if root is not None:  # it joins several NUMA nodes
                kind = pcie if child in self.by_id else smp
                self.links += both_ways(child, root, kind, latency_us=round(_HEIGHT_US[SYS] - height_us, 6))

    def _united(self, groups: list[Group], pairs: Iterable[PairKey], limit: int | None = None) -> list[Group]:
        """Unite groups that a pair joins.

        Not where more codes than not are beyond the limit (a damaged matrix), or, without limit, one code says SYS.
        """
        for a, b in pairs:
            one, other = (next(g for g in groups if name in g) for name in (a, b))
            if one == other:
                continue
            ends = ((x, y) for x in one for y in other)
            between = [self.level[pair] for x, y in ends for pair in ((x, y), (y, x)) if pair in self.level]
            below = sum(limit is not None and level <= limit for level in between)
            if (2 * below >= len(between)) if limit is not None else (SYS not in between):
                groups = merge_groups(groups, [(a, b)])
        return groups

    def warnings(self) -> list[str]:
        """Return warnings: codes against NUMA affinity, and codes that are no ultrametric."""
        warnings = []
        unsettled = [group for group, numbers in self.named.items() if numbers and group not in self.number]
        if unsettled:
            names = [name for group in unsettled for name in group if self.by_id[name].numa is not None]
            warnings.append(f"{group_words(names)}: NUMA affinity contradicts the pair codes, which are followed")
        codes = ("PIX", "PXB", "PHB", "NODE", "SYS")
        wrong = []
        for (a, b), level in self.level.items():
            common = (at for at in range(SYS) if any(a in group and b in group for group in self.at[at]))
            if next(common, SYS) != level:
                wrong.append(f"{a}-{b} {codes[level]}")
        if wrong:
            warnings.append(f"the pair codes are no tree: {group_words(wrong)} meet elsewhere in it")
        return warnings

    def _add(self, group: Group, numa: int | str | None = None) -> tuple[str, float]:
        """The device of the group and its height above the endpoints in microseconds."""
        if len(group) == 1 and numa is None:
            return group[0], 0.0
        level = next(level for level in range(NODE + 1) if group in self.at[level])
        if numa is not None:  # a NUMA node is never below its host bridge
            level = max(level, PHB)
        prefix, kind, name = _SHAPES[NODE if numa is not None else level]
        node = self._new(prefix, kind, name, numa)
        below = self.at[level - 1] if level > PIX else [(name,) for name in group]
        for part in [part for part in below if part[0] in group]:
            child, height_us = self._add(part)
            self.links += both_ways(child, node, self.pcie, latency_us=round(_HEIGHT_US[level] - height_us, 6))
        return node, _HEIGHT_US[level]

    def _new(self, prefix: str, kind: DeviceKind, name: str | None, numa: int | str | None) -> str:
        """Add a forwarding device with a free id: `numa3` for a numbered NUMA node, else `pcie0`, `pcie1`, ..."""
        wanted = f"numa{numa}" if isinstance(numa, int) else ""
        if not wanted or wanted in self.taken:
            wanted = next(new for i in count() if (new := f"{prefix}{i}") not in self.taken)
        self.taken.add(wanted)
        self.devices.append(Device(wanted, kind, self.host, None if isinstance(numa, int) else name, numa))
        return wanted


def merge_groups(groups: Sequence[Group], pairs: Iterable[PairKey]) -> list[Group]:
    """Unite groups that a pair connects; members and groups keep their order."""
    home: dict[str, list[str]] = {}
    for group in groups:
        members = list(group)
        home |= dict.fromkeys(group, members)
    order = {name: i for i, name in enumerate(home)}
    for a, b in pairs:
        if home[a] is not home[b]:
            home[a] += home[b]
            home |= dict.fromkeys(home[b], home[a])
    united = {id(group): group for group in home.values()}
    return sorted((tuple(sorted(group, key=order.__getitem__)) for group in united.values()), key=lambda g: order[g[0]])


def group_words(names: Sequence[str]) -> str:
    """Return up to four names and the number of others, for a message."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
