"""Times of a schedule with bytes: messages as fluid flows that share links max-min fairly, driven by events.

The rules are those of docs/concepts/cost-models.md: a message starts when its slots are ready and fewer than K earlier
messages of each of its ports are unfinished. Its bytes flow at the max-min fair rate of its route; it arrives one path
latency after its last byte left. Under `alpha` it holds its ports until then, under `loggp` until its last byte left
plus the gap, and a NIC serves one message per gap.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf

from topocomm.planning.cost.messages import Message, Step
from topocomm.planning.cost.port_time import PortRules
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Edge
from topocomm.planning.schedule.schedule import Combine, Place, Schedule, input_table

ARRIVE, RELEASE = 0, 1
"""Kinds of events."""
EPSILON_BYTES = 1e-6
"""Rest of a flow that counts as sent: rounding."""


def ready_times_us(schedule: Schedule, steps: list[Step], paths: PathFinder, rules: PortRules) -> dict[Place, float]:
    """Return the time in us at which every place of a schedule without `repeat` has its value; `steps`: its rounds."""
    events = _Events(steps, paths, rules)
    events.run([tuple(row[:3]) for row in input_table(schedule).tolist()])
    return events.ready_us


@dataclass
class _Flow:
    message: int
    left_bytes: float
    rate_bytes_per_us: float = 0.0


@dataclass
class _Port:
    """Unfinished messages of one port in order; the first `limit` may be under way."""

    limit: int
    queue: list[int] = field(default_factory=list)

    def admits(self, message: int) -> bool:
        return message in self.queue[: self.limit]


class _Events:
    """The simulation: flows, ports, and a heap of events."""

    def __init__(self, steps: list[Step], paths: PathFinder, rules: PortRules) -> None:
        self.links, self.rules = paths.links, rules
        self.messages: list[Message] = [m for step in steps for m in step.messages]
        self.now_us = 0.0
        self.ready_us: dict[Place, float] = {}
        self.waiting: dict[Place, list[int | Combine]] = {}
        self.missing: dict[int | Combine, int] = {}
        self.flows: dict[int, _Flow] = {}
        self.heap: list[tuple[float, int, int, str]] = []
        self.ports: dict[str, _Port] = {}
        self.ports_of: list[tuple[str, ...]] = []
        self.unstarted: set[int] = set()
        self._queue_messages({device.id for device in paths.topology.devices if device.kind == "nic"})
        self._await_operands(steps)

    def run(self, inputs: list[Place]) -> None:
        """Run from the time at which the inputs are ready until the last event."""
        for place in inputs:
            self._set_ready(place)
        self._start(set(self.ports))
        while self.flows or self.heap:
            flow_us = min((f.left_bytes / f.rate_bytes_per_us for f in self.flows.values()), default=inf)
            event_us = self.heap[0][0] if self.heap else inf
            self._advance(min(self.now_us + flow_us, event_us))
            self._finish_flows()
            touched = self._pop_events()
            self._start(touched)

    def _queue_messages(self, nics: set[str]) -> None:
        for index, message in enumerate(self.messages):
            names = [f"send {message.src_port}", f"receive {message.dst_port}"]
            if self.rules.loggp:
                names += [f"nic {device}" for device in message.route.devices if device in nics]
            for name in names:
                limit = 1 if name.startswith("nic") else self.rules.ports
                self.ports.setdefault(name, _Port(limit)).queue.append(index)
            self.ports_of.append(tuple(names))
            self.unstarted.add(index)

    def _await_operands(self, steps: list[Step]) -> None:
        index = 0
        for step in steps:
            for message in step.messages:
                self._await(index, message.reads)
                index += 1
            for fold in step.combines:
                self._await(fold, [(fold.rank, slot, fold.chunk) for slot in fold.operands])

    def _await(self, what: int | Combine, places: tuple[Place, ...] | list[Place]) -> None:
        self.missing[what] = len(set(places))
        for place in set(places):
            self.waiting.setdefault(place, []).append(what)

    def _set_ready(self, place: Place) -> set[str]:
        """Mark a place ready now, run the combines this completes, and return the ports of messages now ready."""
        self.ready_us[place] = self.now_us
        touched: set[str] = set()
        for what in self.waiting.pop(place, ()):
            self.missing[what] -= 1
            if self.missing[what]:
                continue
            if isinstance(what, Combine):
                touched |= self._set_ready((what.rank, what.out_slot, what.chunk))
            else:
                touched.update(self.ports_of[what])
        return touched

    def _start(self, touched: set[str]) -> None:
        candidates = {m for name in touched for m in self.ports[name].queue[: self.ports[name].limit]}
        started = False
        for index in sorted(candidates & self.unstarted):
            if self.missing[index] or not all(self.ports[n].admits(index) for n in self.ports_of[index]):
                continue
            self.unstarted.remove(index)
            message = self.messages[index]
            if message.payload_bytes and message.route.gb_per_s < inf:
                self.flows[index] = _Flow(index, float(message.payload_bytes))
                started = True
            else:
                self._flowed(index)
            if self.rules.loggp:
                for name in self.ports_of[index][2:]:
                    heapq.heappush(self.heap, (self.now_us + message.route.gap_us, RELEASE, index, name))
        if started:
            self._share()

    def _advance(self, until_us: float) -> None:
        step_us = until_us - self.now_us
        for flow in self.flows.values():
            flow.left_bytes -= flow.rate_bytes_per_us * step_us
        self.now_us = until_us

    def _is_through(self, flow: _Flow) -> bool:
        """Whether nothing is left, or too little to advance the clock."""
        left_us = flow.left_bytes / flow.rate_bytes_per_us if flow.rate_bytes_per_us else inf
        return flow.left_bytes <= EPSILON_BYTES or self.now_us + left_us == self.now_us

    def _finish_flows(self) -> None:
        done = [f.message for f in self.flows.values() if self._is_through(f)]
        for index in done:
            del self.flows[index]
            self._flowed(index)
        if done:
            self._share()

    def _flowed(self, index: int) -> None:
        """The last byte left: schedule arrival and the release of the ports."""
        route = self.messages[index].route
        heapq.heappush(self.heap, (self.now_us + route.latency_us, ARRIVE, index, ""))
        held_us = route.gap_us if self.rules.loggp else route.latency_us
        for name in self.ports_of[index][:2]:
            heapq.heappush(self.heap, (self.now_us + held_us, RELEASE, index, name))

    def _pop_events(self) -> set[str]:
        touched: set[str] = set()
        while self.heap and self.heap[0][0] <= self.now_us:
            _, kind, index, name = heapq.heappop(self.heap)
            if kind == RELEASE:
                self.ports[name].queue.remove(index)
                touched.add(name)
            else:
                for place in self.messages[index].writes:
                    touched |= self._set_ready(place)
        return touched

    def _share(self) -> None:
        """Set max-min fair rates: the tightest links divide equally among their flows, then the next tightest."""
        users: dict[Edge, set[int]] = {}
        for index in self.flows:
            for edge in self.messages[index].route.edges:
                users.setdefault(edge, set()).add(index)
        left = {edge: self.links[edge].gb_per_s * 1e3 for edge in users}  # bytes per us
        while users:
            rates = {edge: left[edge] / len(flows) for edge, flows in users.items()}
            rate = min(rates.values())
            tightest = [edge for edge, own in rates.items() if own == rate]
            for index in {index for edge in tightest for index in users[edge]}:
                self.flows[index].rate_bytes_per_us = rate
                for crossed in self.messages[index].route.edges:
                    users[crossed].discard(index)
                    left[crossed] -= rate
            users = {edge: flows for edge, flows in users.items() if flows}
