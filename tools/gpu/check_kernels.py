"""Every kernel on random problems: against the float64 formula and the CPU, for equal bits, and by CUDA graphs.

python tools/gpu/check_kernels.py [OUT] [--seconds S] [--workers N] [--only INDEX ...]

Compiling takes most of the time, so several processes share the card; 0 workers check in this one. A problem is drawn
by its number; `--only` runs one again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator

from card import the_card
from check_worker import ODDS, one
from harness.targets import UNMEASURED, Goal
from harness.turns import Limit
from harness.workers import Failed, Unfinished, shared_out, usual
from problems.check_kinds import Found
from results import Results, program

KEEP_S = 5.0
"""Seconds between writes of the findings."""
NOTE = (
    "Differences of out relative to the largest value, of lse to itself. Every problem ran twice, and where it says so "
    "by a CUDA graph, for equal bits; memory that is handed out began as NaN."
)
Numbered = tuple[int, Found]


def work(results: Results, limit: Limit, args: argparse.Namespace) -> None:
    """Check until the time is over."""
    kept = Kept(results)
    if args.only is not None:
        kept.all_of((index, one(the_card(), index)) for index in args.only)
    elif args.workers:
        kept.all_of(_from_workers(limit, args.workers))
    else:
        kept.all_of(_here(limit))
    for kind in (*ODDS, "folds") if args.only is None else ():
        there = any(case.kind == kind for _, case in kept.found)
        results.check(f"some {kind}", None if there else "no problem was tried")


def _here(limit: Limit) -> Iterator[Numbered]:
    for index in itertools.count():
        if limit.over:
            return
        yield index, one(the_card(), index)


def _from_workers(limit: Limit, workers: int) -> Iterator[Numbered | int]:
    for said in shared_out("check_worker.py", workers, limit):
        if isinstance(said, Unfinished):
            yield said.number
        elif isinstance(said, Failed):
            yield said.number, Found("worker", "", f"this problem's process: {said.why}")
        else:
            yield said[0], Found(**said[1])


class Kept:
    """What was found, in the results at once where it is wrong, and else every few seconds."""

    def __init__(self, results: Results) -> None:
        self.found: list[Numbered] = []
        self._results, self._written, self._next = results, 0, Limit(KEEP_S)
        self._unfinished: list[int] = []

    def all_of(self, found: Iterable[Numbered | int]) -> None:
        """Take all, and write a table of them; a number alone: this problem was not finished in time."""
        for said in found:
            if isinstance(said, int):
                self._unfinished.append(said)
                continue
            self.found.append(said)
            if said[1].wrong or self._next.over:
                self._write(said=False)
                self._next = Limit(KEEP_S)
        self._write(said=True)

    def _write(self, *, said: bool) -> None:
        fresh, self._written = self.found[self._written :], len(self.found)
        names = (f"--only {index}, {case.kind} ({case.what})" for index, case in fresh)
        self._results.checks([(name, case.wrong) for name, (_, case) in zip(names, fresh, strict=True)])
        if not said:
            print(f"{len(self.found)} problems", flush=True)
        head = ["kernel", "problems", "right", "furthest from the formula", "from the CPU", "by graphs"]
        note = NOTE
        if self._unfinished:
            note += f" Not finished when the time was over: {', '.join(map(str, sorted(self._unfinished)))}."
        self._results.table("Random problems", head, self._rows(), note, said=said)
        right = sum(case.wrong is None for _, case in self.found)
        met = UNMEASURED if the_card().interpreted else "yes" if right == len(self.found) else "no"
        reached = f"{right:,} of {len(self.found):,}"
        self._results.data("goals", [list(Goal("random problems", "all right", reached, met, "checks"))])
        self._results.data("cases", [[index, case.record()] for index, case in self.found])

    def _rows(self) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for kind in sorted({case.kind for _, case in self.found}):
            mine = [case for _, case in self.found if case.kind == kind]
            offs = [[x for x in (getattr(case, name) for case in mine) if x is not None] for name in ("off", "off_cpu")]
            worst = [f"{max(x):.1e}" if x else "-" for x in offs]
            right, graphs = sum(case.wrong is None for case in mine), sum(case.graph for case in mine)
            rows.append((kind, len(mine), right, *worst, graphs))
        return rows


if __name__ == "__main__":
    workers = {"type": int, "default": usual(), "help": "processes (0: this one alone)"}
    only = {"type": int, "nargs": "+", "help": "these problems, by their numbers"}
    sys.exit(program("check_kernels", "Kernels against the formula", work, workers=workers, only=only))
