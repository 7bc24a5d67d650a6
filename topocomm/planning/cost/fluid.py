"""Times of a schedule with bytes: messages as fluid flows that share links max-min fairly, driven by events.

The rules are those of docs/concepts/cost-models.md: a message starts when its slots are ready and fewer than K earlier
messages of each of its ports are unfinished, and arrives one path latency after its last byte left.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from topocomm.planning.cost.link_sharing import LinkSharing
from topocomm.planning.cost.messages import Messages
from topocomm.planning.cost.port_time import PortRules, ports_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Routes
from topocomm.planning.schedule.schedule import PlaceNumbers

ARRIVE, RELEASE = 0, 1
"""Kinds of events."""
EPSILON_BYTES = 1e-6
"""Rest of a flow that counts as sent: rounding."""


def ready_times_us(
    places: PlaceNumbers,
    messages: Messages,
    routes: Routes,
    endpoints: Sequence[str],
    paths: PathFinder,
    rules: PortRules,
) -> Floats:
    """Return float64 [places]: the time in us at which each place of a schedule without `repeat` has its value."""
    events = _Events(places, messages, routes, endpoints, paths, rules)
    events.run(places.inputs.tolist())
    return np.array(events.ready_us)


@dataclass
class _Flow:
    message: int
    left_bytes: float
    rate_bytes_per_us: float = 0.0


class _Events:
    """The simulation: flows, ports, and a heap of events. Messages are numbers; folds follow them."""

    def __init__(
        self,
        places: PlaceNumbers,
        messages: Messages,
        routes: Routes,
        endpoints: Sequence[str],
        paths: PathFinder,
        rules: PortRules,
    ) -> None:
        self.rules = rules
        self.sizes: list[int] = messages.payload_bytes.tolist()
        self.latency_us, self.gb_per_s, self.gap_us = (
            column.tolist() for column in (routes.latency_us, routes.gb_per_s, routes.gap_us)
        )
        self.sharing = LinkSharing(routes.starts, routes.links, paths.link_gb_per_s * 1e3)
        self.folded: list[int] = places.folded.tolist()
        self.writes: list[list[int]] = [[] for _ in self.sizes]
        needs: list[list[int]] = [[] for _ in range(len(self.sizes) + len(self.folded))]
        transfers = zip(messages.of_transfer.tolist(), places.sent.tolist(), places.received.tolist(), strict=True)
        for message, read, written in transfers:
            needs[message].append(read)
            self.writes[message].append(written)
        for fold, operand in zip(places.fold_of.tolist(), places.operands.tolist(), strict=True):
            needs[len(self.sizes) + fold].append(operand)
        self.missing = [len(set(own)) for own in needs]
        self.waiting: dict[int, list[int]] = defaultdict(list)
        for what, own in enumerate(needs):
            for place in set(own):
                self.waiting[place].append(what)
        self.now_us = 0.0
        self.ready_us = [0.0] * places.count
        self.flows: dict[int, _Flow] = {}
        self.heap: list[tuple[float, int, int, int]] = []
        starts, ports, self.ends = ports_of(messages, routes, endpoints, paths, rules)
        self.ports_of: list[list[int]] = [own.tolist() for own in np.split(ports, starts[1:-1])]
        self.queues: dict[int, list[int]] = defaultdict(list)
        """Unfinished messages of each port in order."""
        for index, own_ports in enumerate(self.ports_of):
            for port in own_ports:
                self.queues[port].append(index)
        self.unstarted = set(range(len(self.sizes)))

    def run(self, inputs: list[int]) -> None:
        """Run from the time at which the inputs are ready until the last event."""
        for place in inputs:
            self._set_ready(place)
        self._start(set(self.queues))
        while self.flows or self.heap:
            flow_us = min((f.left_bytes / f.rate_bytes_per_us for f in self.flows.values()), default=inf)
            event_us = self.heap[0][0] if self.heap else inf
            until_us = min(self.now_us + flow_us, event_us)
            for flow in self.flows.values():
                flow.left_bytes -= flow.rate_bytes_per_us * (until_us - self.now_us)
            self.now_us = until_us
            self._finish_flows()
            self._start(self._pop_events())

    def _set_ready(self, place: int) -> set[int]:
        """Mark a place ready now, run the folds this completes, and return the ports of messages now ready."""
        self.ready_us[place] = self.now_us
        touched: set[int] = set()
        for what in self.waiting.pop(place, ()):
            self.missing[what] -= 1
            if self.missing[what]:
                continue
            if what >= len(self.sizes):
                touched |= self._set_ready(self.folded[what - len(self.sizes)])
            else:
                touched.update(self.ports_of[what])
        return touched

    def _admitted(self, port: int) -> list[int]:
        """The messages of a port that may be under way; a NIC serves one."""
        return self.queues[port][: self.rules.ports if port < self.ends else 1]

    def _start(self, touched: set[int]) -> None:
        candidates = {message for port in touched for message in self._admitted(port)}
        started = []
        for index in sorted(candidates & self.unstarted):
            if self.missing[index] or not all(index in self._admitted(port) for port in self.ports_of[index]):
                continue
            self.unstarted.remove(index)
            if self.sizes[index] and self.gb_per_s[index] < inf:
                self.flows[index] = _Flow(index, float(self.sizes[index]))
                started.append(index)
            else:
                self._flowed(index)
            if self.rules.loggp:
                for port in self.ports_of[index][2:]:
                    heapq.heappush(self.heap, (self.now_us + self.gap_us[index], RELEASE, index, port))
        if started:
            self._share(started, [])

    def _finish_flows(self) -> None:
        done = []
        for flow in self.flows.values():  # nothing is left, or too little to advance the clock
            left_us = flow.left_bytes / flow.rate_bytes_per_us if flow.rate_bytes_per_us else inf
            if flow.left_bytes <= EPSILON_BYTES or self.now_us + left_us == self.now_us:
                done.append(flow.message)
        for index in done:
            del self.flows[index]
            self._flowed(index)
        if done:
            self._share([], done)

    def _flowed(self, index: int) -> None:
        """The last byte left: schedule arrival and the release of the ports."""
        heapq.heappush(self.heap, (self.now_us + self.latency_us[index], ARRIVE, index, -1))
        held_us = self.gap_us[index] if self.rules.loggp else self.latency_us[index]
        for port in self.ports_of[index][:2]:
            heapq.heappush(self.heap, (self.now_us + held_us, RELEASE, index, port))

    def _pop_events(self) -> set[int]:
        touched: set[int] = set()
        while self.heap and self.heap[0][0] <= self.now_us:
            _, kind, index, port = heapq.heappop(self.heap)
            if kind == RELEASE:
                self.queues[port].remove(index)
                touched.add(port)
            else:
                for place in self.writes[index]:
                    touched |= self._set_ready(place)
        return touched

    def _share(self, started: list[int], ended: list[int]) -> None:
        """Set max-min fair rates after flows started or ended."""
        changed = self.sharing.change(np.array(started, dtype=np.int64), np.array(ended, dtype=np.int64))
        rates = self.sharing.rate_bytes_per_us[changed].tolist()
        for index, rate in zip(changed.tolist(), rates, strict=True):
            self.flows[index].rate_bytes_per_us = rate
