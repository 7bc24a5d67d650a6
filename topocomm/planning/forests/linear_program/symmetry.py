"""Groups of symmetries of the machine: cyclic shifts of hosts, and one permutation of the ranks inside every host.

A linear program over trees may be averaged over such a group, so it needs one root and one constraint per orbit.
Candidates come from the order of ranks and devices (hosts in a cycle; inside all hosts the same exclusive or, or the
same cyclic shift); each is checked on every link.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.forests.linear_program.integer_network import Ints, Network

MOST_UNEVEN = 16
"""Most ranks of a program without symmetry, which has a row for every link and port, unless one gives or gets all."""
ALIKE = 1e-2
"""Difference of demands, as a part of the greatest, that symmetries neglect."""
Permutation = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Symmetry:
    """A group of permutations of the devices.

    Attributes:
        elements: Image of every device, int64 [elements, devices]; the first element is the identity.
    """

    network: Network
    elements: Ints

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """The lowest endpoint of every orbit."""
        lowest = self.elements[:, : self.network.ends].min(axis=0)
        return tuple(np.flatnonzero(lowest == np.arange(self.network.ends)).tolist())

    @cached_property
    def images(self) -> dict[int, int]:
        """Images of a tree that share a root, by the lowest endpoint of its orbit: 1 if the group is free."""
        count = len(self.elements)
        return {root: count // len(set(self.elements[:, root].tolist())) for root in self.roots}

    @cached_property
    def orbit_of_link(self) -> Ints:
        """Number of the orbit of every link, int64 [links]; orbits are numbered by their lowest link."""
        size = len(self.network.devices)
        src, dst = np.array(self.network.links, dtype=np.int64).reshape(-1, 2).T
        lowest: Ints = src * size + dst
        for element in self.elements[1:]:
            lowest = np.minimum(lowest, element[src] * size + element[dst])
        return np.unique(lowest, return_inverse=True)[1].astype(np.int64)


def no_symmetry(network: Network) -> Symmetry:
    """Return the group of the identity alone."""
    return Symmetry(network, np.arange(len(network.devices), dtype=np.int64)[None])


def symmetry_of(network: Network, hosts: list[str]) -> Symmetry:
    """Return the largest group found: equal hosts (by the name of each device's) in a cycle, and what all do at once.

    Hosts that equal no others stay in place. Where all are equal, every element but the identity moves every rank.
    """
    finder = _Finder(network, hosts)
    alike, members = finder.alike(), finder.members
    turned = finder.turned(alike)
    if turned is None:
        return finder.group(finder.inside(np.arange(network.ends).reshape(1, -1)))
    return finder.group(
        [turned, *(finder.inside(np.array(list(members.values()))) if len(alike) == len(members) else [])]
    )


def symmetry_for(network: Network, hosts: list[str], demand: NDArray[np.float64]) -> Symmetry | None:
    """Return the symmetry of machine and demand [ends, ends]; None where many pairs of a large machine have none.

    Parts that differ by a row are alike.
    """
    found, least = symmetry_of(network, hosts), demand.max() * ALIKE
    moved = found.elements[1:, : network.ends]
    if not all((abs(demand[np.ix_(image, image)] - demand) <= least).all() for image in moved):
        found = no_symmetry(network)
    few = network.ends <= MOST_UNEVEN or np.count_nonzero(demand) < network.ends
    return found if few or len(found.elements) > 1 else None


def host_turns(network: Network, hosts: list[str]) -> Symmetry:
    """Return the group of equal hosts in a cycle: ranks of one host keep their order."""
    finder = _Finder(network, hosts)
    turned = finder.turned(finder.alike())
    return finder.group([] if turned is None else [turned])


def host_ranges(network: Network, hosts: list[str]) -> list[tuple[int, int]] | None:
    """Return (first rank, end) of every host in rank order; None where the ranks of some host are no range."""
    runs = [(host, len(list(ranks))) for host, ranks in groupby(hosts[: network.ends])]
    edges = accumulate((size for _, size in runs), initial=0)
    return list(pairwise(edges)) if len(dict(runs)) == len(runs) else None


def symmetry_at(network: Network, hosts: list[str], root: int, most: int | None) -> Symmetry:
    """Return the largest group of at most `most` elements that leaves the root in place.

    Tried are other equal hosts in a cycle, the other ranks of all hosts in a cycle, and both.
    """
    finder = _Finder(network, hosts)
    candidates = [finder.turned([name for name in finder.alike() if name != hosts[root]])]
    if len({len(ranks) for ranks in finder.members.values()}) == 1:
        table = np.array(list(finder.members.values()))
        place = finder.members[hosts[root]].index(root)
        others = [p for p in range(table.shape[1]) if p != place]
        images = table.copy()
        images[:, others] = table[:, others[1:] + others[:1]]
        candidates.append(finder.moved(table, images))
    generators = [generator for generator in candidates if generator is not None]
    groups = [finder.group(chosen) for chosen in (generators, *([generator] for generator in generators), [])]
    few = (group for group in groups if most is None or len(group.elements) <= most)
    return max(few, key=lambda group: len(group.elements))


class _Finder:
    """Symmetries of one machine: permutations of its endpoints, extended to all devices by colour refinement."""

    def __init__(self, network: Network, hosts: list[str]) -> None:
        self.network, self.hosts = network, hosts
        self.members: dict[str, list[int]] = {}
        """Ranks by host."""
        for rank, host in enumerate(hosts[: network.ends]):
            self.members.setdefault(host, []).append(rank)
        self.figures = list(zip(network.gb_per_s.tolist(), network.latency_us.tolist(), strict=True))
        self._numbers: dict[tuple[int, tuple[tuple[int, float, float], ...]], int] = {}
        self._plain = self._colours(np.arange(network.ends))

    def alike(self) -> list[str]:
        """Return the largest class of hosts with equal links and equally many ranks."""
        hosts, devices = self.hosts, Counter[str]()
        labels: list[tuple[int, int]] = []
        for device, host in enumerate(hosts):
            labels.append((devices[host], 0) if host in self.members else (-1, device))
            devices[host] += 1
        links_of: dict[str, list[tuple[object, ...]]] = {name: [] for name in self.members}
        for (a, b), figures in zip(self.network.links, self.figures, strict=True):
            for host in {hosts[a], hosts[b]} & self.members.keys():
                sides = [labels[d] if hosts[d] == host or labels[d][0] < 0 else (-2, 0) for d in (a, b)]
                links_of[host].append((*sides, *figures))
        classes: dict[tuple[object, ...], list[str]] = {}
        for name, links in links_of.items():
            classes.setdefault((len(self.members[name]), *sorted(links)), []).append(name)
        return max(classes.values(), key=len)

    def turned(self, names: list[str]) -> Permutation | None:
        """Return the permutation of each of these hosts onto the next, if that is a symmetry."""
        if len(names) < 2:
            return None
        image = np.arange(self.network.ends)
        for name, following in zip(names, names[1:] + names[:1], strict=True):
            image[self.members[name]] = self.members[following]
        return self._extended(image)

    def inside(self, table: Ints) -> list[Permutation]:
        """Return generators that act alike in every row: exclusive ors, or a cyclic shift if that has more elements."""
        size = table.shape[1]
        places = np.arange(size)
        ors: list[Permutation] = []
        if size & (size - 1) == 0:
            for bit in range(size.bit_length() - 1):
                moves = (self.moved(table, table[:, places ^ mask]) for mask in range(1 << bit, 2 << bit))
                ors += islice((move for move in moves if move is not None), 1)
        for step in (s for s in range(1, size) if size % s == 0 and size // s > 1 << len(ors)):
            generator = self.moved(table, table[:, (places + step) % size])
            if generator is not None:
                return [generator]
        return ors

    def moved(self, table: Ints, images: Ints) -> Permutation | None:
        """Return the permutation that maps one table of ranks onto the other, if that is a symmetry."""
        image = np.empty(table.size, dtype=np.int64)
        image[table.reshape(-1)] = images.reshape(-1)
        return self._extended(image)

    def group(self, generators: list[Permutation]) -> Symmetry:
        """Return all products of the generators, in order of discovery."""
        identity = np.arange(len(self.network.devices), dtype=np.int64)
        known = {identity.tobytes()}
        elements = [identity]
        for element in elements:
            for generator in generators:
                product = generator[element]
                if product.tobytes() not in known:
                    known.add(product.tobytes())
                    elements.append(product)
        return Symmetry(self.network, np.array(elements))

    def _extended(self, image: Permutation) -> Permutation | None:
        """Return the permutation of all devices, or None where the machine has no such symmetry."""
        network = self.network
        places: dict[int, list[int]] = {}
        for device in range(len(self._plain) - 1, -1, -1):
            places.setdefault(self._plain[device], []).append(device)
        whole = np.empty(len(network.devices), dtype=np.int64)
        for device, colour in enumerate(self._colours(image)):
            if not places.get(colour):
                return None
            whole[device] = places[colour].pop()
        mapped = [network.index.get((int(whole[a]), int(whole[b]))) for a, b in network.links]
        if any(new is None or self.figures[new] != self.figures[old] for old, new in enumerate(mapped)):
            return None
        return whole

    def _colours(self, ends: Permutation) -> list[int]:
        """Return a colour per device by its links to endpoints, which have these colours."""
        ends_count, numbers = self.network.ends, self._numbers
        colours = [int(end) for end in ends] + [-1] * (len(self.network.devices) - ends_count)
        while True:
            new = list(colours)
            for device in range(ends_count, len(colours)):
                neighbours = sorted((colours[to], *self.figures[link]) for to, link in self.network.neighbours[device])
                sign = (colours[device], tuple(neighbours))
                new[device] = -2 - numbers.setdefault(sign, len(numbers))
            if len(set(new)) == len(set(colours)):
                return new
            colours = new
