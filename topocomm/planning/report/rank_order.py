"""The order of ranks that makes plans cheapest: which rank goes on which endpoint.

Plans treat neighbours in rank order as near: trees join them first, and cut the ranks where the way from one to the
next becomes longer (`levels.py`). So good orders keep what is near together at every level. Candidates are the
order as given; endpoints by host, by host and NUMA node, and by nested groups of the nearest; and within hosts those
orders in which partners at distance 1, 2, 4 have the best links (for cube meshes). Each is planned, and the best is
kept; few ranks are improved further by exchanging two of them, as long as that helps. An order that only equals the
given one does not replace it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations

from topocomm.errors import PlanError
from topocomm.operators.builtin import SUM
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import collective_of
from topocomm.planning.payload import layout_of
from topocomm.planning.plan import Objective, Plan
from topocomm.planning.planner import make_plan
from topocomm.planning.report.plan_comparison import figure_of
from topocomm.planning.request import Request, place_ranks, port_model_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.model import Topology

MOST_SWAPPED = 12
"""Up to this many ranks, exchanges of two are tried."""
MOST_PLANNED = 200
"""Orders that are planned in all while exchanging."""
MOST_PARTNERED = 8
"""Up to this many endpoints of a host, all orders of partners are looked at."""
MOST_NESTED = 32
"""Up to this many endpoints of a host, or hosts, are joined by nearness."""
SAME = 1e-9


@dataclass(frozen=True)
class Order:
    """An order of ranks and what it gains.

    Attributes:
        ranks: Endpoint id of every rank.
        given: The same before.
        way: How it was found; "as given" where nothing is better.
        plan: The plan of the new order.
        before: The plan of the given order.
    """

    ranks: tuple[str, ...]
    given: tuple[str, ...]
    way: str
    plan: Plan
    before: Plan

    def gain(self) -> str:
        """What the order gains, in one line."""
        a, b = figure_of(self.before, self.before.figures), figure_of(self.plan, self.plan.figures)
        unit = {"throughput": "GB/s", "rounds": "rounds"}.get(self.plan.objective, "us")
        what = f"{self.plan.collective.name} {self.plan.payload_bytes} B, objective {self.plan.objective}"
        if self.way == "as given":
            return f"{what}: the given order is as good as any found, {a:.2f} {unit} ({self.before.algorithm})"
        better = b / a if self.plan.objective == "throughput" else a / b
        return (
            f"{what}: {a:.2f} -> {b:.2f} {unit}, {better:.2f}x better ({self.before.algorithm} -> "
            f"{self.plan.algorithm}); order {self.way}"
        )


def best_order(
    topology: Topology,
    collective: str = "allreduce",
    *,
    payload_bytes: int = 0,
    operator: Operator = SUM,
    objective: Objective = "latency",
    ranks: Sequence[str] | None = None,
) -> Order:
    """The order of ranks on these endpoints for which the best plan is cheapest.

    Never worse than the given order; equal inputs give equal orders.

    Args:
        topology: The machine.
        collective: What is planned.
        payload_bytes: As of `plan`.
        operator: As of `plan`; one that does not commute keeps the order of ranks, whatever that is.
        objective: What the plans minimise.
        ranks: Endpoint id of every rank in the present order; None: the endpoints in the order of the file.

    Raises:
        PlanError: As of `plan`, for the given order; or two ranks are on one endpoint.
    """
    given = place_ranks(topology, ranks)
    layout = layout_of(operator, payload_bytes)
    if len(set(given)) < len(given):
        raise PlanError("order: two ranks on one endpoint; expected each endpoint once")

    request = Request(
        collective_of(collective, len(given), layout.rows),
        operator,
        layout,
        given,
        objective,
        1,
        port_model_of(objective),
        launch_us=topology.launch_us or 0.0,
        native=True,
    )

    def planned(order: tuple[str, ...]) -> Plan:
        return make_plan(topology, replace(request, endpoints=order))

    before = planned(given)
    best = Order(given, given, "as given", before, before)
    seen = {given}
    for way, order in candidate_orders(topology, given):
        if order not in seen:
            seen.add(order)
            best = _better(best, order, way, planned)
    return _exchanged(best, planned, seen) if len(given) <= MOST_SWAPPED else best


def candidate_orders(topology: Topology, given: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(how, order): orders that keep near endpoints together, in a fixed sequence; some may be equal."""
    paths = PathFinder(topology)
    by_host = _by(given, lambda end: topology.by_id[end].host)
    yield "host by host", tuple(end for ends in by_host for end in ends)
    by_numa = [_by(ends, lambda end: str(topology.by_id[end].numa)) for ends in by_host]
    yield "host by host, NUMA node by NUMA node", tuple(end for host in by_numa for numa in host for end in numa)
    yield "host by host, each host alike", tuple(end for ends in by_host for end in sorted(ends, key=_natural))
    by_host = _near_hosts(by_host, paths)
    yield "host by host, nearest hosts together", tuple(end for ends in by_host for end in ends)
    within: list[tuple[str, int, Callable[[list[str], PathFinder], list[str]]]] = [
        ("nearest together", MOST_NESTED, _nested),
        ("best links at distances 1, 2, 4", MOST_PARTNERED, _partnered),
    ]
    for how, most, arrange in within:
        if max(len(ends) for ends in by_host) <= most:
            arranged = [arrange(ends, paths) for ends in by_host]
            yield f"host by host, {how}", tuple(end for ends in arranged for end in ends)


def _near_hosts(by_host: list[list[str]], paths: PathFinder) -> list[list[str]]:
    """The hosts with near ones beside each other, by the way between their first endpoints."""
    if not 2 < len(by_host) <= MOST_NESTED:
        return by_host
    own = {ends[0]: ends for ends in by_host}
    return [own[first] for first in _nested(list(own), paths)]


def _better(best: Order, order: tuple[str, ...], way: str, planned: Callable[[tuple[str, ...]], Plan]) -> Order:
    try:
        found = planned(order)
    except PlanError:  # an order for which no algorithm has routes
        return best
    return replace(best, ranks=order, way=way, plan=found) if _is_better(found, best.plan) else best


def _is_better(found: Plan, known: Plan) -> bool:
    """Whether a plan is cheaper by more than what sums in another order may differ by."""
    a, b = figure_of(found, found.figures), figure_of(known, known.figures)
    return a > b * (1 + SAME) if found.objective == "throughput" else a < b * (1 - SAME)


def _exchanged(best: Order, planned: Callable[[tuple[str, ...]], Plan], seen: set[tuple[str, ...]]) -> Order:
    """Exchanges of two ranks while one helps, at most a fixed number of plans."""
    left = MOST_PLANNED
    improved = True
    while improved and left > 0:
        improved = False
        for a, b in combinations(range(len(best.ranks)), 2):
            order = list(best.ranks)
            order[a], order[b] = order[b], order[a]
            if tuple(order) in seen or left <= 0:
                continue
            seen.add(tuple(order))
            left -= 1
            after = _better(best, tuple(order), best.way, planned)
            if after is not best:
                exchanged = "ranks exchanged while that helps"
                way = exchanged if best.way == "as given" else f"{best.way.removesuffix(', ' + exchanged)}, {exchanged}"
                best, improved = replace(after, way=way), True
                break
    return best


def _by(ends: Sequence[str], key: Callable[[str], str]) -> list[list[str]]:
    """The endpoints in groups of one key, in order of first appearance."""
    groups: dict[str, list[str]] = {}
    for end in ends:
        groups.setdefault(key(end), []).append(end)
    return list(groups.values())


def _natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Numbers in a name by value: GPU2 before GPU10."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part)


def _closeness(a: str, b: str, paths: PathFinder) -> tuple[float, float]:
    """(latency, -GB/s) of the worse direction: smaller is nearer."""
    try:
        ways = (paths.cheapest(a, b), paths.cheapest(b, a))
    except PlanError:
        return (float("inf"), 0.0)
    return round(max(way.latency_us for way in ways), 9), -min(way.gb_per_s for way in ways)


def _nested(ends: Sequence[str], paths: PathFinder) -> list[str]:
    """Joins the two nearest groups again and again: single linkage, ties by the given order."""
    groups = [[end] for end in ends]
    near = {(a, b): _closeness(a, b, paths) for a, b in combinations(ends, 2)}

    def apart(first: list[str], second: list[str]) -> tuple[int, tuple[float, float]]:
        links = [near.get((a, b)) or near[b, a] for a in first for b in second]
        return max(len(first), len(second)), min(links)

    while len(groups) > 1:
        pairs = combinations(range(len(groups)), 2)
        low, high = min(pairs, key=lambda pair: (*apart(groups[pair[0]], groups[pair[1]]), pair))
        groups[low] += groups.pop(high)
    return groups[0]


def _partnered(ends: Sequence[str], paths: PathFinder) -> list[str]:
    """The order whose partners at distance 1, 2, 4 ... have the least latency, then the widest links.

    All orders that begin with the first endpoint are looked at, and the first of the best is taken.
    """
    near = tuple(tuple(_closeness(a, b, paths) if a != b else (0.0, 0.0) for b in ends) for a in ends)
    return [ends[i] for i in _best_partners(near)]


@lru_cache(maxsize=64)
def _best_partners(near: tuple[tuple[tuple[float, float], ...], ...]) -> tuple[int, ...]:
    """The order by its numbers; hosts alike ask for the same one."""
    index = range(len(near))
    steps = [step for step in (1, 2, 4) if step < len(near)]

    def cost(order: tuple[int, ...]) -> tuple[float, float]:
        pairs = [(order[i], order[i ^ step]) for step in steps for i in index if i < i ^ step < len(near)]
        worst = [max(near[order[i]][order[i ^ s]][0] for i in index if i ^ s < len(near)) for s in steps]
        return round(sum(worst), 9), sum(near[a][b][1] for a, b in pairs)

    return min(((0, *rest) for rest in permutations(index[1:])), key=cost)
