"""The order of ranks that makes plans cheapest: which rank goes on which endpoint.

Plans treat neighbours in rank order as near, so good orders keep near endpoints together at every level. Candidates are
the given order; endpoints by host, by host and NUMA node, and by nested groups of the nearest; and within hosts the
orders in which partners at distance 1, 2, 4 have the best links (for cube meshes). Each is planned and the best is
kept, if it is better than the given one; for few ranks, exchanges of two ranks follow as long as they help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations

from topocomm.errors import PlanError
from topocomm.operators.builtin import SUM
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import collective_of
from topocomm.planning.plan import Objective, Plan
from topocomm.planning.planner import make_plan
from topocomm.planning.report.plan_comparison import figure_of
from topocomm.planning.request import Request, layout_of, place_ranks, port_model_of, whole_layout
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.inference.pci_tree import natural
from topocomm.topology.model import Topology

MOST_SWAPPED = 12
"""Largest rank count for which exchanges of two ranks are tried."""
MOST_PLANNED = 200
"""Orders planned in all while exchanging."""
MOST_PARTNERED = 8
"""Endpoints of a host up to which all orders of partners are compared."""
MOST_NESTED = 32
"""Endpoints of a host, or hosts, up to which they are joined by nearness."""
SAME = 1e-9
"""Relative difference of figures that sums in another order may have."""


@dataclass(frozen=True)
class Order:
    """Endpoints in the order of their ranks, with their plan, beside those of the given order.

    `rule` says how the order was made: "as given" where nothing is better.
    """

    ranks: tuple[str, ...]
    given: tuple[str, ...]
    rule: str
    plan: Plan
    before: Plan

    def gain(self) -> str:
        """Return the gain of the order, in one line."""
        a, b = figure_of(self.before, self.before.figures), figure_of(self.plan, self.plan.figures)
        unit = {"throughput": "GB/s", "rounds": "rounds"}.get(self.plan.objective, "us")
        what = f"{self.plan.collective.name} {self.plan.payload_bytes} B, objective {self.plan.objective}"
        if self.rule == "as given":
            return f"{what}: the given order is as good as any found, {a:.2f} {unit} ({self.before.algorithm})"
        better = b / a if self.plan.objective == "throughput" else a / b
        return (
            f"{what}: {a:.2f} -> {b:.2f} {unit}, {better:.2f}x better ({self.before.algorithm} -> "
            f"{self.plan.algorithm}); order {self.rule}"
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
    """Return the order of ranks on these endpoints whose best plan is cheapest: never worse than the given order.

    The arguments are those of `plan`; `ranks` is the present order. An operator that does not commute keeps the order
    of ranks, whatever that is.

    Raises:
        PlanError: As of `plan`, for the given order; or two ranks are on one endpoint.
    """
    given = place_ranks(topology, ranks)
    layout = layout_of(operator, payload_bytes)
    if len(set(given)) < len(given):
        raise PlanError("order: two ranks on one endpoint; expected each endpoint once")
    asked = collective_of(collective, len(given), layout.rows)
    request = Request(
        asked,
        operator,
        whole_layout(layout, asked),
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
    tried = {given}
    for rule, order in candidate_orders(topology, given):
        if order not in tried:
            tried.add(order)
            best = _better(best, order, rule, planned)
    return _exchanged(best, planned, tried) if len(given) <= MOST_SWAPPED else best


def candidate_orders(topology: Topology, given: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (rule, order): orders that keep near endpoints together, in a fixed sequence; some may be equal."""
    paths = PathFinder(topology)
    by_host = list(host_by_host(given, topology).values())
    ends = tuple(end for own in by_host for end in own)
    yield "host by host", ends
    number: dict[tuple[str, object], int] = {}
    node = {e: number.setdefault((topology.by_id[e].host, topology.by_id[e].numa), len(number)) for e in ends}
    yield "host by host, NUMA node by NUMA node", tuple(sorted(ends, key=node.__getitem__))
    yield "host by host, each host alike", tuple(end for own in by_host for end in sorted(own, key=natural))
    if 2 < len(by_host) <= MOST_NESTED:  # near hosts beside each other, by the routes between their first endpoints
        firsts = {own[0]: own for own in by_host}
        by_host = [firsts[first] for first in _nested(list(firsts), paths)]
    yield "host by host, nearest hosts together", tuple(end for own in by_host for end in own)
    within: list[tuple[str, int, Callable[[list[str], PathFinder], list[str]]]] = [
        ("nearest together", MOST_NESTED, _nested),
        ("best links at distances 1, 2, 4", MOST_PARTNERED, _partnered),
    ]
    for rule, most, arrange in within:
        if max(map(len, by_host)) <= most:
            yield f"host by host, {rule}", tuple(end for own in by_host for end in arrange(own, paths))


def host_by_host(ends: Iterable[str], topology: Topology) -> dict[str, list[str]]:
    """Return the endpoints by host, in order of first appearance."""
    hosts: dict[str, list[str]] = {}
    for end in ends:
        hosts.setdefault(topology.by_id[end].host, []).append(end)
    return hosts


def _better(best: Order, order: tuple[str, ...], rule: str, planned: Callable[[tuple[str, ...]], Plan]) -> Order:
    try:
        plan = planned(order)
    except PlanError:  # an order for which no algorithm has routes
        return best
    a, b = figure_of(plan, plan.figures), figure_of(best.plan, best.plan.figures)
    is_better = a > b * (1 + SAME) if plan.objective == "throughput" else a < b * (1 - SAME)
    return replace(best, ranks=order, rule=rule, plan=plan) if is_better else best


def _exchanged(best: Order, planned: Callable[[tuple[str, ...]], Plan], tried: set[tuple[str, ...]]) -> Order:
    """The order after exchanges of two ranks that help, within a fixed number of plans."""
    most, before = len(tried) + MOST_PLANNED, None
    suffix = "ranks exchanged while that helps"
    while best is not before:
        before = best
        for a, b in combinations(range(len(best.ranks)), 2):
            order = list(best.ranks)
            order[a], order[b] = order[b], order[a]
            if tuple(order) in tried or len(tried) >= most:
                continue
            tried.add(tuple(order))
            best = _better(best, tuple(order), best.rule, planned)
            if best is not before:
                rule = suffix if best.rule == "as given" else f"{best.rule.removesuffix(', ' + suffix)}, {suffix}"
                best = replace(best, rule=rule)
                break
    return best


def _closeness(a: str, b: str, paths: PathFinder) -> tuple[float, float]:
    """(latency, -GB/s) of the worse direction: smaller is nearer."""
    try:
        routes = (paths.cheapest(a, b), paths.cheapest(b, a))
    except PlanError:
        return (float("inf"), 0.0)
    return round(max(route.latency_us for route in routes), 9), -min(route.gb_per_s for route in routes)


def _nested(ends: Sequence[str], paths: PathFinder) -> list[str]:
    """The endpoints by single linkage: the two nearest groups are joined repeatedly, ties by the given order."""
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
    """The order whose partners at distance 1, 2, 4 ... have the least latency, then the widest links."""
    near = tuple(tuple(_closeness(a, b, paths) if a != b else (0.0, 0.0) for b in ends) for a in ends)
    return [ends[i] for i in _best_partners(near)]


@lru_cache(maxsize=64)
def _best_partners(near: tuple[tuple[tuple[float, float], ...], ...]) -> tuple[int, ...]:
    """The first of the best permutations that begin with 0; cached, since hosts alike ask for the same one."""
    index = range(len(near))
    steps = [step for step in (1, 2, 4) if step < len(near)]

    def cost(order: tuple[int, ...]) -> tuple[float, float]:
        pairs = [(order[i], order[i ^ step]) for step in steps for i in index if i < i ^ step < len(near)]
        worst = [max(near[order[i]][order[i ^ s]][0] for i in index if i ^ s < len(near)) for s in steps]
        return round(sum(worst), 9), sum(near[a][b][1] for a, b in pairs)

    return min(((0, *rest) for rest in permutations(index[1:])), key=cost)
