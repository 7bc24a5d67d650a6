"""The gossip of least time, or of fewest rounds, that can be found on a machine, and whether none is better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.planning.search.beam import beam_search, problem_of
from topocomm.planning.search.exact_latency import LatencySearch
from topocomm.planning.search.exact_rounds import OutOfNodesError, RoundsSearch
from topocomm.planning.search.gossip import SAME_US, Gossip, bit_rows, labelled, reversed_in_time, trimmed
from topocomm.planning.search.growth import Bound, distances
from topocomm.planning.search.growth import lower_bound as growth_bound
from topocomm.planning.search.patterns import patterns
from topocomm.planning.search.polish import Machine, polished
from topocomm.planning.search.trees import broadcast_tree

Objective = Literal["latency", "rounds"]

EXACT_RANKS = 16
"""Up to so many ranks the search tries to end with a proof."""
NODES = 30_000
"""Choices that an exact search looks at before it leaves the question open."""
WIDTHS = ((8, 200), (16, 150), (32, 80), (64, 24), (128, 8))
"""States that the beam keeps per round, by number of ranks."""
MOVES = 60_000
"""Moves of the local search, times messages."""


@dataclass(frozen=True)
class Found:
    """A gossip and what is known of it.

    Attributes:
        gossip: Rounds of (source, destination).
        time: Of objective `latency` the `alpha` time in us, of `rounds` the number of rounds.
        bound: Nothing is below it.
        proved: Whether nothing is below `time`, in the model, for this kind of plan.
        argument: Why, in words; what the bound is where nothing is proved.
        nodes: Choices that exact searches looked at.
    """

    gossip: Gossip
    time: float
    bound: float
    proved: bool
    argument: str
    nodes: int = 0


def search_gossip(
    latency_us: NDArray[np.float64],
    wants: NDArray[np.bool_],
    *,
    ports: int,
    objective: Objective,
    incumbent: float | None = None,
    lower_bound: float | None = None,
) -> Found | None:
    """Who tells whom when, so that every rank gets what it wants as early as can be.

    Patterns, then beam search, then local search on the best, then exact search up to 16 ranks; it ends as soon as a
    bound is met. The same input gives the same gossip.

    Args:
        latency_us: float64 [n, n], source by destination; infinite where no route exists, 0 on the diagonal. Every
            rank has its own ports.
        wants: bool [n, n]: wants[a, b] says that rank b needs the contribution of rank a.
        ports: Messages that a rank sends, and receives, at once.
        objective: `latency` for the `alpha` model, `rounds` for synchronous rounds.
        incumbent: A time (or number of rounds) that is known already.
        lower_bound: A time (or number of rounds) that nothing is below, known to the caller.

    Returns:
        What was found; None when that is no better than the incumbent.

    Raises:
        PlanError: Some wanted contribution has no way, or the arrays do not fit.
    """
    task = _task(latency_us, wants, ports, objective)
    bound = task.bound
    if lower_bound is not None and lower_bound > bound.time_us + SAME_US:
        bound = Bound(lower_bound, "the bound given")
    limit = inf if incumbent is None else incumbent
    if limit <= bound.time_us + SAME_US:
        return None
    found = _solved(task, bound)
    return found if found.time < limit - SAME_US else None


def _solved(task: _Task, bound: Bound) -> Found:
    if not task.to_one:
        return _proved(task, _best(task, bound), bound)
    # All to one rank: the best broadcast from it on the reversed machine, backwards.
    back = _parts(task.latency_us.T, task.wants.T, task.machine.ports, task.objective)
    found = _solved(back, bound)
    run = back.machine.run(found.gossip)
    gossip = reversed_in_time(run.sent, run.time_us)
    return replace(found, gossip=_tidy(task, gossip), time=task.machine.run(gossip).time_us)


@dataclass(frozen=True)
class _Task:
    """The search in the terms of its parts: of objective `rounds` every latency is 1."""

    latency_us: NDArray[np.float64]
    away_us: NDArray[np.float64]
    wants: NDArray[np.bool_]
    machine: Machine
    bound: Bound
    objective: Objective

    @property
    def root(self) -> int | None:
        """The one rank whose contribution is wanted elsewhere, if it is one."""
        asked = (self.wants & ~np.eye(len(self.wants), dtype=bool)).any(axis=1)
        return int(asked.argmax()) if asked.sum() == 1 else None

    @property
    def to_one(self) -> bool:
        """Whether one rank only wants something of others, and of more than one."""
        asked = self.wants & ~np.eye(len(self.wants), dtype=bool)
        return int(asked.any(axis=0).sum()) == 1 and self.root is None


def _task(latency_us: NDArray[np.float64], wants: NDArray[np.bool_], ports: int, objective: Objective) -> _Task:
    count = len(wants)
    if latency_us.shape != (count, count) or wants.shape != (count, count) or ports < 1 or not count:
        raise PlanError(
            f"gossip of latencies {latency_us.shape} and wants {wants.shape} with {ports} ports: expected two square "
            "tables of one size and at least 1 port"
        )
    routes = np.where(np.isfinite(latency_us), 1.0 if objective == "rounds" else latency_us, inf)
    np.fill_diagonal(routes, 0.0)
    away_us = distances(routes)
    cut = np.argwhere(wants & ~np.isfinite(away_us)).tolist()
    if cut:
        a, b = cut[0]
        raise PlanError(
            f"rank {b} needs the contribution of rank {a}, and no route leads there, with relays or without"
        )
    return _parts(routes, wants, ports, objective)


def _parts(routes: NDArray[np.float64], wants: NDArray[np.bool_], ports: int, objective: Objective) -> _Task:
    machine = Machine(routes.tolist(), bit_rows(wants.T), ports)
    return _Task(routes, distances(routes), wants, machine, growth_bound(routes, wants, ports), objective)


def _best(task: _Task, bound: Bound) -> Gossip:
    """The best gossip of all that is tried, or the first that meets the bound."""
    best: Gossip = ()
    best_us = task.machine.run(best).time_us
    for gossip in _tries(task, bound):
        time_us = task.machine.run(gossip).time_us
        if time_us < best_us - SAME_US:
            best, best_us = gossip, time_us
        if best_us <= bound.time_us + SAME_US:
            break
    return best


def _tries(task: _Task, bound: Bound) -> Iterator[Gossip]:
    """Gossips worth a look, the cheap ones first."""
    machine = task.machine
    if task.root is not None:
        count = len(task.wants)
        routes = np.where(np.eye(count, dtype=bool), inf, task.latency_us)
        yield labelled(broadcast_tree(range(count), routes, task.root, machine.ports))
    seeds: list[tuple[float, Gossip]] = []
    for gossip in patterns(task.away_us, task.latency_us, machine.ports):
        seeds.append((machine.run(gossip).time_us, gossip))
        yield gossip
    problem = problem_of(task.latency_us, task.wants, machine.ports)
    below_us = min((time_us for time_us, _ in seeds), default=inf)
    width = next((width for ranks, width in WIDTHS if len(task.wants) <= ranks), 4)
    for share, variants in ((4, 2), (1, 8)):
        for time_us, gossip in beam_search(problem, width=max(4, width // share), variants=variants, below_us=below_us):
            seeds.append((machine.run(gossip).time_us, gossip))
            below_us = min(below_us, time_us)
            yield gossip
    seeds.sort(key=lambda seed: seed[0])
    for seed, (_, gossip) in enumerate(seeds[:3]):
        moves = MOVES // max(20, sum(map(len, gossip)))
        yield polished(machine, gossip, moves=moves, enough_us=bound.time_us, seed=seed + 1)


def _proved(task: _Task, best: Gossip, bound: Bound) -> Found:
    """The best gossip, tidy, after an exact search where the bound is not met and the ranks are few."""
    machine = task.machine
    time_us = machine.run(best).time_us
    argument, proved, nodes = bound.argument, time_us <= bound.time_us + SAME_US, 0
    if not proved and len(task.wants) <= EXACT_RANKS:
        best, proved, nodes = _exact(task, best, time_us, bound.time_us)
        time_us = machine.run(best).time_us
        if proved and time_us > bound.time_us + SAME_US:
            argument = f"an exact search found nothing below {time_us:g} ({nodes} nodes)"
    best = _tidy(task, best)
    return Found(best, time_us, time_us if proved else bound.time_us, proved, argument, nodes)


def _tidy(task: _Task, gossip: Gossip) -> Gossip:
    """The same messages in few rounds: of objective `rounds` those that start together share one."""
    machine = task.machine
    if task.objective == "latency":
        return trimmed(gossip, machine.latency_us, machine.wanted, machine.ports)
    sent = sorted(machine.run(gossip).sent, key=lambda message: message.start_us)
    return tuple(
        tuple((message.src, message.dst) for message in group)
        for _, group in groupby(sent, key=lambda message: round(message.start_us))
    )


def _exact(task: _Task, best: Gossip, time_us: float, bound_us: float) -> tuple[Gossip, bool, int]:
    """(best gossip, whether nothing is better, nodes)."""
    machine = task.machine
    if task.objective == "latency":
        search = LatencySearch(machine, task.away_us, NODES)
        return search.improved(best, time_us, bound_us)
    rounds = RoundsSearch(machine.sources, machine.wanted, machine.ports, NODES)
    try:
        for fewer in range(round(time_us) - 1, round(bound_us) - 1, -1):
            found = rounds.find(fewer)
            if found is None:
                break
            best = found
    except OutOfNodesError:
        return best, False, NODES
    return best, True, NODES - rounds.nodes
