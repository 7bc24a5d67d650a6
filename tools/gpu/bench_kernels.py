"""Speed of the kernels beside the card's limits and other libraries, in one run.

python tools/gpu/bench_kernels.py [OUT] [--seconds S] [--tables rules|tuned] [--workers N]

Each call reads other keys than the one before, so that they come from memory and not from the card's cache.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from card import Card, the_card
from harness.targets import MERGE_US, READ_SHARE, RIVAL_RATIO, UNMEASURED, Goal
from harness.turns import Limit, Way, in_turns
from harness.workers import shared_out, usual
from problems.bench_problems import Shape, TooLarge, lengths, merges, shapes
from problems.ceilings import copier, multiplier, reader, summer
from problems.rivals import RIVALS, Attend
from results import Results, age_s, first_line, program

from topocomm.bench.timing import Times

OURS, IN_GRAPH = "ours", "ours, graph"
READ, SUM, COPY, PRODUCT = "read (Triton)", "read (torch.sum)", "copy", "matrix product"
OFF = 2.0**-6
"""Tolerance of other libraries, which round to 16 bits, relative to the largest |out|."""
WARMING_S = 45.0
"""Seconds for several processes to compile the kernels of the first problems."""
Rows = list[tuple[object, ...]]


class LostError(Exception):
    """The card no longer works for this process, after a call of another library."""

    def __init__(self, rival: str, why: str) -> None:
        super().__init__(f"the card was lost by {rival}: {why}")
        self.rival = rival


def work(results: Results, limit: Limit, args: argparse.Namespace) -> None:
    """Every problem, the most telling first; what does not fit in the time or on the card is named."""
    card = the_card()
    if not torch.cuda.is_available():
        results.note("Not on a GPU: the times below are those of an interpreter, and say nothing.")
    goals = results.goals_so_far()
    rivals = {name: attend for name, attend in RIVALS.items() if name not in args.without}
    waiting = shapes(card)[args.first :]
    if not args.goes_on:
        if args.workers:
            began_s = limit.left_s
            list(shared_out("warm_worker.py", args.workers, Limit(min(WARMING_S, limit.left_s / 3))))
            results.note(f"Compiled by {args.workers} processes in {began_s - limit.left_s:.0f} s.")
        with results.guarded("merge"):
            goals.append(_merge(results, card, Limit(min(10.0, limit.left_s))))
            results.goals(goals)
        with results.guarded("lengths"):
            _lengths(results, card, Limit(min(10.0, limit.left_s)))
    while waiting:
        shape = waiting.pop(0)
        if limit.over:
            left = [one.name for one in (shape, *waiting)]
            results.note(f"No time was left for: {'; '.join(left)}: {UNMEASURED}.")
            break
        share = Limit(limit.left_s / (len(waiting) + 1))
        try:
            with results.guarded(shape.name, (TooLarge, LostError)):
                measure = _decode if shape.causal is None else _prefill
                goals += measure(results, card, shape, share, rivals)
                results.goals(goals)
        except TooLarge as error:
            results.note(f"{shape.name}: {error}: {UNMEASURED}.")
        except LostError as error:
            results.check(f"{shape.name}, {error.rival}", str(error))
            _again(args, limit, len(shapes(card)) - len(waiting) - 1, [*args.without, error.rival])
        if not card.answers():
            results.note(f"The card was lost by {shape.name}; what comes after it was measured in another process.")
            _again(args, limit, len(shapes(card)) - len(waiting), args.without)
    results.goals(goals, said=True)


def _again(args: argparse.Namespace, limit: Limit, first: int, without: Sequence[str]) -> None:
    """Go on from this problem in a new process in this one's place, since the card does nothing more for this one."""
    python = os.environ.get("PYTHON", sys.executable).split()
    words = [str(Path(__file__)), str(args.out), "--seconds", f"{limit.left_s + age_s():.0f}", "--goes-on"]
    words += ["--first", str(first), *(f"--without={name}" for name in without)]
    words += ["--tables", args.tables] if args.tables else []
    sys.stdout.flush()
    os.execvp(python[0], [*python, *words])


def _merge(results: Results, card: Card, limit: Limit) -> Goal:
    times = in_turns(card, merges(card), limit)
    heads, _, dim = card.sizes.heads
    title = f"Merge of {card.sizes.merged} partials, {heads} rows x {dim}"
    results.table(title, ["way", "us: median (quartiles)"], [(name, one) for name, one in times.items()])
    results.data("merge", {name: one.us for name, one in times.items()})
    best = min(one.median_us for name, one in times.items() if "graph" in name)
    met = "yes" if best < MERGE_US else "no"
    return Goal(title.lower() + ", in a graph", f"< {MERGE_US:g} us", f"{best:.2f} us", _meant(card, met), "merge")


def _lengths(results: Results, card: Card, limit: Limit) -> None:
    """What ranges of programs over the lengths of a batch cost where these are equal, and what they leave idle."""
    try:
        read_bytes, made = lengths(card)
    except TooLarge as error:
        results.note(f"Lengths: {error}: {UNMEASURED}.")
        return
    times = in_turns(card, made, limit)
    rows: Rows = [(name, one, f"{read_bytes / one.median_us / 1e3:,.0f}") for name, one in times.items()]
    results.table("Decode, lengths on the card, in graphs", ["keys", "us: median (quartiles)", "GB/s"], rows)
    results.data("lengths", {name: one.us for name, one in times.items()})


def _decode(results: Results, card: Card, shape: Shape, limit: Limit, rivals: Mapping[str, Attend]) -> list[Goal]:
    """Time methods in turns, each over all sets; report GB/s of keys and values."""
    sets = shape.sets(card)
    buffers = [x for one in sets for x in one.dense]
    ways: dict[str, Way] = {name: Way(run, len(sets)) for name, run in shape.ours(sets).items()}
    ways[IN_GRAPH] = Way(card.graph(ways[OURS].run), len(sets))
    refused = _add_rivals(card, ways, shape, sets, rivals if shape.rivals else {}, graphs=True)
    for name, run in ((READ, reader(card, buffers)), (SUM, summer(buffers)), (COPY, copier(buffers))):
        ways[name] = Way(run, len(sets))
    times = in_turns(card, ways, limit)
    gb = {
        name: shape.bytes_of(sets[0]) * (2 if name == COPY else 1) / one.median_us / 1e3 for name, one in times.items()
    }
    ceiling = max(gb[READ], gb[SUM])
    rows: Rows = [
        (name, one, f"{gb[name]:,.0f}", f"{gb[name] / ceiling:.0%}", f"{one.median_us / times[IN_GRAPH].median_us:.2f}")
        for name, one in times.items()
    ]
    head = ["way", "us: median (quartiles)", "GB/s", "of the best read", "/ ours in a graph"]
    note = (
        f"{len(sets)} sets of {shape.bytes_of(sets[0]) / 1e6:,.2f} MB of keys and values in turns. {_absent(refused)}"
    )
    results.table(shape.name, head, rows, note)
    results.data(shape.name, {"us": {name: one.us for name, one in times.items()}, "gb_per_s": gb, "refused": refused})
    best = max(gb[OURS], gb[IN_GRAPH])
    goals = []
    if shape.batch in READ_SHARE and shape.goal:
        wanted = READ_SHARE[shape.batch]
        met = "yes" if best / ceiling >= wanted else "no"
        said = f"{best / ceiling:.1%} ({best:,.0f} of {ceiling:,.0f} GB/s)"
        key = f"read {shape.batch}" if shape.target else ""
        goals.append(Goal(shape.name, f">= {wanted:.0%} of read", said, _meant(card, met), key))
    return goals + _beside_rivals(card, shape, times)


def _prefill(results: Results, card: Card, shape: Shape, limit: Limit, rivals: Mapping[str, Attend]) -> list[Goal]:
    """Time methods in turns; report TFLOP/s."""
    sets = shape.sets(card)[:1]
    ways: dict[str, Way] = {name: Way(run) for name, run in shape.ours(sets).items()}
    refused = _add_rivals(card, ways, shape, sets, rivals, graphs=False)
    multiply, operations = multiplier(card, 8192 if not card.interpreted else 32)
    ways[PRODUCT] = Way(multiply)
    times = in_turns(card, ways, limit)
    rate = {
        name: (operations if name == PRODUCT else shape.operations) / one.median_us / 1e6 for name, one in times.items()
    }
    beside = {name: f"{one.median_us / times[OURS].median_us:.2f}" for name, one in times.items()}
    beside[PRODUCT] = "-"  # another problem
    rows: Rows = [(name, one, f"{rate[name]:,.1f}", beside[name]) for name, one in times.items()]
    results.table(shape.name, ["way", "us: median (quartiles)", "TFLOP/s", "/ ours"], rows, _absent(refused))
    results.data(shape.name, {"us": {name: one.us for name, one in times.items()}, "tflops": rate, "refused": refused})
    return _beside_rivals(card, shape, times)


def _add_rivals(
    card: Card, ways: dict[str, Way], shape: Shape, sets: list[Any], rivals: Mapping[str, Attend], *, graphs: bool
) -> dict[str, str]:
    """Add those that run and agree with ours, also in graphs where one holds them; return why others do not.

    Raises:
        ValueError: One gives something else than ours, and others do not agree with it.
        LostError: The card does nothing more since one of them ran.
    """
    wanted = shape.result(sets[0]).float()
    largest = float(wanted.abs().max())
    refused: dict[str, str] = {}
    for name, attend in rivals.items():
        try:
            q, k, v = sets[0].arrays
            found = attend(q, k, v, bool(shape.causal)).float()
            card.synchronize()
        except Exception as error:  # noqa: BLE001 - libraries refuse in many ways, by importing none for one
            refused[name] = first_line(error, 70)
            _held(card, name, error)
            continue
        off = float((found - wanted).abs().max()) / largest
        if not off <= OFF:
            refused[name] = f"differs from ours by {off:.1e}"
            continue

        def run(attend: Any = attend) -> None:
            for one in sets:
                attend(*one.arrays, bool(shape.causal))

        ways[name] = Way(run, len(sets))
        try:
            if graphs:
                ways[f"{name}, graph"] = Way(card.graph(run), len(sets))
        except Exception as error:  # noqa: BLE001 - as above
            refused[f"{name}, graph"] = first_line(error, 70)
            _held(card, name, error)
    differing = [words for words in refused.values() if words.startswith("differs")]
    if differing and not any(name in RIVALS for name in ways):
        raise ValueError(f"no library agrees with ours: {refused}")
    return refused


def _held(card: Card, rival: str, error: Exception) -> None:
    """Check that the card still works after a library refused."""
    if not card.answers():
        raise LostError(rival, first_line(error)) from error


def _absent(refused: Mapping[str, str]) -> str:
    """Why others are not in the table; equal reasons once."""
    reasons: dict[str, list[str]] = {}
    for name, words in refused.items():
        reasons.setdefault(words, []).append(name)
    return " ".join(f"Not there: {', '.join(names)} ({words})." for words, names in reasons.items())


def _beside_rivals(card: Card, shape: Shape, times: Mapping[str, Times]) -> list[Goal]:
    """Beside the fastest other: decoding in graphs, which leave out what the CPU takes for a call, and eager too."""
    eager = {name: one.median_us for name, one in times.items() if name in RIVALS}
    if not eager:
        return []
    fastest = min(eager, key=lambda name: eager[name])
    plainly = f"{eager[fastest] / times[OURS].median_us:.2f} x {fastest}"
    if shape.causal is not None:
        return [Goal(shape.name, "-", plainly, "-")]
    best = {name: times.get(f"{name}, graph", times[name]).median_us for name in eager}
    fastest = min(best, key=lambda name: best[name])
    ratio = best[fastest] / times[IN_GRAPH].median_us
    where = "in graphs" if f"{fastest}, graph" in times else "ours in a graph, it in none"
    met = "yes" if ratio >= RIVAL_RATIO else "no"
    said = f"{ratio:.2f} x {fastest} ({where}; eager {plainly})"
    key = f"rival {shape.batch}" if shape.target else ""
    return [Goal(shape.name, f">= {RIVAL_RATIO:.1f} x the fastest", said, _meant(card, met), key)]


def _meant(card: Card, met: str) -> str:
    return UNMEASURED if card.interpreted else met


if __name__ == "__main__":
    first = {"type": int, "default": 0, "help": "begin with the problem of this number"}
    without = {"action": "append", "default": [], "metavar": "NAME", "help": "leave out this library"}
    workers = {"type": int, "default": usual(), "help": "processes that compile first (0: none)"}
    more = {"first": first, "without": without, "workers": workers}
    sys.exit(program("bench_kernels", "How fast the kernels are", work, **more))
