"""Search for the gossip of least time, or of fewest rounds, on a machine, with a proof where one is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.search.beam import beam_search, problem_of
from topocomm.planning.search.dissemination_bound import Bound, distances
from topocomm.planning.search.dissemination_bound import lower_bound as dissemination_lower_bound
from topocomm.planning.search.exact_latency import LatencySearch
from topocomm.planning.search.exact_rounds import OutOfNodesError, RoundsSearch
from topocomm.planning.search.gossip import SAME_US, Timed, assign_rounds, bit_rows, reversed_in_time, trim
from topocomm.planning.search.local_search import Machine, improve
from topocomm.planning.search.seeds import broadcast_tree, flood, patterns

Objective = Literal["latency", "rounds"]

EXACT_RANKS = 16
"""Most ranks for exact searches."""
NODES = 20_000
"""Most nodes of an exact search over times."""
ROUND_NODES = 100_000
"""Most nodes of an exact search over rounds, which cost less each."""
FEW_RANKS, FEW_NODES = 6, 100_000
"""Most ranks of a small machine, and most nodes there."""
GLANCE_RANKS, GLANCE_NODES = 8, 2_000
"""Most ranks for which a short exact search comes first, and its most nodes."""
PARTS, PART_NODES = 6, 5_000
"""Most kinds of ranks whose broadcast or reduce alone is searched for a proof; most nodes of each."""
WIDTHS = ((8, 200), (16, 150), (32, 80), (64, 48), (128, 16))
"""(most ranks, states that the beam keeps per round)."""
BEAMS = ((4, 8), (2, 4), (1, 2))
"""Beams after the first: divisor of the width, tables of noise."""
LARGE = 64
"""Above this number of ranks only the last of them runs."""
IMPROVED, MOVES = 4, 120_000
"""Gossips that the local search starts from; its moves from each, times the messages of the gossip."""
FEWEST_MOVES = 200
"""Least moves worth a local search."""
NEXT_US = 1e-6
"""Least improvement of a time in us."""


@dataclass(frozen=True)
class Found:
    """A gossip, its time, and a bound.

    Attributes:
        gossip: Rounds of (source, destination).
        time: The `alpha` time in us, or of objective `rounds` the number of rounds.
        bound: Lower bound of `time`.
        proved: Whether `time` is optimal in the model, for this kind of plan.
        argument: The proof, or the argument of the bound, in words.
        nodes: Nodes of exact searches.
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
    """Return the best gossip found in which every rank gets what it wants.

    The stages are closed forms, beam search, local search on the best, and up to 16 ranks exact search; the search ends
    when a bound is met. The same input gives the same gossip.

    Args:
        latency_us: float64 [n, n], source by destination; infinite where no route exists, 0 on the diagonal. Every
            rank has its own ports.
        wants: bool [n, n]: wants[a, b] where rank b needs the contribution of rank a.
        ports: Messages that a rank sends, and receives, at once.
        objective: `latency` for the `alpha` model, `rounds` for synchronous rounds.
        incumbent: A time (or number of rounds) that is reached already.
        lower_bound: A lower bound of the time (or number of rounds).

    Returns:
        The gossip; None when it is no better than the incumbent.

    Raises:
        PlanError: A wanted contribution has no route, a message takes no time, or the arrays do not fit.
    """
    task = _Task(_routes(latency_us, wants, ports, objective), wants, ports, objective)
    bound = dissemination_lower_bound(task.latency_us, wants, ports)
    if lower_bound is not None and lower_bound > bound.time_us + SAME_US:
        bound = Bound(lower_bound, "the bound given")
    limit = inf if incumbent is None else incumbent
    if limit <= bound.time_us + SAME_US:
        return None
    best = _search(task, bound)
    return best if best.time < limit - SAME_US else None


def _search(task: _Task, bound: Bound) -> Found:
    if task.root is not None or task.asked.any(axis=0).sum() != 1:
        return _Search(task, bound).ended()
    # All to one rank: the best broadcast from it on the reversed machine, backwards in time.
    back = _Task(task.latency_us.T, task.wants.T, task.machine.ports, task.objective)
    result = _search(back, bound)
    run = back.machine.run(result.gossip)
    gossip = _few_rounds(task, reversed_in_time(run.sent, run.time_us))
    return replace(result, gossip=gossip, time=task.machine.run(gossip).time_us)


class _Task:
    """The search problem; of objective `rounds` every latency is 1.

    Attributes:
        away_us: Latencies with relays.
        asked: `wants` without what ranks want of themselves.
        root: The only rank whose contribution is wanted elsewhere; None where there are several or none.
    """

    def __init__(
        self, latency_us: NDArray[np.float64], wants: NDArray[np.bool_], ports: int, objective: Objective
    ) -> None:
        self.latency_us, self.wants, self.objective = latency_us, wants, objective
        self.away_us = distances(latency_us)
        self.machine = Machine(latency_us.tolist(), bit_rows(wants.T), ports)
        self.asked = wants & ~np.eye(len(wants), dtype=bool)
        roots = self.asked.any(axis=1)
        self.root = int(roots.argmax()) if roots.sum() == 1 else None


def _routes(
    latency_us: NDArray[np.float64], wants: NDArray[np.bool_], ports: int, objective: Objective
) -> NDArray[np.float64]:
    """Return the latencies that the search uses, after checks of its arguments."""
    count = len(wants)
    if latency_us.shape != (count, count) or wants.shape != (count, count) or ports < 1 or not count:
        raise PlanError(
            f"gossip of latencies {latency_us.shape} and wants {wants.shape} with {ports} ports: expected two square "
            "tables of one size and at least 1 port"
        )
    routes = np.where(np.isfinite(latency_us), 1.0 if objective == "rounds" else latency_us, inf)
    np.fill_diagonal(routes, 0.0)
    free = np.argwhere((routes <= 0) & ~np.eye(count, dtype=bool)).tolist()
    if free:
        a, b = free[0]
        raise PlanError(f"a message from rank {a} to rank {b} takes {routes[a, b]:g} us: expected more than 0")
    cut = np.argwhere(wants & ~np.isfinite(distances(routes))).tolist()
    if cut:
        a, b = cut[0]
        raise PlanError(
            f"rank {b} needs the contribution of rank {a}, and no route leads there, with relays or without"
        )
    return routes


class _Search:
    """The best gossip so far, and the proof of it once there is one."""

    def __init__(self, task: _Task, bound: Bound) -> None:
        self._task, self._bound = task, bound
        self._best: Gossip = ()
        self._time_us = task.machine.run(()).time_us
        self._seeds: list[tuple[float, Gossip]] = []
        self._reason: str | None = None
        self._nodes = 0

    def ended(self) -> Found:
        """Run the stages until the best gossip is proved, and return it."""
        first: list[Callable[[], None]] = [self._patterns, partial(self._beam, 4, 2, 0)]
        wide = enumerate(BEAMS if len(self._task.wants) <= LARGE else BEAMS[-1:], 1)
        last: list[Callable[[], None]] = [partial(self._beam, *beam, turn) for turn, beam in wide]
        last.append(self._local_search)
        if self._task.objective == "rounds":
            first.append(self._exact_rounds)
        else:
            first.append(self._trees)
            if len(self._task.wants) <= GLANCE_RANKS:
                first.append(partial(self._exact_latency, GLANCE_NODES))
            last.append(self._exact_latency)
        for stage in (*first, *last):
            stage()
            if self._time_us <= self._bound.time_us + SAME_US:
                self._reason = self._bound.argument
            if self._reason is not None:
                break
        proved = self._reason is not None
        bound_us = self._time_us if proved else self._bound.time_us
        gossip = _few_rounds(self._task, self._best)
        return Found(gossip, self._time_us, bound_us, proved, self._reason or self._bound.argument, self._nodes)

    def _offer(self, gossip: Gossip) -> None:
        time_us = self._task.machine.run(gossip).time_us
        self._seeds.append((time_us, gossip))
        if time_us < self._time_us - SAME_US:
            self._best, self._time_us = gossip, time_us

    def _patterns(self) -> None:
        task = self._task
        if task.root is not None:
            routes = np.where(np.eye(len(task.wants), dtype=bool), inf, task.latency_us)
            self._offer(assign_rounds(broadcast_tree(range(len(routes)), routes, task.root, task.machine.ports)))
        for gossip in patterns(task.away_us, task.latency_us, task.machine.ports):
            if self._time_us <= self._bound.time_us + SAME_US:
                break
            self._offer(gossip)
        if self._time_us == inf:
            self._offer(flood(task.latency_us, task.machine.ports))

    def _beam(self, share: int, variants: int, turn: int) -> None:
        task = self._task
        problem = problem_of(task.latency_us, task.wants, task.machine.ports)
        width = next((width for ranks, width in WIDTHS if len(task.wants) <= ranks), 4)
        width = max(4, width // share)
        for _, gossip in beam_search(problem, width=width, variants=variants, below_us=self._time_us, turn=turn):
            self._offer(gossip)

    def _local_search(self) -> None:
        self._seeds.sort(key=lambda seed: seed[0])
        for number, (_, gossip) in enumerate(self._seeds[:IMPROVED]):
            moves = MOVES // max(20, sum(map(len, gossip)))
            if moves < FEWEST_MOVES:
                continue
            enough_us = self._bound.time_us
            self._offer(improve(self._task.machine, gossip, moves=moves, enough_us=enough_us, seed=number + 1))

    def _trees(self) -> None:
        """Look for a proof: one rank alone cannot reach all, or hear of all, sooner."""
        task, count = self._task, len(self._task.wants)
        if task.root is not None or count > EXACT_RANKS:
            return
        tried: set[tuple[float, ...]] = set()
        for latency_us, wants, what in (
            (task.latency_us, task.wants, "reach"),
            (task.latency_us.T, task.wants.T, "hear of"),
        ):
            routes = np.where(np.eye(count, dtype=bool), inf, latency_us)
            for rank in range(count):
                signature = (*np.sort(latency_us[rank]).tolist(), *np.sort(latency_us[:, rank]).tolist())
                signature = (*signature, float(what == "reach"))
                tree = broadcast_tree(range(count), routes, rank, task.machine.ports)
                slow = max((message.arrival_us for message in tree), default=0.0) >= self._time_us - SAME_US
                if signature in tried or not slow or len(tried) == PARTS:
                    continue
                tried.add(signature)
                if self._is_optimal_alone(latency_us, wants, rank):
                    others = int(wants[rank].sum()) - int(wants[rank, rank])
                    self._reason = f"rank {rank} cannot {what} {others} ranks in less than {self._time_us:g}"
                    return

    def _is_optimal_alone(self, latency_us: NDArray[np.float64], wants: NDArray[np.bool_], rank: int) -> bool:
        """Whether an exact search excludes that the contribution of one rank is everywhere sooner."""
        part = np.zeros_like(wants)
        part[rank] = wants[rank]
        machine = Machine(latency_us.tolist(), bit_rows(part.T), self._task.machine.ports)
        search = LatencySearch(machine, distances(latency_us), PART_NODES)
        try:
            return search.find(self._time_us - NEXT_US) is None
        except OutOfNodesError:
            return False
        finally:
            self._nodes += PART_NODES - max(search.nodes, 0)

    def _exact_latency(self, nodes: int | None = None) -> None:
        if len(self._task.wants) > EXACT_RANKS:
            return

        def faster(messages: list[Timed]) -> bool:  # in rounds the messages may have other loads
            before_us = self._time_us
            self._offer(assign_rounds(messages))
            return self._time_us < before_us - SAME_US

        most = nodes or (FEW_NODES if len(self._task.wants) <= FEW_RANKS else NODES)
        search = LatencySearch(self._task.machine, self._task.away_us, most, faster)
        self._exhaust(search, most, lambda: search.find(self._time_us - NEXT_US) is None)

    def _exact_rounds(self) -> None:
        machine = self._task.machine
        if len(machine.wanted) > EXACT_RANKS:
            return
        search = RoundsSearch(machine.sources, machine.wanted, machine.ports, ROUND_NODES)

        def is_excluded() -> bool:
            gossip = search.find(round(self._time_us) - 1)
            if gossip is not None:
                self._offer(gossip)
            return gossip is None

        self._exhaust(search, ROUND_NODES, is_excluded)

    def _exhaust(self, search: LatencySearch | RoundsSearch, nodes: int, is_excluded: Callable[[], bool]) -> None:
        """Search until a better gossip is excluded, the bound is met, or all `nodes` are used."""
        ended = False
        try:
            while not ended and self._time_us > self._bound.time_us + SAME_US:
                ended = is_excluded()
        except OutOfNodesError:
            ended = False
        self._nodes += nodes - max(search.nodes, 0)
        if ended and not search.refused:
            self._reason = f"an exact search found nothing below {self._time_us:g} ({self._nodes} nodes)"


def _few_rounds(task: _Task, gossip: Gossip) -> Gossip:
    """Return the same messages in few rounds; of objective `rounds`, those that start together share one."""
    machine = task.machine
    if task.objective == "latency":
        return trim(gossip, machine.latency_us, machine.wanted, machine.ports)
    sent = sorted(machine.run(gossip).sent, key=lambda message: message.start_us)
    return tuple(
        tuple((message.src, message.dst) for message in group)
        for _, group in groupby(sent, key=lambda message: round(message.start_us))
    )
