"""Groups of symmetries of the machine: cyclic shifts of hosts, and one permutation of the ranks inside every host.

A linear program over trees may be averaged over such a group, so it needs one root and one constraint per orbit.
Candidates come from the order of ranks and devices (hosts in a cycle; inside all hosts the same exclusive or, or the
same cyclic shift); each is checked on every link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.forests.linear_program.integer_network import Ints, Network

Permutation = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Symmetry:
    """A group of permutations of the devices.

    Attributes:
        network: The machine.
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
        keys = np.array([a * size + b for a, b in self.network.links], dtype=np.int64)
        pairs = np.array(self.network.links, dtype=np.int64).reshape(-1, 2)
        lowest = keys.copy()
        for element in self.elements[1:]:
            lowest = np.minimum(lowest, element[pairs[:, 0]] * size + element[pairs[:, 1]])
        return np.unique(lowest, return_inverse=True)[1].astype(np.int64)


def no_symmetry(network: Network) -> Symmetry:
    """Return the group of the identity alone."""
    return Symmetry(network, np.arange(len(network.devices), dtype=np.int64)[None])


def symmetry_of(network: Network, hosts: list[str]) -> Symmetry:
    """Return the largest group found: equal hosts in a cycle, and what all hosts can do at once.

    Hosts that equal no others stay in place. Where all are equal, every element but the identity moves every rank.

    Args:
        network: The machine.
        hosts: Host name of every device of the network.
    """
    checker = _Checker(network)
    members = _members(network, hosts)
    alike = _alike(network, hosts, list(members))
    turned = _turned(checker, [members[name] for name in alike])
    if turned is None:
        inside = _inside(np.arange(network.ends).reshape(1, -1), checker)
        return Symmetry(network, _closure(inside, len(network.devices)))
    inside = _inside(np.array(list(members.values())), checker) if len(alike) == len(members) else []
    return Symmetry(network, _closure([turned, *inside], len(network.devices)))


def host_turns(network: Network, hosts: list[str]) -> Symmetry:
    """Return the group of equal hosts in a cycle: ranks of one host keep their order."""
    members = _members(network, hosts)
    alike = _alike(network, hosts, list(members))
    turned = _turned(_Checker(network), [members[name] for name in alike])
    return Symmetry(network, _closure([] if turned is None else [turned], len(network.devices)))


def host_ranges(network: Network, hosts: list[str]) -> list[tuple[int, int]] | None:
    """Return (first rank, end) of every host in rank order; None where the ranks of some host are no range."""
    ranges = [(ranks[0], ranks[-1] + 1) for ranks in _members(network, hosts).values()]
    sizes = [len(ranks) for ranks in _members(network, hosts).values()]
    return ranges if all(end - low == size for (low, end), size in zip(ranges, sizes, strict=True)) else None


def symmetry_at(network: Network, hosts: list[str], root: int, most: int | None) -> Symmetry:
    """Return the largest group of at most `most` elements that leaves the root in place.

    Tried are other equal hosts in a cycle, the other ranks of all hosts in a cycle, and both.
    """
    checker = _Checker(network)
    members = _members(network, hosts)
    alike = [name for name in _alike(network, hosts, list(members)) if name != hosts[root]]
    candidates = [_turned(checker, [members[name] for name in alike])]
    if len({len(ranks) for ranks in members.values()}) == 1:
        table = np.array(list(members.values()))
        place = members[hosts[root]].index(root)
        others = [p for p in range(table.shape[1]) if p != place]
        images = table.copy()
        images[:, others] = table[:, others[1:] + others[:1]]
        candidates.append(checker.extend(_moved(table, images)))
    generators = [generator for generator in candidates if generator is not None]
    groups = [
        _closure(chosen, len(network.devices))
        for chosen in (generators, *([generator] for generator in generators), [])
    ]
    return Symmetry(network, max((g for g in groups if most is None or len(g) <= most), key=len))


def _members(network: Network, hosts: list[str]) -> dict[str, list[int]]:
    """Return the ranks by host."""
    members: dict[str, list[int]] = {}
    for rank in range(network.ends):
        members.setdefault(hosts[rank], []).append(rank)
    return members


def _turned(checker: _Checker, groups: list[list[int]]) -> Permutation | None:
    """Return the permutation of each group onto the next, if that is a symmetry."""
    if len(groups) < 2:
        return None
    image = np.arange(checker.network.ends)
    for group, following in zip(groups, groups[1:] + groups[:1], strict=True):
        image[group] = following
    return checker.extend(image)


def _alike(network: Network, hosts: list[str], names: list[str]) -> list[str]:
    """Return the largest class of hosts with equal links."""
    local: dict[str, int] = {}
    labels: list[tuple[int, int]] = []
    known = set(names)
    for device, host in enumerate(hosts):
        labels.append((local.get(host, 0), 0) if host in known else (-1, device))
        local[host] = local.get(host, 0) + 1
    links_of: dict[str, list[tuple[object, ...]]] = {name: [] for name in names}
    for number, (a, b) in enumerate(network.links):
        figures = (float(network.gb_per_s[number]), float(network.latency_us[number]))
        for end in dict.fromkeys((hosts[a], hosts[b])):
            if end in links_of:
                sides = [labels[d] if hosts[d] == end or labels[d][0] < 0 else (-2, 0) for d in (a, b)]
                links_of[end].append((*sides, *figures))
    classes: dict[tuple[tuple[object, ...], ...], list[str]] = {}
    for name in names:
        classes.setdefault(tuple(sorted(links_of[name])), []).append(name)
    return max(classes.values(), key=len)


def _inside(table: Ints, checker: _Checker) -> list[Permutation]:
    """Return generators that act alike in every host: exclusive ors, or a cyclic shift if that has more elements."""
    size = table.shape[1]
    places = np.arange(size)
    ors: list[Permutation] = []
    if size & (size - 1) == 0:
        for bit in range(size.bit_length() - 1):
            generator = None
            for mask in range(1 << bit, 2 << bit):
                generator = checker.extend(_moved(table, table[:, places ^ mask]))
                if generator is not None:
                    ors.append(generator)
                    break
    for step in (s for s in range(1, size) if size % s == 0 and size // s > 1 << len(ors)):
        generator = checker.extend(_moved(table, table[:, (places + step) % size]))
        if generator is not None:
            return [generator]
    return ors


def _moved(table: Ints, images: Ints) -> Permutation:
    """Return the permutation of ranks that maps one table onto the other."""
    image = np.empty(table.size, dtype=np.int64)
    image[table.reshape(-1)] = images.reshape(-1)
    return image


def _closure(generators: list[Permutation], devices: int) -> Ints:
    """Return all products of the generators, in order of discovery."""
    identity = np.arange(devices, dtype=np.int64)
    known = {identity.tobytes()}
    elements = [identity]
    for element in elements:
        for generator in generators:
            product = generator[element]
            if product.tobytes() not in known:
                known.add(product.tobytes())
                elements.append(product)
    return np.array(elements)


class _Checker:
    """Extends permutations of the endpoints to all devices, by colour refinement."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.figures = list(zip(network.gb_per_s.tolist(), network.latency_us.tolist(), strict=True))
        self.numbers: dict[tuple[int, tuple[tuple[int, float, float], ...]], int] = {}
        self.plain = self._colours(np.arange(network.ends))

    def extend(self, image: Permutation) -> Permutation | None:
        """Return the permutation of all devices, or None where the machine has no such symmetry."""
        network = self.network
        places: dict[int, list[int]] = {}
        for device, colour in enumerate(self.plain):
            places.setdefault(colour, []).append(device)
        inverse = np.empty_like(image)
        inverse[image] = np.arange(len(image))
        whole = np.full(len(network.devices), -1, dtype=np.int64)
        taken: dict[int, int] = {}
        for device, colour in enumerate(self._colours(image)):
            same = places.get(colour, [])
            at = taken.get(colour, 0)
            if at >= len(same):
                return None
            whole[device] = same[at]
            taken[colour] = at + 1
        mapped = [network.index.get((int(whole[a]), int(whole[b]))) for a, b in network.links]
        if any(new is None or self.figures[new] != self.figures[old] for old, new in enumerate(mapped)):
            return None
        return whole

    def _colours(self, ends: Permutation) -> list[int]:
        """Return a colour per device by its links to endpoints, which have these colours."""
        ends_count, numbers = self.network.ends, self.numbers
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
