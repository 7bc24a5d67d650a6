"""Groups of endpoints that are tried as cuts and partitions: single endpoints, hosts, clusters of fast links."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topocomm.planning.bounds.machine_columns import NOBODY, Floats, Ints, Machine

MOST_CLUSTERED = 4096
"""Most endpoints of a machine whose clusters by bandwidth are tried."""
MOST_LEVELS = 16
"""Most partitions into clusters."""


@dataclass(frozen=True, eq=False)
class Level:
    """A partition of the endpoints, with several assignments of forwarding devices to its groups.

    Attributes:
        owned: Group of each device, or NOBODY; one column per assignment.
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
        """Return the GB/s across the border of each group, the least of its assignments."""
        border_of: Floats = self._borders[direction == "out"].min(axis=0)
        return border_of

    def assignments(self, direction: str) -> Ints:
        """Return the number of the assignment that makes `border` least, of each group."""
        numbers: Ints = self._borders[direction == "out"].argmin(axis=0)
        return numbers

    def devices(self, groups: list[int], direction: str) -> list[Ints]:
        """Return the devices of groups, in the assignments that make `border` least."""
        option = self.assignments(direction)
        sorted_by = [np.argsort(labels, kind="stable") for labels in self.owned]
        devices = []
        for group in groups:
            labels, order = self.owned[option[group]], sorted_by[option[group]]
            low, high = np.searchsorted(labels, [group, group + 1], sorter=order)
            devices.append(order[low:high])
        return devices


def families(machine: Machine) -> list[list[Level]]:
    """Return families of nested partitions, finest first: endpoints and hosts; endpoints and clusters."""
    ends = np.full(machine.devices, NOBODY)
    ends[machine.ends] = np.arange(len(machine.ends))
    single = _level(machine, ends)
    nested = [[single]]
    hosts = _level(machine, np.where(machine.is_end, machine.host, NOBODY), machine.host)
    if 1 < hosts.count < single.count:
        nested[0].append(hosts)
    if len(machine.ends) <= MOST_CLUSTERED:
        nested.append([single, *(_level(machine, np.where(machine.is_end, c, NOBODY), c) for c in _clusters(machine))])
    return nested


def _level(machine: Machine, ends: Ints, around: Ints | None = None) -> Level:
    """Return the groups by labels of endpoints: alone, with devices that serve only them, with those of `around`."""
    labels, plain = np.unique(ends[machine.ends], return_inverse=True)
    own = np.full(machine.devices, NOBODY)
    own[machine.ends] = plain
    owned = [own, _with_served(machine, own)]
    if around is not None:
        at = np.minimum(np.searchsorted(labels, around), len(labels) - 1)
        owned.append(np.where(machine.is_end, own, np.where(labels[at] == around, at, NOBODY)))
    return Level(machine, len(labels), owned)


def _with_served(machine: Machine, own: Ints) -> Ints:
    """Return labels that include forwarding devices all of whose labelled neighbours are of one group."""
    labels, no_group = own, len(machine.ends) + 1
    for _ in range(3):  # a switch, a NIC behind it, a port behind that
        low, high = np.full(len(own), no_group), np.full(len(own), NOBODY)
        for a, b in ((machine.src, machine.dst), (machine.dst, machine.src)):
            labelled = labels[a] != NOBODY
            np.minimum.at(low, b[labelled], labels[a][labelled])
            np.maximum.at(high, b[labelled], labels[a][labelled])
        grown = np.where(machine.is_end, own, np.where(low == high, low, NOBODY))
        if (grown == labels).all():
            break
        labels = grown
    return labels


def _clusters(machine: Machine) -> list[Ints]:
    """Return labels of the clusters that links of at least some rate join, for every rate that makes a difference."""
    labels = np.arange(machine.devices)
    rates = np.round(machine.gb_per_s, 9)
    order = np.argsort(-rates, kind="stable")
    links = list(zip(machine.src[order].tolist(), machine.dst[order].tolist(), rates[order].tolist(), strict=True))
    partitions: list[Ints] = []
    groups = len(machine.ends)
    for index, (a, b, rate) in enumerate(links):
        if labels[a] != labels[b]:
            labels[labels == max(labels[a], labels[b])] = min(labels[a], labels[b])
        if index + 1 < len(links) and links[index + 1][2] == rate:
            continue
        joined = len(np.unique(labels[machine.ends]))
        if 1 < joined < groups:
            partitions.append(labels.copy())
        groups = min(groups, joined)
        if joined == 1:
            break
    step = -(-len(partitions) // MOST_LEVELS) or 1
    return partitions[::step]
