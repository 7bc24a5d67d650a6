"""A machine in whole units of bandwidth, and its forwarding devices taken out of it.

A device goes by splitting off: a unit that enters it and a unit that leaves it become one unit from the one neighbour
to the other, as long as what every rank can receive from the roots together does not fall (Mader 1978; Frank,
Jackson and Bang-Jensen 1995: where as much enters a device as leaves it, all of it can go).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from topocomm.planning.forests.linear_program.integer_network import Network
from topocomm.planning.forests.tree import Way, simple
from topocomm.planning.forests.units.unit_graph import Units, bits

EXACT = 1e-9
"""Part of a unit that may be missing from a whole one."""
NEAR = 16
"""Ranks around a device, of which a careful step looks at what they can still receive; the last look is at all."""
OFFSETS = 3
"""Ways to pair the neighbours of all devices that are tried without care."""
Pairs = list[tuple[int, int, int]]


class Split:
    """The ranks with the units between each two of them, and the ways that these stand for.

    Attributes:
        units: Ranks first, then forwarding devices, then the source of what is to be broadcast.
        ways: By (rank, rank): the way of every unit.
        source: Number of the source, whose arcs lead to the roots.
    """

    def __init__(self, network: Network, gb_per_unit: float, roots: dict[int, int], together: int = 1) -> None:
        """Cut the links into units.

        Args:
            network: The machine.
            gb_per_unit: GB/s.
            roots: Units that every root has to send.
            together: Units that had better stay together: those of a tree.
        """
        self.network, self.wanted, self.together = network, sum(roots.values()), together
        self.source = len(network.devices)
        self.units = Units(self.source + 1)
        self.ways: dict[tuple[int, int], list[Way]] = {}
        self._sinks: list[int] = []
        self._joined: Pairs = []
        for (a, b), rate in zip(network.links, network.gb_per_s.tolist(), strict=True):
            count = min(int(rate / gb_per_unit + EXACT), self.wanted)
            if count:
                self.units.add(a, b, count)
                self.ways[a, b] = [(a, b)] * count
        for root, trees in roots.items():
            self.units.add(self.source, root, trees)

    def spans(self) -> bool:
        """Whether all ranks can receive all that the roots send together."""
        return all(self.units.flows(self.source, rank, self.wanted) for rank in range(self.network.ends))

    def take_out(self) -> bool:
        """Split off all forwarding devices, those with few neighbours first; False where too little is left.

        At first without a look at what flows: on regular machines that is right with one of `OFFSETS` ways to pair
        neighbours, and one look at the end tells. Then with care, but devices like an earlier one as that was, again
        with one look at the end; then all with care.
        """
        near = [len(self.network.neighbours[device]) for device in range(len(self.network.devices))]
        order = sorted(range(self.network.ends, len(near)), key=lambda device: (near[device], device))
        self._leave_out()
        before, ways = self.units, self.ways
        attempts: list[Callable[[Sequence[int]], None]] = [partial(self._at_once, offset=n) for n in range(OFFSETS)]
        for take_out_all in (*attempts, self._by_example, self._with_care):
            self.units, self.ways = before.copy(), {ends: found[:] for ends, found in ways.items()}
            take_out_all(order)
            if self.spans():
                return True
        return False

    def _at_once(self, order: Sequence[int], offset: int) -> None:
        for number, device in enumerate(order, offset):
            self._join_all(self._pairs(device, number))
            self._drop(device)

    def _by_example(self, order: Sequence[int]) -> None:
        examples: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
        for number, device in enumerate(order):
            near = self._near(device)
            shape = tuple([(self.units.left[other][device], self.units.left[device][other]) for other in near])
            if shape not in examples:
                self._sinks = self._around(device)
                joined = self._split_off(device, number)
                examples[shape] = [(near.index(one), near.index(other)) for one, _, other in joined]
            else:
                self._join_all([(near[a], device, near[b]) for a, b in examples[shape]])
            self._drop(device)

    def _with_care(self, order: Sequence[int]) -> None:
        for number, device in enumerate(order):
            self._sinks = self._around(device)
            self._split_off(device, number)
            self._drop(device)

    def _split_off(self, device: int, number: int) -> Pairs:
        """Join all pairs at a device that may be joined; which they are."""
        self._joined = []
        while self._try(self._pairs(device, number)) or self._any(device):
            pass
        return self._joined

    def _leave_out(self) -> None:
        """Do without the devices farthest from the ranks, as a spine above rails is, while that takes nothing."""
        far = dict.fromkeys(range(self.network.ends), 0)
        for device in (queue := list(far)):
            for after, _ in self.network.neighbours[device]:
                if after not in far:
                    far[after] = far[device] + 1
                    queue.append(after)
        for level in range(max(far.values()), 1, -1):
            before = self.units.copy()
            for device in (device for device, at in far.items() if at == level):
                self._drop(device)
            if not self.spans():
                self.units = before
                return

    def _join_all(self, pairs: Pairs) -> None:
        """Split off pairs without a look."""
        for pair in pairs:
            self._join(pair, 1)
            self._lead(pair)

    def _drop(self, device: int) -> None:
        """Leave the units that are left at a device unused."""
        for other in bits(self.units.into[device]):
            self.units.add(other, device, -self.units.left[other][device])
        for other in bits(self.units.out[device]):
            self.units.add(device, other, -self.units.left[device][other])

    def _lead(self, pair: tuple[int, int, int]) -> None:
        """The way of one unit that was joined."""
        one, device, other = pair
        there, on = self.ways[one, device].pop(), self.ways[device, other].pop()
        self.ways.setdefault((one, other), []).append(simple((*there, *on[1:])))

    def _pairs(self, device: int, number: int) -> Pairs:
        """Pairs of neighbours to join, spread evenly: each with the next, then each with the next but one."""
        near = self._near(device)
        enter = {other: self.units.left[other][device] for other in near}
        leave = {other: self.units.left[device][other] for other in near}
        steps = [1 + (number + step) % (len(near) - 1) for step in range(len(near) - 1)]
        found: Pairs = []
        before = -1
        while before < len(found):
            before = len(found)
            for step in steps:
                for place, one in enumerate(near):
                    other = near[(place + step) % len(near)]
                    units = min(enter[one], leave[other], self.together)
                    enter[one] -= units
                    leave[other] -= units
                    found += [(one, device, other)] * units
        return found

    def _near(self, device: int) -> list[int]:
        """What units lead to or from."""
        return list(bits(self.units.into[device] | self.units.out[device]))

    def _try(self, pairs: Pairs) -> bool:
        """Split off as many of the pairs as can be, all at once or else in halves; whether any was."""
        if not pairs:
            return False
        for pair in pairs:
            self._join(pair, 1)
        if self._still_spans():
            for pair in pairs:
                self._lead(pair)
            self._joined += pairs
            return True
        for pair in pairs:
            self._join(pair, -1)
        if len(pairs) == 1:
            return False
        middle = len(pairs) // 2
        return bool(sum([self._try(half) for half in (pairs[:middle], pairs[middle:])]))

    def _still_spans(self) -> bool:
        """`spans` for the ranks looked at; of those the first that lacks something is looked at first next time."""
        for place, rank in enumerate(self._sinks):
            if not self.units.flows(self.source, rank, self.wanted):
                self._sinks.insert(0, self._sinks.pop(place))
                return False
        return True

    def _around(self, device: int) -> list[int]:
        """The nearest ranks."""
        seen, found = {device}, []
        for near in (queue := [device]):
            if near < self.network.ends:
                found.append(near)
                if len(found) == NEAR:
                    break
            for after, _ in self.network.neighbours[near]:
                if after not in seen:
                    seen.add(after)
                    queue.append(after)
        return found

    def _any(self, device: int) -> bool:
        """Split off one pair of all that there are."""
        enter, leave = bits(self.units.into[device]), list(bits(self.units.out[device]))
        return any(self._try([(a, device, b)]) for a in enter for b in leave if a != b)

    def _join(self, pair: tuple[int, int, int], units: int) -> None:
        one, device, other = pair
        self.units.add(one, device, -units)
        self.units.add(device, other, -units)
        self.units.add(one, other, units)
