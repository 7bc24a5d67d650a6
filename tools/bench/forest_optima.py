"""Random machines with the best throughput of each collective, for the tests of the packed trees.

$ python tools/bench/forest_optima.py > tests/data/forest_optima.json      (needs scipy, which the project does not)

A command of its own: nothing of the planner is used, and planner.py, which compares with what it wrote, needs no
scipy. By Edmonds' theorem trees of total weight w from a root fit into edge capacities g if g lets w flow from the
root to every rank, so no tree appears in the program: for every root a flow to every rank within the root's own
capacities between pairs of ranks, for broadcast trees and, against the flow, for reduce trees; the capacities of all
roots together routed over the links, one commodity per source, through devices that forward.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

Links = dict[tuple[int, int], float]
Weights = dict[int, str]
RATES = (5.0, 10.0, 12.5, 25.0, 50.0, 100.0)


class Program:
    """A linear program with named variables."""

    def __init__(self) -> None:
        self.names: dict[object, int] = {}
        self.rows: list[tuple[dict[int, float], float, bool]] = []

    def __getitem__(self, name: object) -> int:
        return self.names.setdefault(name, len(self.names))

    def add(self, terms: list[tuple[object, float]], right: float, *, equal: bool) -> None:
        """Add a row: the terms equal the right side, or are at most it."""
        row: dict[int, float] = {}
        for name, factor in terms:
            row[self[name]] = row.get(self[name], 0.0) + factor
        self.rows.append((row, right, equal))

    def most(self, name: object) -> float:
        """Maximise one variable and return its value."""
        import numpy as np
        from scipy.optimize import linprog  # type: ignore[import-not-found,import-untyped,unused-ignore]
        from scipy.sparse import lil_matrix  # type: ignore[import-not-found,import-untyped,unused-ignore]

        goal = np.zeros(len(self.names))
        goal[self[name]] = -1
        sides: dict[bool, Any] = {}
        for equal in (False, True):
            chosen = [(row, right) for row, right, kind in self.rows if kind == equal]
            matrix = lil_matrix((len(chosen), len(self.names)))
            for number, (row, _) in enumerate(chosen):
                for column, factor in row.items():
                    matrix[number, column] = factor
            sides[equal] = (matrix.tocsr(), [right for _, right in chosen])
        found = linprog(goal, *sides[False], *sides[True], method="highs")
        if found.status:
            raise SystemExit(f"HiGHS: {found.message}")
        return float(-found.fun)


def best(ends: int, devices: int, links: Links, down: Weights, up: Weights, total: str) -> float:
    """The greatest `total` with trees of these weights, by name of a variable and root, from and to the roots."""
    program = Program()
    for way, weights in (("down", down), ("up", up)):
        for root, weight in weights.items():
            for sink in (rank for rank in range(ends) if rank != root):
                flow_to(program, ends, (way, root, sink), weight)
    trees = [("down", root) for root in down] + [("up", root) for root in up]
    for source in range(ends):
        for device in (device for device in range(devices) if device != source):
            route(program, ends, links, source, device, trees)
    for (a, b), rate in links.items():
        sources = [source for source in range(ends) if a >= ends or a == source]
        program.add([(("link", source, a, b), 1.0) for source in sources], rate, equal=False)
    if total == "sum":
        program.add([("sum", 1.0), *((weight, -1.0) for weight in down.values())], 0.0, equal=True)
    return program.most(total)


def flow_to(program: Program, ends: int, flow: tuple[str, int, int], weight: str) -> None:
    """The root's weight flows to the sink within the root's own capacities, for "up" against the edges."""
    way, root, sink = flow
    pairs = [(a, b) for a in range(ends) for b in range(ends) if a != b]
    for rank in range(ends):
        terms: list[tuple[object, float]] = []
        for a, b in pairs:
            leaves, enters = (a, b) if way == "down" else (b, a)
            terms += [((flow, a, b), 1.0)] * (leaves == rank) + [((flow, a, b), -1.0)] * (enters == rank)
        terms += [(weight, -1.0)] * (rank == root) + [(weight, 1.0)] * (rank == sink)
        program.add(terms, 0.0, equal=True)
    for a, b in pairs:
        program.add([((flow, a, b), 1.0), (("edge", way, root, a, b), -1.0)], 0.0, equal=False)


def route(program: Program, ends: int, links: Links, source: int, device: int, trees: list[tuple[str, int]]) -> None:
    """A device forwards what it gets of the source's messages; an endpoint gets what the trees' edges need."""
    terms: list[tuple[object, float]] = []
    for a, b in links:
        if a >= ends or a == source:  # what another endpoint received it does not send on as the same message
            terms += [(("link", source, a, b), 1.0)] * (a == device) + [(("link", source, a, b), -1.0)] * (b == device)
    if device < ends:
        terms += [(("edge", *tree, source, device), 1.0) for tree in trees]
    program.add(terms, 0.0, equal=True)


def machine(seed: int, ends: int, switches: int, *, both_ways: bool) -> Links:
    """Draw a random connected machine; devices are numbers, endpoints first."""
    chance = random.Random(seed)
    links: Links = {}

    def join(a: int, b: int) -> None:
        if a != b and (a, b) not in links:
            links[a, b] = chance.choice(RATES)
            links[b, a] = links[a, b] if both_ways else chance.choice(RATES)

    order = list(range(ends + switches))
    chance.shuffle(order)
    for place in range(1, len(order)):
        join(order[place], order[chance.randrange(place)])
    for _ in range((1 + seed % 3) * len(order)):
        join(*chance.sample(order, 2))
    return links


def main() -> None:
    cases = []
    for seed in range(32):
        ends, switches, both_ways = 4 + seed % 5, (0, 1, 2)[seed // 5 % 3], seed % 2 == 0
        links = machine(seed, ends, switches, both_ways=both_ways)
        shape = (ends, ends + switches, links)
        own: Weights = {rank: f"w{rank}" for rank in range(ends)}
        shared: Weights = dict.fromkeys(range(ends), "share")
        optima = {
            "allreduce": best(*shape, own, own, "sum"),
            "broadcast": best(*shape, {0: "w0"}, {}, "w0"),
            "reduce": best(*shape, {}, {0: "w0"}, "w0"),
            "allgather": best(*shape, shared, {}, "share") * ends,
            "reduce_scatter": best(*shape, {}, shared, "share") * ends,
        }
        print(seed, ends, switches, {name: round(value, 3) for name, value in optima.items()}, file=sys.stderr)
        cases.append(
            {
                "ends": ends,
                "switches": switches,
                "links": [[a, b, rate] for (a, b), rate in links.items()],
                "optima": {name: round(value, 6) for name, value in optima.items()},
            }
        )
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")


if __name__ == "__main__":
    main()
