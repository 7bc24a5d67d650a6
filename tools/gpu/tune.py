"""Times the configurations of the decode and prefill kernels, and writes the tables that the kernels look into.

python tools/gpu/tune.py [OUT] [--seconds S] [--workers N]

decode_table.json and prefill_table.json in OUT go to attention/gpu/. What was there, or else in the tables of the
package, stays but for the problems that were timed.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from typing import Any

from card import Card, Run, the_card
from harness.targets import UNMEASURED
from harness.turns import Limit, Way, in_turns
from harness.workers import Unfinished, shared_out, usual
from problems.tune_targets import Call, Target, pieces, targets
from results import Results, program
from tune_worker import tried

COMPILING = 0.7
"""Share of the time for compiling."""
FINALISTS = 5
CALLS = 4
"""Calls of each candidate in a graph."""


def work(results: Results, limit: Limit, args: argparse.Namespace) -> None:
    """Compile as many candidates as there is time for, in order of worth, then time those that are of use."""
    card = the_card()
    for table in {target.table for target in targets(card)}:
        own = results.folder / table.TUNED.path.name
        if own.exists():  # of an earlier call, which came to other problems
            table.TUNED.path = own
        table.TUNED.known()
        table.TUNED.path = own
    faults = _compiled(card, Limit(limit.left_s * COMPILING), args.workers)
    wrong = {number: why for number, why in faults.items() if why and why.startswith("wrong")}
    for number, why in wrong.items():
        target, candidate = pieces(card)[number]
        results.check(f"{target.name}, {tuple(candidate)}", why)
    gc.collect()
    gc.freeze()  # torch collects before it records a graph: here only what came since
    rows: list[tuple[object, ...]] = []
    todo = list(targets(card))
    for place, target in enumerate(todo):
        numbers = [i for i, (one, _) in enumerate(pieces(card)) if one is target]
        usable = [pieces(card)[i][1] for i in numbers if i in faults and faults[i] is None]
        tried_count = sum(i in faults for i in numbers)
        if len(usable) < 2 or limit.over:
            rows.append((target.name, f"{tried_count} of {len(numbers)}", len(usable), UNMEASURED, "-", "-"))
            continue
        with results.guarded(target.name):
            share = Limit(limit.left_s / (len(todo) - place))
            row = _best(results, card, target, usable, share)
            rows.append((target.name, f"{tried_count} of {len(numbers)}", len(usable), *row))
    head = ["problem", "compiled", "of use", "best", "us, for each batch", "the rules' time / its"]
    results.table("Configurations", head, rows, "The fields of a Cut or a Tile, see attention/gpu.")
    results.data("faults", {f"{pieces(card)[i][0].name} {tuple(pieces(card)[i][1])}": why for i, why in faults.items()})
    results.check("candidates", None if faults else "none was compiled")


def _compiled(card: Card, limit: Limit, workers: int) -> dict[int, str | None]:
    """Why each candidate is of no use, or None, by number; those that there was no time for are missing."""
    found: dict[int, str | None] = {}
    if not workers:
        for number in range(len(pieces(card))):
            if limit.over:
                break
            found[number] = (tried(card, number) or [None])[0]
        return found
    for said in shared_out("tune_worker.py", workers, limit):
        if not isinstance(said, Unfinished):
            found[said[0]] = said[1]
    return found


def _best(
    results: Results, card: Card, target: Target, usable: Sequence[Any], limit: Limit
) -> tuple[object, object, object]:
    """Time once, then those that did best in turns; record the best and say what it is."""
    calls = [make() for make in target.calls]
    rule = target.table.by_rule(target.problem)
    once = {one: _us(card, target, one, calls) for one in usable if not limit.over or one == rule}
    finalists = sorted(once, key=lambda one: once[one])[:FINALISTS]
    finalists += [rule] if rule in once and rule not in finalists else []
    ways = {
        f"{place} {one}": Way(_graph(card, target, one, [call]), CALLS)
        for one in finalists
        for place, call in enumerate(calls)
    }
    times = in_turns(card, ways, limit)
    us = {one: [times[f"{place} {one}"].median_us for place in range(len(calls))] for one in finalists}
    results.data(target.name, {"once": [[list(one), value] for one, value in once.items()], "us": [*us.items()]})
    best = min(us, key=lambda one: _product(us[one]))
    target.table.TUNED.record(target.problem.arch, {target.problem.key: best})
    gain = (_product(us[rule]) / _product(us[best])) ** (1 / len(calls)) if rule in us else float("nan")
    return str(tuple(best)), ", ".join(f"{one:,.1f}" for one in us[best]), f"{gain:.2f}"


def _us(card: Card, target: Target, one: Any, calls: Sequence[Call]) -> float:
    """Time all calls in sequence; return the least of three."""
    replay = _graph(card, target, one, calls)
    least = float("inf")
    for _ in range(3):
        watch = card.stopwatch()
        watch.start()
        replay()
        watch.stop()
        least = min(least, watch.us() / CALLS)
    return least


def _graph(card: Card, target: Target, one: Any, calls: Sequence[Call]) -> Run:
    """A CUDA graph of calls with a candidate, several times: one alone takes the CPU longer than short kernels run."""

    def several() -> None:
        for call in (*calls,) * CALLS:
            call()

    with target.table.TUNED.trying(one):
        return card.graph(several)


def _product(values: Sequence[float]) -> float:
    made = 1.0
    for value in values:
        made *= value
    return made


if __name__ == "__main__":
    options = {"type": int, "default": usual(), "help": "processes that compile (0: this one alone)"}
    sys.exit(program("tune", "Configurations of the kernels", work, workers=options))
