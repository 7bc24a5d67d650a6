"""A machine as columns of its links, for bounds: distances and capacities without a table of all pairs.

Endpoints without a rank are left out with their links: messages do not pass through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.model import ENDPOINT_KINDS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

NOBODY = -1
"""Label of a device that belongs to no group."""
_BATCH_CELLS = 1 << 20
"""Sources times links of one batch: bounds the memory on large machines."""


@dataclass(frozen=True, eq=False)
class _Links:
    """Links sorted by head: their numbers, their tails, the first of each head, and the heads."""

    order: Ints
    tails: Ints
    first: Ints
    heads: Ints

    def pass_on(self, at: Floats, known: Floats, weights: Floats) -> Floats:
        """Return the less of `known` and what arrives over one link from `at`; both [sources, devices]."""
        reached = known.copy()
        if len(self.order):
            over = np.minimum.reduceat(at[:, self.tails] + weights[self.order], self.first, axis=1)
            reached[:, self.heads] = np.minimum(reached[:, self.heads], over)
        return reached


class Machine:
    """Devices and directed links by number, in the topology's order.

    Attributes:
        ids, devices: Device ids, and their number.
        host: Host number of each device.
        is_end: Whether a device holds a rank.
        ends: The devices that hold a rank.
        place: Device of each rank.
        src, dst: Devices that each link joins.
        latency_us, gb_per_s, gap_us: Figures of each link.
    """

    def __init__(self, endpoints: Sequence[str], paths: PathFinder) -> None:
        held = set(endpoints)
        devices = [d for d in paths.topology.devices if d.kind not in ENDPOINT_KINDS or d.id in held]
        number = {device.id: index for index, device in enumerate(devices)}
        hosts: dict[str, int] = {}
        self.ids, self.devices = [device.id for device in devices], len(devices)
        self.host = np.array([hosts.setdefault(device.host, len(hosts)) for device in devices], np.int64)
        self.is_end = np.array([device.id in held for device in devices])
        self.ends = np.flatnonzero(self.is_end)
        self.place = np.array([number[end] for end in endpoints], np.int64)
        kept = [
            (number[a], number[b], f.latency_us, f.gb_per_s, f.gap_us)
            for (a, b), f in paths.links.items()
            if a in number and b in number
        ]
        columns = np.array(kept, float).reshape(-1, 5).T
        self.src, self.dst = columns[0].astype(np.int64), columns[1].astype(np.int64)
        self.latency_us, self.gb_per_s, self.gap_us = columns[2], columns[3], columns[4]
        self._sorted: dict[tuple[bool, bool], _Links] = {}
        self._across_us: dict[bytes, float] = {}

    @property
    def host_of_ends(self) -> Ints:
        """Host of each endpoint, numbered by their first endpoints; NOBODY for other devices."""
        labels = np.full(self.devices, NOBODY)
        _, first, which = np.unique(self.host[self.ends], return_index=True, return_inverse=True)
        labels[self.ends] = np.argsort(np.argsort(first))[which]
        return labels

    def least(self, starts: Floats, weights: Floats, *, relays: bool, backward: bool = False) -> Floats:
        """Return the least sum of weights of links, [sources, devices], from the starts to every device, or back.

        `starts` [sources, devices] has the cost at the start, infinite where no source is. With `relays` endpoints
        forward too; without, a source's own entry is that of the least path back to itself.
        """
        try:
            from topocomm.native._native import least_sums
        except ImportError:
            return self._least_plainly(starts, weights, relays=relays, backward=backward)
        tails, heads = (self.dst, self.src) if backward else (self.src, self.dst)
        onward, every, reached = ~self.is_end[tails], np.array([relays]), np.empty(starts.shape)
        costs, begins = (np.ascontiguousarray(column, np.float64) for column in (weights, starts))
        least_sums(tails, heads, onward, costs, every, begins, reached)
        return reached

    def _least_plainly(self, starts: Floats, weights: Floats, *, relays: bool, backward: bool) -> Floats:
        """As `least`, without the compiled part."""
        every, onward = self._by_head(backward, every=True), self._by_head(backward, every=relays)
        batch = max(1, _BATCH_CELLS // max(len(weights), 1))
        batches = []
        for at in range(0, len(starts), batch):
            some = starts[at : at + batch]
            reached = some.copy() if relays else every.pass_on(some, np.full(some.shape, np.inf), weights)
            while True:
                better = onward.pass_on(reached, reached, weights)
                if (better == reached).all():
                    break
                reached = better
            batches.append(reached)
        return np.concatenate(batches)

    def _by_head(self, backward: bool, *, every: bool) -> _Links:
        """Return the links that leave forwarding devices, or all, sorted by head."""
        if (backward, every) not in self._sorted:
            tails, heads = (self.dst, self.src) if backward else (self.src, self.dst)
            usable = np.flatnonzero(~self.is_end[tails] | every)
            order = usable[np.argsort(heads[usable], kind="stable")]
            first = np.flatnonzero(np.diff(heads[order], prepend=NOBODY))
            self._sorted[backward, every] = _Links(order, tails[order], first, heads[order][first])
        return self._sorted[backward, every]

    def starts(self, sources: Ints) -> Floats:
        """Return the `starts` of single devices, one a row."""
        starts = np.full((len(sources), self.devices), np.inf)
        starts[np.arange(len(sources)), sources] = 0.0
        return starts

    def cheapest_across_us(self, labels: Ints) -> float:
        """Return the least latency of a message between endpoints with different labels (>= 0); infinite without one.

        Two different numbers differ in some binary digit, so the endpoints with 0 in a digit are spread to those
        with 1, and the other way round, for every digit.
        """
        key = labels.tobytes()
        if key not in self._across_us:
            best = np.inf
            for digit in range(int(labels[self.ends].max(initial=0)).bit_length()):
                ones = (labels >> digit & 1).astype(bool)
                sides = np.array([self.is_end & ~ones, self.is_end & ones])
                reach = self.least(np.where(sides, 0.0, np.inf), self.latency_us, relays=False)
                best = min(best, float(reach[sides[::-1]].min(initial=np.inf)))
            self._across_us[key] = best
        return self._across_us[key]

    def cheapest_us(self) -> float:
        """Return the least latency of a message between ranks; infinite if there is none.

        Two endpoints differ in their host or in their number on it.
        """
        order = np.argsort(self.host[self.ends], kind="stable")
        hosts = self.host[self.ends][order]
        starts = np.flatnonzero(np.diff(hosts, prepend=NOBODY))
        labels = np.full(self.devices, NOBODY)
        labels[self.ends[order]] = np.arange(len(hosts)) - np.repeat(starts, np.diff(starts, append=len(hosts)))
        return min(self.turn_us(), self.cheapest_across_us(self.host_of_ends), self.cheapest_across_us(labels))

    def turn_us(self) -> float:
        """Return the least latency of a message between two ranks of one endpoint; infinite where no endpoint has two.

        It goes to a forwarding device and back. An endpoint without links both ways to one reaches itself at no cost.
        """
        held = np.bincount(self.place, minlength=self.devices)
        if held.max(initial=0) < 2:
            return float("inf")
        src, dst = self.src, self.dst
        leaving, entering = self.is_end[src] & ~self.is_end[dst], self.is_end[dst] & ~self.is_end[src]
        out, into = np.full((2, self.devices), np.inf)
        np.minimum.at(out, src[leaving], self.latency_us[leaving])
        np.minimum.at(into, dst[entering], self.latency_us[entering])
        turns = np.zeros(self.devices, bool)
        turns[src[leaving & np.isin(src * self.devices + dst, dst * self.devices + src)]] = True
        return float(np.where(turns, out + into, 0.0)[held > 1].min())

    def border(self, labels: Ints, groups: int) -> tuple[Floats, Floats]:
        """Return (GB/s into, GB/s out of) each group of devices; labels are 0..groups-1 or NOBODY."""
        a, b = labels[self.src], labels[self.dst]
        into, out = (a != b) & (b != NOBODY), (a != b) & (a != NOBODY)
        return (
            np.bincount(b[into], self.gb_per_s[into], groups).astype(float),
            np.bincount(a[out], self.gb_per_s[out], groups).astype(float),
        )
