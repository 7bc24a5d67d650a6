"""Time of a schedule without shared links: one pass over the messages in the order in which their ports serve them.

The rules of ports are in docs/concepts/cost-models.md: K places to send at the source endpoint, K to receive at the
destination's, and under loggp one at every NIC of the route.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.cost.messages import Messages
from topocomm.planning.cost.port_turns import TurnColumns, follow
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints, Routes
from topocomm.planning.schedule.place_numbers import PlaceNumbers
from topocomm.planning.schedule.schedule import Schedule, spans

PortModel = Literal["alpha", "loggp"]


@dataclass(frozen=True)
class PortRules:
    """Messages that an endpoint sends, and receives, at once; and the port model."""

    ports: int
    port_model: PortModel

    @property
    def loggp(self) -> bool:
        """Whether the port model is loggp, else alpha."""
        return self.port_model == "loggp"


def ports_of(
    messages: Messages, routes: Routes, endpoints: Sequence[str], paths: PathFinder, rules: PortRules
) -> tuple[Ints, Ints, int]:
    """Return the ports of every message: of its source, of its destination, under loggp of the NICs on its route.

    These are (start of the ports of each message and the end, the ports of all, number of ports of endpoints, to send
    and then to receive; NICs follow).
    """
    numbers: dict[str, int] = {}
    end = np.array([numbers.setdefault(name, len(numbers)) for name in endpoints], dtype=np.int64)
    nics = paths.link_nics[routes.links] if rules.loggp else np.full(len(routes.links), -1)
    of = np.repeat(np.arange(len(messages)), routes.hops)[nics >= 0]
    behind = np.bincount(of, minlength=len(messages))
    starts, _ = spans(np.zeros_like(behind), behind + 2)
    ports = np.empty(starts[-1], dtype=np.int64)
    ports[starts[:-1]], ports[starts[:-1] + 1] = end[messages.src], len(numbers) + end[messages.dst]
    ports[starts[of] + 2 + spans(np.zeros_like(behind), behind)[1]] = 2 * len(numbers) + nics[nics >= 0]
    return starts, ports, 2 * len(numbers)


@dataclass(frozen=True, eq=False)
class TurnTimes:
    """Times of messages that start as their slots and ports allow.

    Attributes:
        total_us: Time of the last output.
        start_us: float64 [messages].
        arrival_us: float64 [messages].
    """

    total_us: float
    start_us: Floats
    arrival_us: Floats


def turn_times(
    schedule: Schedule,
    places: PlaceNumbers,
    messages: Messages,
    routes: Routes,
    endpoints: Sequence[str],
    paths: PathFinder,
    rules: PortRules,
    *,
    busy_us: Floats | None = None,
    bytes_us: Floats | None = None,
) -> TurnTimes:
    """Return the times of a verified schedule without `repeat`, without bytes.

    With `bytes_us`, what the bytes of every message take on its route alone, they are the times with bytes if no link
    were shared, the least that the events of the schedule can take. With `busy_us`, of every round the time of its
    busiest link or port, they are those of rounds with bytes, one after the other: the latency of a message passes
    while later rounds run that do not wait for it.
    """
    rounds = np.arange(schedule.rounds + 1)
    moves, folds = (np.searchsorted(table[:, 0], rounds) for table in (schedule.transfers, schedule.combines))
    takes_us = routes.latency_us if bytes_us is None else routes.latency_us + bytes_us
    if busy_us is None:
        ports = _ports(messages, routes, endpoints, paths, rules, bytes_us)
    else:
        ports = np.zeros(len(messages) + 1, dtype=np.int64), _NONE, np.zeros(0), np.zeros((0, 1))
    starts, held, holds_us, free_us = ports
    columns = TurnColumns(
        _whole(moves),
        _whole(folds),
        _whole(np.searchsorted(messages.round, rounds)),
        messages.of_transfer,
        places.sent,
        places.received,
        starts,
        held,
        places.folded,
        _whole(schedule.operand_starts),
        places.operands,
        np.ascontiguousarray(holds_us),
        np.ascontiguousarray(takes_us),
        np.zeros(0) if busy_us is None else busy_us,
        free_us,
        ready_us=np.zeros(places.count),
        start_us=np.zeros(len(messages)),
        arrival_us=np.zeros(len(messages)),
    )
    follow(columns)
    total_us = float(columns.ready_us[places.outputs].max(initial=0.0))
    return TurnTimes(total_us, columns.start_us, columns.arrival_us)


def _whole(column: NDArray[np.integer]) -> Ints:
    return np.ascontiguousarray(column, dtype=np.int64)


def _ports(
    messages: Messages,
    routes: Routes,
    endpoints: Sequence[str],
    paths: PathFinder,
    rules: PortRules,
    bytes_us: Floats | None,
) -> tuple[Ints, Ints, Floats, Floats]:
    """(starts and ports of `ports_of`, how long each is held, when each place of each port is free at first).

    With bytes ports of endpoints are held until the last has left.
    """
    starts, held, ends = ports_of(messages, routes, endpoints, paths, rules)
    holds_us = np.repeat(routes.gap_us if rules.loggp else routes.latency_us, np.diff(starts))
    if bytes_us is not None:
        holds_us[starts[:-1]] += bytes_us
        holds_us[starts[:-1] + 1] += bytes_us
    free_us = np.zeros((int(held.max(initial=ends - 1)) + 1, rules.ports))
    free_us[ends:, 1:] = np.inf  # a NIC has one place
    return starts, held, holds_us, free_us


_NONE: Ints = np.zeros(0, dtype=np.int64)
