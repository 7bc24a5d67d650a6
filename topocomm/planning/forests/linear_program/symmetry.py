"""Groups of symmetries of the machine: hosts turned, and in all hosts the ranks exchanged in the same way.

A linear program over trees may be averaged over such a group, so it needs one root of every orbit and one constraint
per orbit of links. Candidates are guessed from the order of ranks and devices (hosts in a cycle; inside all hosts the
same exclusive or, or the same turn); each is then checked on every link, so a wrong guess only costs time.
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
    """A group as int64 [elements, devices]: image of every device; the first element is the identity."""

    network: Network
    elements: Ints

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """The lowest endpoint of every orbit."""
        lowest = self.elements[:, : self.network.ends].min(axis=0)
        return tuple(np.flatnonzero(lowest == np.arange(self.network.ends)).tolist())

    @cached_property
    def images(self) -> dict[int, int]:
        """How many images of a tree have one root, by the lowest endpoint of its orbit: 1 if the group is free."""
        count = len(self.elements)
        return {root: count // len(set(self.elements[:, root].tolist())) for root in self.roots}

    @cached_property
    def orbit_of_link(self) -> Ints:
        """int64 [links]: number of the orbit, orbits numbered by their lowest link."""
        size = len(self.network.devices)
        keys = np.array([a * size + b for a, b in self.network.links], dtype=np.int64)
        pairs = np.array(self.network.links, dtype=np.int64).reshape(-1, 2)
        lowest = keys.copy()
        for element in self.elements[1:]:
            lowest = np.minimum(lowest, element[pairs[:, 0]] * size + element[pairs[:, 1]])
        return np.unique(lowest, return_inverse=True)[1].astype(np.int64)


def no_symmetry(network: Network) -> Symmetry:
    """The group of the identity alone."""
    return Symmetry(network, np.arange(len(network.devices), dtype=np.int64)[None])


def symmetry_of(network: Network, hosts: list[str]) -> Symmetry:
    """The largest group found: of hosts that are alike, turned in a cycle, and of what all hosts can do at once.

    Hosts that are like no others stay in their place. Where all hosts are alike every element but the identity moves
    every rank.

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
    """The hosts that are alike in a cycle, and nothing else: ranks of one host keep their order."""
    members = _members(network, hosts)
    alike = _alike(network, hosts, list(members))
    turned = _turned(_Checker(network), [members[name] for name in alike])
    return Symmetry(network, _closure([] if turned is None else [turned], len(network.devices)))


def host_ranges(network: Network, hosts: list[str]) -> list[tuple[int, int]] | None:
    """(first rank, end) of every host in rank order; None where the ranks of some host are no range."""
    found = [(ranks[0], ranks[-1] + 1) for ranks in _members(network, hosts).values()]
    sizes = [len(ranks) for ranks in _members(network, hosts).values()]
    return found if all(end - low == size for (low, end), size in zip(found, sizes, strict=True)) else None


def symmetry_at(network: Network, hosts: list[str], root: int, most: int | None) -> Symmetry:
    """The largest group of at most so many elements that leaves one rank in its place, found among a few.

    Other hosts that are alike go in a cycle, or the other ranks of all hosts, or both.
    """
    checker = _Checker(network)
    members = _members(network, hosts)
    alike = [name for name in _alike(network, hosts, list(members)) if name != hosts[root]]
    found = [_turned(checker, [members[name] for name in alike])]
    if len({len(ranks) for ranks in members.values()}) == 1:
        table = np.array(list(members.values()))
        place = members[hosts[root]].index(root)
        others = [p for p in range(table.shape[1]) if p != place]
        images = table.copy()
        images[:, others] = table[:, others[1:] + others[:1]]
        found.append(checker.extend(_moved(table, images)))
    generators = [one for one in found if one is not None]
    groups = [_closure(chosen, len(network.devices)) for chosen in (generators, *([one] for one in generators), [])]
    return Symmetry(network, max((g for g in groups if most is None or len(g) <= most), key=len))


def _members(network: Network, hosts: list[str]) -> dict[str, list[int]]:
    """Ranks by host."""
    members: dict[str, list[int]] = {}
    for rank in range(network.ends):
        members.setdefault(hosts[rank], []).append(rank)
    return members


def _turned(checker: _Checker, groups: list[list[int]]) -> Permutation | None:
    """The ranks of every group moved to those of the next, if that is a symmetry."""
    if len(groups) < 2:
        return None
    image = np.arange(checker.network.ends)
    for group, following in zip(groups, groups[1:] + groups[:1], strict=True):
        image[group] = following
    return checker.extend(image)


def _alike(network: Network, hosts: list[str], names: list[str]) -> list[str]:
    """The largest class of hosts whose links look the same."""
    local: dict[str, int] = {}
    labels: list[tuple[int, int]] = []
    known = set(names)
    for device, host in enumerate(hosts):
        labels.append((local.get(host, 0), 0) if host in known else (-1, device))
        local[host] = local.get(host, 0) + 1
    looks: dict[str, list[tuple[object, ...]]] = {name: [] for name in names}
    for number, (a, b) in enumerate(network.links):
        figures = (float(network.gb_per_s[number]), float(network.latency_us[number]))
        for end in dict.fromkeys((hosts[a], hosts[b])):
            if end in looks:
                sides = [labels[d] if hosts[d] == end or labels[d][0] < 0 else (-2, 0) for d in (a, b)]
                looks[end].append((*sides, *figures))
    classes: dict[tuple[tuple[object, ...], ...], list[str]] = {}
    for name in names:
        classes.setdefault(tuple(sorted(looks[name])), []).append(name)
    return max(classes.values(), key=len)


def _inside(table: Ints, checker: _Checker) -> list[Permutation]:
    """Generators that do the same in every host: exclusive ors where these give the larger group, else a turn."""
    size = table.shape[1]
    places = np.arange(size)
    ors: list[Permutation] = []
    if size & (size - 1) == 0:
        for bit in range(size.bit_length() - 1):
            found = None
            for mask in range(1 << bit, 2 << bit):
                found = checker.extend(_moved(table, table[:, places ^ mask]))
                if found is not None:
                    ors.append(found)
                    break
    for step in (s for s in range(1, size) if size % s == 0 and size // s > 1 << len(ors)):
        found = checker.extend(_moved(table, table[:, (places + step) % size]))
        if found is not None:
            return [found]
    return ors


def _moved(table: Ints, images: Ints) -> Permutation:
    image = np.empty(table.size, dtype=np.int64)
    image[table.reshape(-1)] = images.reshape(-1)
    return image


def _closure(generators: list[Permutation], devices: int) -> Ints:
    """All products of the generators, in order of their discovery."""
    identity = np.arange(devices, dtype=np.int64)
    seen = {identity.tobytes()}
    elements = [identity]
    for element in elements:
        for generator in generators:
            product = generator[element]
            if product.tobytes() not in seen:
                seen.add(product.tobytes())
                elements.append(product)
    return np.array(elements)


class _Checker:
    """Extends a permutation of the endpoints to all devices, by where the devices sit among them."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.figures = list(zip(network.gb_per_s.tolist(), network.latency_us.tolist(), strict=True))
        self.numbers: dict[tuple[int, tuple[tuple[int, float, float], ...]], int] = {}
        self.plain = self._colours(np.arange(network.ends))

    def extend(self, image: Permutation) -> Permutation | None:
        """The permutation of all devices, or None where the machine has no such symmetry."""
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
        """A colour per device that tells it from others by the links to endpoints, these coloured as given."""
        ends_count, numbers = self.network.ends, self.numbers
        colours = [int(end) for end in ends] + [-1] * (len(self.network.devices) - ends_count)
        while True:
            new = list(colours)
            for device in range(ends_count, len(colours)):
                near = sorted((colours[to], *self.figures[link]) for to, link in self.network.neighbours[device])
                sign = (colours[device], tuple(near))
                new[device] = -2 - numbers.setdefault(sign, len(numbers))
            if len(set(new)) == len(set(colours)):
                return new
            colours = new
