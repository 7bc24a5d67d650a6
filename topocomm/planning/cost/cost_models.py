"""The cost of a schedule on a machine: alpha, loggp, rounds, throughput; and for ranks that share one memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from topocomm.planning.collectives import IN_PAIRS, Collective
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.link_sharing import has_room
from topocomm.planning.cost.messages import Messages, chunk_bytes, messages_of, routes_of
from topocomm.planning.cost.pipeline_head import head_of, whole_us
from topocomm.planning.cost.port_time import PortModel, PortRules, TurnTimes, turn_times
from topocomm.planning.cost.port_turns import busiest_by_round, load_places
from topocomm.planning.cost.schedule_work import of_messages
from topocomm.planning.cost.simulated_work import SEND
from topocomm.planning.program.slot_memory import output_pieces, stages_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints, Routes
from topocomm.planning.schedule.place_numbers import PlaceNumbers, number_slices
from topocomm.planning.schedule.schedule import Schedule, input_pieces
from topocomm.planning.schedule.transforms import unrolled

TIME_DIGITS = 9
"""Digits to which times in us are rounded, of plans and bounds alike: else a plan could seem better than its bound."""
MOST_MESSAGES, MOST_TRANSFERS = 1 << 16, 1 << 20
"""Largest schedule, of long pipelines the largest head, whose events are followed; above, the time of each round's
busiest link or port is added."""
EXACT_INSTANTS = 1 << 13
"""Instants of a schedule that are told apart exactly; with one port few schedules have more than 1,100."""
ROUNDED = 1.0 - 1e-12
"""Factor of a sum of times that is no more than that of the events that it is made of."""
CACHED_BYTES = 1 << 20
"""Payload of all ranks together that stays in their caches; this and the next four are assumptions."""
CACHED_BYTES_PER_US, MEMORY_BYTES_PER_US = 16_000.0, 6_000.0
"""Copy rate of a core in its caches, and in memory."""
WAIT_US = 2.5
"""Wait of a rank with a core of its own: a cache line goes to another core and back."""
SWITCH_US = 2.0
"""Wait of a rank that shares a core: a switch between processes."""


def adds_rounds(schedule: Schedule, messages: int) -> bool:
    """Whether the time of a schedule is that of each round's busiest link or port, and not of events."""
    head = head_of(schedule)
    slices, followed = (1 if each.repeat is None else each.repeat.count for each in (schedule, head))
    return messages * followed > MOST_MESSAGES * slices or len(schedule.transfers) * followed > MOST_TRANSFERS


class _Turns(NamedTuple):
    """The messages of a schedule, of a long pipeline of its head, and their times if no link were shared."""

    head: Schedule
    schedule: Schedule
    bytes_us: Floats
    places: PlaceNumbers
    messages: Messages
    routes: Routes
    times: TurnTimes


class Cost:
    """Figures of a verified schedule on a machine; those that take time are computed when first needed.

    Attributes:
        unrolled: The schedule without `repeat`.
        messages: Messages on the wire, of a pipeline those of all slices.

    Raises:
        NoRouteError: No route joins the ends of a message.
        PlanError: A path of the schedule does not lead from one to the other.
    """

    def __init__(
        self,
        schedule: Schedule,
        endpoints: Sequence[str],
        paths: PathFinder,
        *,
        row_bytes: int,
        ports: int = 1,
        port_model: PortModel = "alpha",
        launch_us: float = 0.0,
        collective: Collective | None = None,
    ) -> None:
        self._whole, self.unrolled, self._rules = schedule, unrolled(schedule), PortRules(ports, port_model)
        self._endpoints, self._paths, self._row_bytes = endpoints, paths, row_bytes
        self._messages = messages_of(self.unrolled, chunk_bytes(self.unrolled, row_bytes))
        self._routes = routes_of(self._messages, self.unrolled, endpoints, paths)
        self._launch_us, self._collective, self._exceeds_us = launch_us, collective, 0.0
        self.rounds = int(np.count_nonzero(np.diff(self._messages.round, prepend=-1)))
        self.messages = len(self._messages)
        self.wire_bytes = int(self._messages.payload_bytes.sum())

    @cached_property
    def alpha_us(self) -> float:
        """Time of the last output without bytes, under the port model."""
        return turn_times(self.unrolled, *self._traffic).total_us

    @cached_property
    def predicted_us(self) -> float:
        """Time of the last output with bytes, and with a launch for every round."""
        return self.predicted_within(inf)

    def predicted_within(self, most_us: float) -> float:
        """Return `predicted_us`, or infinity as soon as it is known to exceed `most_us`."""
        if "predicted_us" in vars(self):
            return self.predicted_us
        launches_us = self._launch_us * self.rounds
        if not self.wire_bytes or adds_rounds(self._whole, self.messages):
            return self.by_rounds_us if self._by_round_us[1] + launches_us <= most_us else inf
        if max(self.least_us, self.floor_us) > most_us:
            return inf
        total_us = max(self._followed_us(most_us - launches_us), self._least_us) + launches_us
        if total_us < inf:
            vars(self)["predicted_us"] = total_us
        else:
            self._exceeds_us = np.nextafter(most_us, inf)
        return total_us

    @property
    def least_us(self) -> float:
        """What `predicted_us` is at least, soon computed; that itself where it is known."""
        if "predicted_us" in vars(self):
            return self.predicted_us
        launches_us = self._launch_us * self.rounds
        if not self.wire_bytes or adds_rounds(self._whole, self.messages):
            return self._by_round_us[1] + launches_us
        known_us: float = max(vars(self).get("alpha_us", 0.0), self._least_us)
        if head_of(self._whole) is self._whole:
            known_us = max(known_us, self._busiest_port_us)
        floor_us: float = vars(self).get("floor_us", 0.0)
        return max(known_us + launches_us, floor_us, self._exceeds_us)

    @cached_property
    def floor_us(self) -> float:
        """What `predicted_us` is at least, by all messages in their turn as if no link were shared; often that itself.

        Of a schedule whose rounds are added it is the sum.
        """
        if not self.wire_bytes or adds_rounds(self._whole, self.messages):
            return self.by_rounds_us
        return self._turns.times.total_us * ROUNDED + self._launch_us * self.rounds

    @cached_property
    def _turns(self) -> _Turns:
        head, routes = head_of(self._whole), self._routes
        if head is self._whole:
            schedule, messages, places = self.unrolled, self._messages, self.places
        else:
            schedule = unrolled(head)
            messages = messages_of(schedule, chunk_bytes(schedule, self._row_bytes))
            routes, places = routes_of(messages, schedule, self._endpoints, self._paths), number_slices(head)
        bytes_us = messages.payload_bytes / (routes.gb_per_s * 1e3)
        traffic = places, messages, routes, self._endpoints, self._paths, self._rules
        return _Turns(
            head, schedule, bytes_us, places, messages, routes, turn_times(schedule, *traffic, bytes_us=bytes_us)
        )

    def _followed_us(self, most_us: float) -> float:
        """The time with bytes by events, which need no simulation where messages in their turn share no link."""
        turns, rules = self._turns, self._rules
        rounds, arrival_us = turns.messages.round, turns.times.arrival_us
        total_us = float(arrival_us.max())
        if not self._has_room:
            followed = simulate(
                of_messages(turns.schedule, turns.messages, self._endpoints, turns.places),
                self._paths,
                ports=rules.ports,
                port_model=rules.port_model,
                most_us=most_us,
                exact_instants=EXACT_INSTANTS,
            )
            sent = followed.work.kind == SEND
            total_us, rounds, arrival_us = followed.total_us, followed.work.round[sent], followed.arrival_us[sent]
        return whole_us(self._whole, turns.head, total_us, rounds, arrival_us)

    @cached_property
    def _has_room(self) -> bool:
        """Whether messages in their turn share no link."""
        turns, rates = self._turns, (self._turns.routes.gb_per_s * 1e3, self._paths.link_gb_per_s * 1e3)
        start_us = turns.times.start_us
        return has_room(*self._shareable(turns.routes), start_us, start_us + turns.bytes_us, *rates)

    def simulates(self, most_messages: int) -> bool:
        """Whether `predicted_us` is not known yet, and takes a simulation of more messages than these."""
        if "predicted_us" in vars(self) or not self.wire_bytes or adds_rounds(self._whole, self.messages):
            return False
        return len(self._turns.messages) > most_messages and not self._has_room

    def _shareable(self, routes: Routes) -> tuple[Ints, Ints]:
        """(number on each route, links of all routes) but those of an endpoint whose one port serves them in turn."""
        kept = np.ones(len(routes.links), dtype=bool)
        if self._rules.ports == 1:
            is_end = self._paths.classes.is_end
            src, dst = self._paths.link_ends
            kept = ~(is_end[src] | is_end[dst])[routes.links]
        of = np.repeat(np.arange(len(routes)), routes.hops)
        return np.bincount(of[kept], minlength=len(routes)), routes.links[kept]

    def exceeds(self, most_us: float) -> bool:
        """Whether a pipeline takes more than this, in however many slices more, by bytes or without bytes."""
        return self.busiest_us > most_us or self.alpha_us + self._launch_us * self.rounds > most_us

    @cached_property
    def busiest_us(self) -> float:
        """Time of the busiest link or port and of launches: `predicted_us` is no less, of long pipelines about."""
        return max(self._busiest_link_us, self._busiest_port_us) + self._launch_us * self.rounds

    @property
    def soon_us(self) -> float:
        """About `predicted_us`, soon computed: that or what it exceeds if known, else by rounds."""
        known: float = vars(self).get("predicted_us", self._exceeds_us)
        return known or sum(self._by_round_us) + self._launch_us * self.rounds

    @cached_property
    def by_rounds_us(self) -> float:
        """The time with bytes as if a round's messages had links and ports to themselves.

        Bytes come after latencies, or in pipelines, if that is sooner, one round after the other while they pass.
        """
        total_us = self.alpha_us + self._by_round_us[1]
        if self.wire_bytes and self._whole.repeat is not None:
            total_us = min(total_us, turn_times(self.unrolled, *self._traffic, busy_us=self._busy_us).total_us)
        return total_us + self._launch_us * self.rounds

    @cached_property
    def places(self) -> PlaceNumbers:
        """The numbers of all places of the schedule unrolled."""
        return number_slices(self._whole)

    @property
    def _traffic(self) -> tuple[PlaceNumbers, Messages, Routes, Sequence[str], PathFinder, PortRules]:
        return self.places, self._messages, self._routes, self._endpoints, self._paths, self._rules

    @cached_property
    def throughput_gb_per_s(self) -> float | None:
        """Payload over the busiest link's time, for long pipelined payloads; None when nothing is sent.

        Without a payload it is that of a payload of equal chunks.
        """
        in_pairs = self._collective is not None and self._collective.name in IN_PAIRS
        counted = self.unrolled.rows if self._collective is None else self._collective.counted(self.unrolled.rows)
        payload_bytes, sizes = counted * self._row_bytes, self._messages.payload_bytes
        if not payload_bytes:
            payload_bytes = len(self.unrolled.chunks) // (self.unrolled.ranks if in_pairs else 1)
            sizes = np.bincount(self._messages.of_transfer, minlength=self.messages)
        busiest_us = self._busiest_us(sizes)
        return payload_bytes / busiest_us / 1e3 if busiest_us else None

    @cached_property
    def _least_us(self) -> float:
        """What it takes at least: the bytes of each link, of each port, and the least latency of a message there."""
        routes, sizes, rate = self._routes, self._messages.payload_bytes, self._paths.link_gb_per_s * 1e3
        held_us, ports, ends = self._held_us(sizes)
        two, least_us = 2 * np.arange(self.messages + 1), 0.0
        for starts, places, held, served in (
            (routes.starts, routes.links, sizes.astype(float), rate),
            (two, ports.ravel(), held_us, np.full(ends, float(self._rules.ports))),
        ):
            loads, latency_us = load_places(starts, places, held, routes.latency_us, len(served))
            busy_us = loads / served
            least_us = max(least_us, float((busy_us + latency_us)[busy_us > 0].max(initial=0.0)))
        return least_us

    @cached_property
    def _by_round_us(self) -> tuple[float, float]:
        """Sums over rounds of the longest latency, and of the time of the busiest link, or port."""
        first = np.flatnonzero(np.diff(self._messages.round, prepend=-1))
        longest_us = np.maximum.reduceat(self._routes.latency_us, first) if self.messages else np.zeros(0)
        latency_us, moved_us = 0.0, 0.0
        for one_us in longest_us.tolist():  # sum() adds otherwise since Python 3.12
            latency_us += one_us
        for one_us in self._busy_us.tolist():
            moved_us += one_us
        return latency_us, moved_us

    @cached_property
    def _busy_us(self) -> Floats:
        """For every round the time of the busiest link, or port: bytes over the rates of their routes."""
        sizes, routes, round_ = self._messages.payload_bytes, self._routes, self._messages.round
        held, ports, ends = self._held_us(sizes)
        busy_us, rate = np.zeros(self.unrolled.rounds), self._paths.link_gb_per_s * 1e3
        np.maximum.at(busy_us, round_, held)
        sent = np.searchsorted(round_, np.arange(self.unrolled.rounds + 1))
        busiest_by_round(sent, routes.starts, routes.links, sizes.astype(float), rate, busy_us)
        two, at_once = 2 * np.arange(self.messages + 1), np.full(ends, float(self._rules.ports))
        busiest_by_round(sent, two, ports.ravel(), held, at_once, busy_us)
        return busy_us

    @cached_property
    def _busiest_link_us(self) -> float:
        return self._busiest_us(self._messages.payload_bytes)

    @cached_property
    def _busiest_port_us(self) -> float:
        """Time in which the busiest port of an endpoint can serve all its messages, less rounding."""
        held, ports, ends = self._held_us(self._messages.payload_bytes)
        hold_us = self._routes.gap_us if self._rules.loggp else self._routes.latency_us
        served_us = np.bincount(ports.ravel(), np.repeat(held + hold_us, 2), ends).max(initial=0.0)
        return (float(served_us) / self._rules.ports - float(hold_us.max(initial=0.0))) * ROUNDED

    def _held_us(self, sizes: Ints) -> tuple[Floats, Ints, int]:
        """(time that each message's bytes hold its ports, these two ports, number of ports)."""
        numbers: dict[str, int] = {}
        end = np.array([numbers.setdefault(name, len(numbers)) for name in self._endpoints], dtype=np.int64)
        ports = np.stack([end[self._messages.src], len(numbers) + end[self._messages.dst]], axis=1)
        return sizes / (self._routes.gb_per_s * 1e3), ports, 2 * len(numbers)

    def _busiest_us(self, sizes: Ints) -> float:
        """The longest time of a directed link, for messages of these sizes."""
        routes = self._routes
        load_bytes = np.bincount(routes.links, np.repeat(sizes, routes.hops))  # whole numbers: exact
        used = np.flatnonzero(load_bytes)
        return float((load_bytes[used] / (self._paths.link_gb_per_s[used] * 1e3)).max(initial=0.0))


def soonest(costs: Sequence[Cost], same_us: float, most_simulated: int | None = None) -> list[int]:
    """Return the numbers of the costs of the least `predicted_us`, and of some others.

    The one of the least bound comes first, and its bound is made tighter before it is simulated; those that a bound
    rules out never are.

    Args:
        costs: Any, also none.
        same_us: How much more than the least is still the least.
        most_simulated: Costs that take a simulation of more messages are left out; None: none are.
    """
    waiting = [(cost.least_us, False, number) for number, cost in enumerate(costs)]
    heapify(waiting)
    kept, least_us = [], inf
    while waiting and waiting[0][0] <= least_us + same_us:
        _, by_turns, number = heappop(waiting)
        if not by_turns:
            heappush(waiting, (costs[number].floor_us, True, number))
        elif most_simulated is not None and costs[number].simulates(most_simulated):
            continue
        elif (time_us := costs[number].predicted_within(least_us + same_us)) < inf:
            kept.append(number)
            least_us = min(least_us, time_us)
    return kept


def memory_us(schedule: Schedule, *, row_bytes: int, cores: int) -> float:
    """Return a time that orders candidates for ranks of one host, in us; no figure of a plan comes from it.

    Such ranks send nothing: each writes the part of its value that others read, folds read operands in place and write
    their results, and results that no fold of the rank made are copied out. Ranks that share one of the `cores` work
    one after the other, and each wait costs a process switch.
    """
    work = [_memory_work(schedule, rank, row_bytes) for rank in range(schedule.ranks)]
    turns = max(1.0, schedule.ranks / cores)
    waits = max(count for _, count in work)
    payload_bytes = schedule.rows * row_bytes
    rate = CACHED_BYTES_PER_US if payload_bytes * schedule.ranks <= CACHED_BYTES else MEMORY_BYTES_PER_US
    busiest_bytes, all_bytes = max(moved for moved, _ in work), sum(moved for moved, _ in work)
    moving_us = max(busiest_bytes, all_bytes / cores) / rate
    return moving_us + waits * (WAIT_US if turns == 1.0 else SWITCH_US * turns)


def _memory_work(schedule: Schedule, rank: int, row_bytes: int) -> tuple[int, int]:
    """(bytes that a rank reads and writes, stages in which it waits)."""
    size = [rows * row_bytes for _, rows in schedule.chunks]
    stages = stages_of(schedule, rank)
    folds = [fold for stage in stages for fold in stage.folds]
    read = {piece for stage in stages for pieces in stage.sends.values() for piece in pieces}
    outputs = set(output_pieces(schedule, rank))
    folded = {(fold.out_slot, fold.chunk) for fold in folds}
    moved = sum(2 * size[piece[1]] for piece in set(input_pieces(schedule, rank)) & (read | outputs))
    moved += sum((len(fold.operands) + 1) * size[fold.chunk] for fold in folds)
    moved += sum(2 * size[piece[1]] for piece in outputs if piece not in folded or piece in read)
    return moved, sum(1 for stage in stages if stage.receives)
