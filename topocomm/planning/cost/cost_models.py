"""The cost of a schedule on a machine: alpha, loggp, rounds, throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from topocomm.planning.collectives import IN_PAIRS, Collective
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.link_sharing import has_room
from topocomm.planning.cost.messages import Messages, chunk_bytes, messages_of, routes_of
from topocomm.planning.cost.pipeline_head import (
    Arrivals,
    Head,
    adds_rounds,
    head_of,
    is_steady,
    moves_of,
    part_of,
    whole_us,
    with_slices,
)
from topocomm.planning.cost.port_time import PortModel, PortRules, TurnTimes, turn_times
from topocomm.planning.cost.port_turns import busiest_by_round, load_places
from topocomm.planning.cost.schedule_work import of_messages
from topocomm.planning.cost.simulated_work import SEND
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints, Routes
from topocomm.planning.schedule.place_numbers import PlaceNumbers, number_slices
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import unrolled

TIME_DIGITS = 9
"""Digits to which times in us are rounded, of plans and bounds alike: else a plan could seem better than its bound."""
MOST_TURNS, CHAIN_ERROR = 1 << 18, 0.02
"""Messages of the largest head in whose turns all hosts of a chain are tried; and by what part of the time the first
ones may be wrong there if they alone are followed."""
MOST_UNROLLED = 1 << 19
"""Transfers of the longest pipeline whose time without bytes is that of all its slices."""
EXACT_INSTANTS = 1 << 13
"""Instants of a schedule that are told apart exactly; with one port few schedules have more than 1,100."""
ROUNDED = 1.0 - 1e-12
"""Factor of a sum of times that is no more than that of the events that it is made of."""


class _Turns(NamedTuple):
    """The messages of a schedule, of a long pipeline of its head, and their times if no link were shared."""

    schedule: Schedule
    bytes_us: Floats
    places: PlaceNumbers
    messages: Messages
    routes: Routes
    times: TurnTimes


class Cost:
    """Figures of a verified schedule on a machine; those that take time are computed when first needed.

    Attributes:
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
        self._whole, self._rules = schedule, PortRules(ports, port_model)
        self._endpoints, self._paths, self._row_bytes = endpoints, paths, row_bytes
        self._once = schedule if schedule.repeat is None else replace(schedule, repeat=None)
        self._sent = messages_of(self._once, chunk_bytes(self._once, row_bytes))  # of a slice, with the bytes of all
        self._ways = routes_of(self._sent, self._once, endpoints, paths)
        self._launch_us, self._collective, self._exceeds_us = launch_us, collective, 0.0
        self._made_turns: dict[tuple[int, int], _Turns] = {}
        self.rounds = with_slices(schedule, self._sent.round)
        self.messages = with_slices(schedule, self._sent.round, self._sent.src, self._sent.dst, self._sent.path)
        self.wire_bytes = int(self._sent.payload_bytes.sum())

    @cached_property
    def unrolled(self) -> Schedule:
        """The schedule without `repeat`."""
        return unrolled(self._whole)

    @cached_property
    def _messages(self) -> Messages:
        whole = self._whole.repeat is not None
        return messages_of(self.unrolled, chunk_bytes(self.unrolled, self._row_bytes)) if whole else self._sent

    @cached_property
    def _routes(self) -> Routes:
        whole = self._whole.repeat is not None
        return routes_of(self._messages, self.unrolled, self._endpoints, self._paths) if whole else self._ways

    @cached_property
    def alpha_us(self) -> float:
        """Time of the last output without bytes, under the port model; of a very long pipeline by its head."""
        head = self._head if moves_of(self._whole) > MOST_UNROLLED else Head(self._whole)
        if not head.slices:
            return turn_times(self.unrolled, *self._traffic).total_us
        turns = self._turns
        traffic = turns.places, turns.messages, turns.routes, self._endpoints, self._paths, self._rules
        times = turn_times(turns.schedule, *traffic)
        return whole_us(head, times.total_us, Arrivals(turns.messages.round, turns.messages.dst, times.arrival_us))

    @cached_property
    def predicted_us(self) -> float:
        """Time of the last output with bytes, and with a launch for every round."""
        return self.predicted_within(inf)

    def predicted_within(self, most_us: float) -> float:
        """Return `predicted_us`, or infinity as soon as it is known to exceed `most_us`."""
        if "predicted_us" in vars(self):
            return self.predicted_us
        launches_us = self._launch_us * self.rounds
        if not self.wire_bytes or self.adds_rounds:
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
        if not self.wire_bytes or self.adds_rounds:
            return self._by_round_us[1] + launches_us
        known_us: float = max(vars(self).get("alpha_us", 0.0), self._least_us)
        if head_of(self._whole).schedule is self._whole:
            known_us = max(known_us, self._busiest_port_us)
        floor_us: float = vars(self).get("floor_us", 0.0)
        return max(known_us + launches_us, floor_us, self._exceeds_us)

    @cached_property
    def floor_us(self) -> float:
        """What `predicted_us` is at least, by all messages in their turn as if no link were shared; often that itself.

        Of a schedule whose rounds are added it is the sum.
        """
        if not self.wire_bytes or self.adds_rounds:
            return self.by_rounds_us
        return self._turns.times.total_us * ROUNDED + self._launch_us * self.rounds

    @cached_property
    def adds_rounds(self) -> bool:
        """Whether `predicted_us` is by rounds: the messages are too many to be followed."""
        plain = head_of(self._whole).schedule
        return adds_rounds(self._whole, plain, self.messages) and (
            self._head.schedule is plain or adds_rounds(self._whole, self._head.schedule, self.messages)
        )

    @cached_property
    def _head(self) -> Head:
        """What is followed: of a chain of hosts the first ones, where the others add as much if no link is shared."""
        whole = head_of(self._whole)
        head = head_of(self._whole, self._endpoints, self._paths)
        if not head.hosts or adds_rounds(self._whole, head.schedule, self.messages):
            return whole
        turns = self._turns_of(head)
        followed = self.messages * part_of(whole.schedule, self._whole)
        if followed > MOST_TURNS:
            return head if is_steady(head, _arrivals(turns)) else whole
        every = self._turns_of(whole)
        exact_us, told_us = (
            whole_us(each, float(made.times.arrival_us.max()), _arrivals(made))
            for each, made in ((whole, every), (head, turns))
        )
        return head if abs(told_us - exact_us) <= CHAIN_ERROR * exact_us else whole

    @cached_property
    def _turns(self) -> _Turns:
        return self._turns_of(self._head)

    def _turns_of(self, head: Head) -> _Turns:
        if (head.slices, head.hosts) in self._made_turns:
            return self._made_turns[head.slices, head.hosts]
        if head.schedule is self._whole:
            schedule, messages, routes, places = self.unrolled, self._messages, self._routes, self.places
        else:
            schedule, places = unrolled(head.schedule), number_slices(head.schedule)
            messages = messages_of(schedule, chunk_bytes(schedule, self._row_bytes))
            routes = routes_of(messages, schedule, self._endpoints, self._paths)
        bytes_us = messages.payload_bytes / (routes.gb_per_s * 1e3)
        traffic = places, messages, routes, self._endpoints, self._paths, self._rules
        times = turn_times(schedule, *traffic, bytes_us=bytes_us)
        made = self._made_turns[head.slices, head.hosts] = _Turns(schedule, bytes_us, places, messages, routes, times)
        return made

    def _followed_us(self, most_us: float) -> float:
        """The time with bytes by events, which need no simulation where messages in their turn share no link."""
        turns, rules = self._turns, self._rules
        rounds, ranks, arrival_us = turns.messages.round, turns.messages.dst, turns.times.arrival_us
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
            total_us, arrival_us = followed.total_us, followed.arrival_us[sent]
            rounds, ranks = followed.work.round[sent], followed.work.dst[sent]
        return whole_us(self._head, total_us, Arrivals(rounds, ranks, arrival_us))

    @cached_property
    def _has_room(self) -> bool:
        """Whether messages in their turn share no link."""
        turns, rates = self._turns, (self._turns.routes.gb_per_s * 1e3, self._paths.link_gb_per_s * 1e3)
        start_us = turns.times.start_us
        return has_room(*self._shareable(turns.routes), start_us, start_us + turns.bytes_us, *rates)

    def simulates(self, most_messages: int) -> bool:
        """Whether `predicted_us` is not known yet, and takes a simulation of more messages than these."""
        if "predicted_us" in vars(self) or not self.wire_bytes or self.adds_rounds:
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
        counted = self._once.rows if self._collective is None else self._collective.counted(self._once.rows)
        payload_bytes, sizes = counted * self._row_bytes, self._sent.payload_bytes
        if not payload_bytes:
            payload_bytes = len(self._once.chunks) // (self._once.ranks if in_pairs else 1)
            sizes = np.bincount(self._sent.of_transfer, minlength=len(self._sent))
        busiest_us = self._busiest_us(sizes, self._ways)
        return payload_bytes / busiest_us / 1e3 if busiest_us else None

    @cached_property
    def _least_us(self) -> float:
        """What it takes at least: the bytes of each link, of each port, and the least latency of a message there."""
        routes, sizes, rate = self._ways, self._sent.payload_bytes, self._paths.link_gb_per_s * 1e3
        held_us, ports, ends = self._held_us(self._sent, routes)
        two, least_us = 2 * np.arange(len(sizes) + 1), 0.0
        for starts, places, held, served in (
            (routes.starts, routes.links, sizes.astype(float), rate),
            (two, ports.ravel(), held_us, np.full(ends, float(self._rules.ports))),
        ):
            loads, latency_us = load_places(starts, places, held, routes.latency_us, len(served))
            least_us = max(least_us, float((loads / served + latency_us)[loads > 0].max(initial=0.0)))
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
        held, ports, ends = self._held_us(self._messages, routes)
        busy_us, rate = np.zeros(self.unrolled.rounds), self._paths.link_gb_per_s * 1e3
        np.maximum.at(busy_us, round_, held)
        sent = np.searchsorted(round_, np.arange(self.unrolled.rounds + 1))
        busiest_by_round(sent, routes.starts, routes.links, sizes.astype(float), rate, busy_us)
        two, at_once = 2 * np.arange(len(sizes) + 1), np.full(ends, float(self._rules.ports))
        busiest_by_round(sent, two, ports.ravel(), held, at_once, busy_us)
        return busy_us

    @cached_property
    def _busiest_link_us(self) -> float:
        return self._busiest_us(self._sent.payload_bytes, self._ways)

    @cached_property
    def _busiest_port_us(self) -> float:
        """Time in which the busiest port of an endpoint can serve all its messages, less rounding."""
        held, ports, ends = self._held_us(self._sent, self._ways)
        hold_us = self._ways.gap_us if self._rules.loggp else self._ways.latency_us
        slices = 1 if self._whole.repeat is None else self._whole.repeat.count
        if self.messages == slices * len(self._sent):  # else some are in one message
            held = held + (slices - 1) * hold_us
        served_us = np.bincount(ports.ravel(), np.repeat(held + hold_us, 2), ends).max(initial=0.0)
        return (float(served_us) / self._rules.ports - float(hold_us.max(initial=0.0))) * ROUNDED

    def _held_us(self, messages: Messages, routes: Routes) -> tuple[Floats, Ints, int]:
        """(time that each message's bytes hold its ports, these two ports, number of ports)."""
        numbers: dict[str, int] = {}
        end = np.array([numbers.setdefault(name, len(numbers)) for name in self._endpoints], dtype=np.int64)
        ports = np.stack([end[messages.src], len(numbers) + end[messages.dst]], axis=1)
        return messages.payload_bytes / (routes.gb_per_s * 1e3), ports, 2 * len(numbers)

    def _busiest_us(self, sizes: Ints, routes: Routes) -> float:
        """The longest time of a directed link, for messages of these sizes."""
        load_bytes = np.bincount(routes.links, np.repeat(sizes, routes.hops))  # whole numbers: exact
        used = np.flatnonzero(load_bytes)
        return float((load_bytes[used] / (self._paths.link_gb_per_s[used] * 1e3)).max(initial=0.0))


def _arrivals(turns: _Turns) -> Arrivals:
    return Arrivals(turns.messages.round, turns.messages.dst, turns.times.arrival_us)


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
