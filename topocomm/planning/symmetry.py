"""Which ranks sit on equal endpoints, and how far one is from all others, without a table of pairs.

Two endpoints are equal if their hosts are of one class (`host_classes`) and they stand at the same place in them:
swapping the two hosts then changes nothing on the machine. So how far b is from a depends only on the kinds of both and
on whether they share a host, and it is found on a machine that has two hosts of every class: leaving a host of the
whole machine where it is and putting every other one on the second host of its class turns each path into one of the
same latency, and every path of the small machine is one of the whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.host_classes import NETWORK
from topocomm.planning.paths import PathFinder
from topocomm.planning.routes import Floats, Ints


class EqualEndpoints:
    """The ranks on some endpoints, by the kind of their endpoint.

    Attributes:
        kinds: int64 [ranks]: equal for ranks whose endpoints are equal, counted by first appearance.
        firsts: The lowest rank of each kind.
    """

    def __init__(self, paths: PathFinder, endpoints: Sequence[str]) -> None:
        classes = paths.classes
        self._paths, self._endpoints = paths, tuple(endpoints)
        self._device: Ints = np.array([classes.index[end] for end in endpoints], dtype=np.int64)
        _, first, inverse = np.unique(classes.alike[self._device], return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        self.kinds: Ints = number[inverse]
        self.firsts: tuple[int, ...] = tuple(first[order].tolist())
        self._twins = _second_groups(classes.class_of, classes.first)
        self._after = self._small_machine()

    def ranks(self) -> list[list[int]]:
        """The ranks of each kind."""
        return [np.flatnonzero(self.kinds == kind).tolist() for kind in range(len(self.firsts))]

    def direct_us(self, rank: int) -> Floats:
        """float64 [ranks]: latency of the cheapest route from a rank to each; infinite without one.

        Of ranks on its own endpoint, itself among them, that of the way out and back.
        """
        found = self._from(rank, relays=False)
        end = self._endpoints[rank]
        found[self._device == self._device[rank]] = self._paths.cheapest(end, end).latency_us
        return found

    def relayed_us(self, rank: int) -> Floats:
        """float64 [ranks]: least time in which a value of this rank can be at each, over whatever other endpoints.

        The least sum of latencies with endpoints on the way that relay, 0 on its own endpoint.
        """
        return self._from(rank, relays=True)

    def _from(self, rank: int, *, relays: bool) -> Floats:
        classes = self._paths.classes
        group = classes.group[self._device]
        kind = int(classes.class_of[group[rank]])
        apart = self._search(classes.id_at(classes.first[kind], int(classes.place[self._device[rank]])), relays)
        stands = np.array(classes.first, dtype=np.int64)
        twin = self._twins[kind]
        stands[kind] = classes.first[kind] if twin is None else twin
        stands = np.where(group == group[rank], classes.first[kind], stands[classes.class_of[group]])
        devices = classes.members[classes.member_start[stands + 1] + classes.place[self._device]]
        known, inverse = np.unique(devices, return_inverse=True)
        return np.array([apart.get(classes.ids[device], inf) for device in known.tolist()], dtype=float)[inverse]

    def _search(self, source: str, relays: bool) -> dict[str, float]:
        """Least latency from a device to every other of the small machine."""
        classes = self._paths.classes
        found: dict[str, float] = {}
        heap = [(0.0, source)]
        while heap:
            latency_us, device = heapq.heappop(heap)
            if device in found:
                continue
            found[device] = latency_us
            if relays or device == source or not classes.is_end[classes.index[device]]:
                for after, further_us in self._after.get(device, ()):
                    if after not in found:
                        heapq.heappush(heap, (latency_us + further_us, after))
        return found

    def _small_machine(self) -> dict[str, list[tuple[str, float]]]:
        """The links from every device of the network and of two hosts of each class."""
        groups = [NETWORK, *self._paths.classes.first, *(twin for twin in self._twins if twin is not None)]
        found: dict[str, list[tuple[str, float]]] = {}
        for group in groups:
            for number in self._paths.classes.links_of(group):
                src, dst = self._paths.edges[number]
                found.setdefault(src, []).append((dst, self._paths.links[src, dst].latency_us))
        return found


def _second_groups(class_of: NDArray[np.int64], first: Sequence[int]) -> list[int | None]:
    """The second group of each class, None where there is one alone."""
    found: list[int | None] = [None] * len(first)
    for group, kind in enumerate(class_of.tolist()):
        if group != first[kind] and found[kind] is None:
            found[kind] = group
    return found
