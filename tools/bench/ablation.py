"""Ablation of the planner: what plans lose without each of its passes.

    python tools/bench/ablation.py [--tables forests,rails,search] [--most-ranks 32] [--minutes M]

Every case is planned whole, then once without each pass that the whole plan used; nothing is cached in between. A pass
is switched off by putting something simpler in its place here: the planner has no option for it. "used" counts cases
that ran the pass, "other" those whose figures differ without it. "of bound" is the mean share of the bound over the
cases that ran it, with and without it; "worst" is what is left, without it, of the share that the case has with it.
"us" is the greatest ratio of predicted times, without over with. "cpu" is the sum of seconds of processors, without
over with: the same machine in turns.

Random graphs are those of tests/data/forest_optima.json, of 4 to 8 GPUs; their bound is the optimum of the joint
linear program. Cases come in an order of chance, the same every time: a table that ends early has a fair sample.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from math import inf
from statistics import mean
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from plan_tables.fresh import timed
from plan_tables.machines import Machine
from plan_tables.random_graphs import OPTIMA
from plan_tables.random_graphs import machine as random_machine

from topocomm import SUM, PlanError, Topology
from topocomm.command_parser import CommandParser
from topocomm.planning import planner
from topocomm.planning.algorithms.hosts import rail_assignment, rails
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import COLLECTIVES, collective_of
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.forests import forest, pruning
from topocomm.planning.forests.linear_program.packing import repack
from topocomm.planning.forests.tree_schedule import STAGGER_ROUNDS
from topocomm.planning.forests.units import bounded_tree_count
from topocomm.planning.plan import Objective
from topocomm.planning.request import Request
from topocomm.planning.routing import hierarchy, paths
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.transforms import most_slices, sliced
from topocomm.planning.search import gossip_search
from topocomm.planning.shared_results import SharedResults
from topocomm.topology.catalog.systems import SYSTEMS

ROWS, SLICES = 1 << 20, 16
"""Payload of packed trees in rows of 4 bytes, and its number of slices."""
SAME = 1e-6
"""Relative difference below which figures count as equal."""


class Case(NamedTuple):
    """A machine, its request, and the optimum if known."""

    name: str
    topology: Topology
    collective: str
    objective: Objective = "throughput"
    max_trees: int | None = None
    optimum: float | None = None


class Figures(NamedTuple):
    """Figures of a plan; trees and height are 0 for plans without trees."""

    of_bound: float
    us: float
    trees: int
    height: int
    proved: bool
    cpu_s: float


class Pass(NamedTuple):
    """A pass of the planner.

    Attributes:
        name: Its module, and its replacement if there is one.
        places: (object, attribute, replacement without the pass).
    """

    name: str
    places: tuple[tuple[Any, str, Any], ...]


def _all_trees(pricer: Any, parts: Any, symmetry: Any, *, most: int | None, loss: float) -> Any:
    """Prune only as far as the limit on trees demands."""
    return parts if most is None else _prune(pricer, parts, symmetry, most=most, loss=0.0)


_prune = pruning.prune
_exact_latency = gossip_search._Search._exact_latency


def _without_rails(request: Request, paths: PathFinder) -> Iterator[tuple[str, Any]]:
    named = ("rails", "cyclic", "shift")
    return ((name, build) for name, build in candidate_builds(request, paths) if not name.startswith(named))


FOREST_PASSES = (
    Pass("bounded_tree_count", ((forest, "bounded_trees", lambda *_: ()), (forest, "bounded_pairs", lambda *_: ()))),
    Pass("given_roots", ((bounded_tree_count, "trees_in_units", lambda *_: []),)),
    Pass("unequal_weights", ((bounded_tree_count, "unequal_trees", lambda *_: None),)),
    Pass(
        "column_exchange",
        ((bounded_tree_count, "exchange_columns", lambda pricer, one, *_: repack(pricer, [*pricer.start(), *one])),),
    ),
    Pass("pruning", ((forest, "prune", _all_trees),)),
    Pass("height_reduction", ((forest, "reduce_height", lambda _, trees: [tree for _, tree in trees]),)),
)
RAIL_PASSES = (
    Pass(
        "rail_assignment, colours by formula only",
        ((rail_assignment._EdgeColoring, "_assign_rest", lambda _, w, __: w),),
    ),
    Pass("rails, cyclic, shift", ((planner, "candidate_builds", _without_rails),)),
)
SEARCH_PASSES = (
    Pass("exact_rounds", ((gossip_search._Search, "_exact_rounds", lambda _: None),)),
    Pass("exact_rounds, exact_latency instead", ((gossip_search._Search, "_exact_rounds", _exact_latency),)),
    Pass("exact_latency", ((gossip_search._Search, "_exact_latency", lambda *_: None),)),
    Pass("local_search", ((gossip_search._Search, "_local_search", lambda _: None),)),
)


def packed(case: Case) -> Figures | None:
    """Plan with packed trees alone; None if there are none."""
    topology, paths = case.topology, PathFinder(case.topology)
    ends = topology.endpoints
    collective = collective_of(case.collective, len(ends), ROWS)
    found, took = timed(lambda: forest.forest_of(collective, paths, ends, ROWS, max_trees=case.max_trees))
    if found is None:
        return None
    slices = sliced(found.schedule, min(SLICES, most_slices(found.schedule)), STAGGER_ROUNDS)
    cost = Cost(slices, ends, paths, row_bytes=4)
    of_bound = (cost.throughput_gb_per_s or 0.0) / (case.optimum or found.bound_gb_per_s)
    return Figures(of_bound, cost.predicted_us, found.trees_per_root, found.height, False, took.cpu_s)


def planned(case: Case) -> Figures | None:
    """Plan a request as users do; None if there is no plan."""
    rails._joining.cache_clear()
    rails._heard_inside.cache_clear()
    rail_assignment.spread_inside.cache_clear()
    ends = case.topology.endpoints
    layout = SUM.default_layout(len(ends))
    collective = collective_of(case.collective, len(ends), layout.rows)
    request = Request(collective, SUM, layout, ends, case.objective, 1, "alpha")
    with ExitStack() as stack:
        caches = ("_plans", "_searches", "_known_bounds")
        for where, name in (*((planner, name) for name in caches), (hierarchy, "_known")):
            stack.enter_context(patch.object(where, name, SharedResults(most=64)))
        stack.enter_context(patch.object(paths, "MOST_KEPT_ENDPOINTS", 0))
        try:
            plan, took = timed(lambda: planner.make_plan(case.topology, request))
        except PlanError:
            return None
    certificate = plan.certificate
    return Figures(1 / certificate.gap, plan.figures.alpha_us, 0, 0, bool(certificate.proved_by_search), took.cpu_s)


class _Used:
    """Record which passes were called."""

    def __init__(self, passes: Sequence[Pass]) -> None:
        self.passes, self.names = passes, set[str]()

    def measured(self, measure: Callable[[Case], Figures | None], case: Case) -> Figures | None:
        """The figures of the whole plan; `names` are then the passes that it used."""
        self.names.clear()
        with ExitStack() as stack:
            for one in self.passes:
                for where, name, _ in one.places:
                    stack.enter_context(patch.object(where, name, self._noting(one.name, getattr(where, name))))
            return measure(case)

    def _noting(self, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            self.names.add(name)
            return made(*args, **options)

        return noted


def without(one: Pass, measure: Callable[[Case], Figures | None], case: Case) -> Figures | None:
    """Return the figures without a pass."""
    with ExitStack() as stack:
        for where, name, instead in one.places:
            stack.enter_context(patch.object(where, name, instead))
        return measure(case)


HEADER = (
    f"{'without':42} {'used':>5} {'other':>5} {'no plan':>7} {'of bound: with':>14} {'without':>7} {'worst':>6} "
    f"{'us':>5} {'trees: with':>11} {'without':>7} {'height: with':>12} {'without':>7} {'proved: with':>12} "
    f"{'without':>7} {'cpu':>5}  worst case"
)


def table(
    title: str,
    passes: Sequence[Pass],
    measure: Callable[[Case], Figures | None],
    cases: Sequence[Case],
    minutes: float = inf,
) -> None:
    """Measure as many cases as the minutes allow, then print a line per pass."""
    used = _Used(passes)
    pairs: dict[str, list[tuple[Case, Figures, Figures | None]]] = {one.name: [] for one in passes}
    count = 0
    measure(cases[0])  # imports, and what is compiled
    end_s = time.monotonic() + 60 * minutes
    for case in cases:
        if time.monotonic() > end_s:
            break
        whole = used.measured(measure, case)
        count += whole is not None
        for one in passes:
            if whole is not None and one.name in used.names:
                pairs[one.name].append((case, whole, without(one, measure, case)))
    print(f"\n{title}, {count} cases of {len(cases)}\n{HEADER}")
    for one in passes:
        print(line(one.name, pairs[one.name]), flush=True)


def line(name: str, pairs: Sequence[tuple[Case, Figures, Figures | None]]) -> str:
    """Format one line of a table."""
    both = [(case, whole, less) for case, whole, less in pairs if less is not None]
    if not both:
        return f"{name:42} {len(pairs):5}"
    other = sum(any(abs(a - b) > SAME * abs(a) for a, b in zip(x[:-1], y[:-1], strict=True)) for _, x, y in both)
    case, whole, less = min(both, key=lambda pair: (pair[2].of_bound / pair[1].of_bound, pair[1].us / pair[2].us))
    us = max(y.us / x.us for _, x, y in both)
    cpu = sum(y.cpu_s for _, _, y in both) / sum(x.cpu_s for _, x, _ in both)
    sides = [[x for _, x, _ in both], [y for _, _, y in both]]
    shares, trees, heights = ([mean(one[at] for one in side) for side in sides] for at in (0, 2, 3))
    proved = [sum(one.proved for one in side) for side in sides]
    limit = "" if case.max_trees is None else f", {case.max_trees} trees"
    return (
        f"{name:42} {len(pairs):5} {other:5} {len(pairs) - len(both):7} {shares[0]:14.4f} {shares[1]:7.4f} "
        f"{less.of_bound / whole.of_bound:6.3f} {us:5.2f} {trees[0]:11.2f} {trees[1]:7.2f} {heights[0]:12.2f} "
        f"{heights[1]:7.2f} {proved[0]:12} {proved[1]:7} {cpu:5.2f}  {case.name} {case.collective}{limit}"
    )


def random_cases() -> Iterator[tuple[str, Topology, dict[str, float]]]:
    """Yield name, machine and optima of every random graph."""
    for number, case in enumerate(json.loads(OPTIMA.read_text())):
        yield f"random {number}", random_machine(case), case["optima"]


IRREGULAR = (
    Machine("dgx-1-v100", 1, "no GPU0-GPU1"),
    Machine("mi250x", 1, "no GPU0-GPU1"),
    Machine("dgx-h100", 2, "h1/GPU2 at 200 GB/s"),
    Machine("dgx-h100", 2, "h0/NIC0 sends at 25 GB/s"),
    Machine("dgx-h100", 2, "all rates random"),
    Machine("dgx-h100", 2, "all rates random each way"),
    Machine("mi300x-8", 2, "all rates random"),
)


def whole_machines(most_ranks: int, hosts: Sequence[int]) -> Iterator[tuple[str, Topology]]:
    """Yield small enough systems of the catalogue, then those with a defect."""
    for machine in [*(Machine(system, count) for system in SYSTEMS for count in hosts), *IRREGULAR]:
        topology = machine.topology()
        if 1 < len(topology.endpoints) <= most_ranks:
            yield str(machine), topology


def forest_cases(most_ranks: int) -> Iterator[Case]:
    """Packed trees: any number, and at most two."""
    for name, topology in whole_machines(most_ranks, (1, 2)):
        for collective in forest.COLLECTIVES:
            for most in (None, 2):
                yield Case(name, topology, collective, max_trees=most)
    for name, topology, optima in random_cases():
        for collective in forest.COLLECTIVES:
            for most in (None, 2, 4):
                yield Case(name, topology, collective, max_trees=most, optimum=optima[collective])


RAILS = (
    *(Machine("dgx-h100", hosts) for hosts in (2, 3, 4, 5, 6, 7, 8, 13, 16)),
    *(Machine("mi250x", hosts) for hosts in (3, 5)),
    *(Machine("dgx-h100", hosts, "rail 3 of h2 down") for hosts in (3, 4, 7, 16)),
    *(Machine("dgx-h100", hosts, "no h3/GPU7") for hosts in (4, 7, 16)),
)


def rail_cases(_: int) -> Iterator[Case]:
    """Least latency on hosts joined by rails."""
    for machine in RAILS:
        topology = machine.topology()
        for collective in ("allreduce", "allgather", "reduce_scatter", "scan"):
            yield Case(str(machine), topology, collective, "latency")


def search_cases(_: int) -> Iterator[Case]:
    """Fewest rounds, and least latency, where no algorithm meets the bound."""
    machines = [(name, one) for name, one, _ in random_cases()]
    machines += [
        (name, one) for name, one in whole_machines(16, (1, 2)) if len(one.endpoints) <= gossip_search.EXACT_RANKS
    ]
    for name, topology in machines:
        for collective in COLLECTIVES:
            for objective in ("rounds", "latency"):
                yield Case(name, topology, collective, objective)


TABLES: dict[str, tuple[str, tuple[Pass, ...], Callable[[Case], Figures | None], Callable[[int], Iterator[Case]]]] = {
    "forests": ("packed trees", FOREST_PASSES, packed, forest_cases),
    "rails": ("least latency over rails", RAIL_PASSES, planned, rail_cases),
    "search": ("fewest rounds and least latency", SEARCH_PASSES, planned, search_cases),
}


def main() -> None:
    """Print the tables."""
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES), help="which, in this order")
    parser.add_argument("--most-ranks", type=int, default=32, help="of systems whose trees are packed")
    parser.add_argument("--minutes", type=float, default=inf, help="after which a table ends with the cases it has")
    asked = parser.parse_args()
    unknown = [name for name in asked.tables.split(",") if name not in TABLES]
    if unknown:
        parser.error(f"--tables {unknown[0]!r}: expected some of {', '.join(TABLES)}")
    print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; "
        f"{platform.system()}, Python {platform.python_version()}, NumPy {np.__version__}"
    )
    for name in asked.tables.split(","):
        title, passes, measure, made = TABLES[name]
        cases = list(made(asked.most_ranks))
        random.Random(1).shuffle(cases)
        table(title, passes, measure, cases, asked.minutes)


if __name__ == "__main__":
    main()
