"""Groups of endpoints to try as cuts and partitions: single ones, hosts, and clusters that fast links join."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topocomm.planning.bounds.machine_columns import NOBODY, Floats, Ints, Machine

MOST_CLUSTERED = 4096
"""Endpoints up to which clusters by bandwidth are tried beside single endpoints and hosts."""
MOST_LEVELS = 16


@dataclass(frozen=True, eq=False)
class Level:
    """A partition of the endpoints, and for each group several sets of forwarding devices that it may own.

    Attributes:
        machine: The machine.
        count: Groups.
        owned: Group of each device, or NOBODY: one such column for each way to give out the forwarding devices.
    """

    machine: Machine
    count: int
    owned: list[Ints]

    @cached_property
    def of_rank(self) -> Ints:
        """Group of each rank."""
        return self.owned[0][self.machine.place]

    @cached_property
    def _borders(self) -> tuple[Floats, Floats]:
        both = [self.machine.border(labels, self.count) for labels in self.owned]
        return np.array([into for into, _ in both]), np.array([out for _, out in both])

    def border(self, direction: str) -> Floats:
        """GB/s across the border of each group, of whichever of its ways is least."""
        found: Floats = self._borders[direction == "out"].min(axis=0)
        return found

    def devices(self, groups: list[int], direction: str) -> list[Ints]:
        """The devices of groups, with the forwarding ones that make `border` least."""
        way = self._borders[direction == "out"].argmin(axis=0)
        sorted_by = [np.argsort(labels, kind="stable") for labels in self.owned]
        found = []
        for group in groups:
            labels, order = self.owned[way[group]], sorted_by[way[group]]
            low, high = np.searchsorted(labels, [group, group + 1], sorter=order)
            found.append(order[low:high])
        return found


def families(machine: Machine) -> list[list[Level]]:
    """Families of partitions that nest, finest first: single endpoints and hosts; single endpoints and clusters."""
    ends = np.full(machine.devices, NOBODY)
    ends[machine.ends] = np.arange(len(machine.ends))
    single = _level(machine, ends)
    found = [[single]]
    hosts = _level(machine, np.where(machine.is_end, machine.host, NOBODY), machine.host)
    if 1 < hosts.count < single.count:
        found[0].append(hosts)
    if len(machine.ends) <= MOST_CLUSTERED:
        found.append([single, *(_level(machine, np.where(machine.is_end, c, NOBODY), c) for c in _clusters(machine))])
    return found


def _level(machine: Machine, ends: Ints, around: Ints | None = None) -> Level:
    """Groups by the labels of endpoints: alone, with what serves them only, and with all devices labelled `around`."""
    labels, plain = np.unique(ends[machine.ends], return_inverse=True)
    own = np.full(machine.devices, NOBODY)
    own[machine.ends] = plain
    owned = [own, _with_served(machine, own)]
    if around is not None:
        at = np.minimum(np.searchsorted(labels, around), len(labels) - 1)
        owned.append(np.where(machine.is_end, own, np.where(labels[at] == around, at, NOBODY)))
    return Level(machine, len(labels), owned)


def _with_served(machine: Machine, own: Ints) -> Ints:
    """The groups with the forwarding devices whose labelled neighbours are all of one group, and so on from these."""
    found, many = own, len(machine.ends) + 1
    for _ in range(3):  # a switch, a NIC behind it, a port behind that
        low, high = np.full(len(own), many), np.full(len(own), NOBODY)
        for a, b in ((machine.src, machine.dst), (machine.dst, machine.src)):
            labelled = found[a] != NOBODY
            np.minimum.at(low, b[labelled], found[a][labelled])
            np.maximum.at(high, b[labelled], found[a][labelled])
        after = np.where(machine.is_end, own, np.where(low == high, low, NOBODY))
        if (after == found).all():
            break
        found = after
    return found


def _clusters(machine: Machine) -> list[Ints]:
    """Labels of devices that chains of links of at least some GB/s join, for every rate that makes a difference."""
    parent = list(range(machine.devices))

    def root(device: int) -> int:
        while parent[device] != device:
            parent[device] = parent[parent[device]]
            device = parent[device]
        return device

    rates = np.round(machine.gb_per_s, 9)
    order = np.argsort(-rates, kind="stable")
    links = list(zip(machine.src[order].tolist(), machine.dst[order].tolist(), rates[order].tolist(), strict=True))
    found: list[Ints] = []
    groups = len(machine.ends)
    for index, (a, b, rate) in enumerate(links):
        low, high = sorted((root(a), root(b)))
        parent[high] = low
        if index + 1 < len(links) and links[index + 1][2] == rate:
            continue
        labels = np.array([root(device) for device in range(machine.devices)])
        joined = len(np.unique(labels[machine.ends]))
        if 1 < joined < groups:
            found.append(labels)
        groups = min(groups, joined)
        if joined == 1:
            break
    step = -(-len(found) // MOST_LEVELS) or 1
    return found[::step]
