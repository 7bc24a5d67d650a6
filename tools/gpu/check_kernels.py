"""Every kernel on random problems: against the float64 formula and the CPU, for equal bits, and by CUDA graphs.

python tools/gpu/check_kernels.py [OUT] [--seconds S] [--workers N] [--only INDEX ...]

Compiling takes most of the time, so several processes share the card; 0 workers check in this one. A problem is drawn
by its number; `--only` runs one again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator

from card import the_card
from check_kinds import Found
from check_worker import ODDS, one
from results import Results, program
from turns import Limit
from workers import Failed, shared_out, usual

Numbered = tuple[int, Found]


def work(results: Results, limit: Limit, args: argparse.Namespace) -> None:
    """Check until the time is over."""
    if args.only is not None:
        found = list(_shown((index, one(the_card(), index)) for index in args.only))
    elif args.workers:
        found = list(_shown(_from_workers(limit, args.workers)))
    else:
        found = list(_shown(_here(limit)))
    _report(results, found, whole=args.only is None)


def _here(limit: Limit) -> Iterator[Numbered]:
    for index in itertools.count():
        if limit.over:
            return
        yield index, one(the_card(), index)


def _shown(found: Iterator[Numbered]) -> Iterator[Numbered]:
    """The same, with what is wrong and a count now and then printed on the way."""
    for count, (index, case) in enumerate(found, 1):
        if case.wrong:
            print(f"wrong: {index} {case.kind} ({case.what}): {case.wrong}", flush=True)
        if count % 50 == 0:
            print(f"{count} problems", flush=True)
        yield index, case


def _from_workers(limit: Limit, workers: int) -> Iterator[Numbered]:
    for said in shared_out("check_worker.py", workers, limit):
        if isinstance(said, Failed):
            yield said.number, Found("worker", "", f"this problem's process: {said.why}")
        else:
            yield said[0], Found(**said[1])


def _report(results: Results, found: list[Numbered], *, whole: bool) -> None:
    rows = []
    for kind in sorted({case.kind for _, case in found}):
        mine = [case for _, case in found if case.kind == kind]
        offs = [[x for x in (getattr(case, name) for case in mine) if x is not None] for name in ("off", "off_cpu")]
        worst = [f"{max(x):.1e}" if x else "-" for x in offs]
        right, graphs = sum(case.wrong is None for case in mine), sum(case.graph for case in mine)
        rows.append((kind, len(mine), right, *worst, graphs))
    head = ["kernel", "problems", "right", "furthest from the formula", "from the CPU", "by graphs"]
    note = (
        "Differences of out relative to the largest value, of lse to itself. Every problem ran twice, and where it "
        "says so by a CUDA graph, for equal bits; memory that is handed out began as NaN."
    )
    results.table("Random problems", head, rows, note)
    results.data("cases", [[index, case.record()] for index, case in found])
    for kind in (*ODDS, "folds") if whole else ():
        results.check(f"some {kind}", None if any(case.kind == kind for _, case in found) else "no problem was tried")
    for index, case in found:
        results.check(f"--only {index}, {case.kind} ({case.what})", case.wrong)


if __name__ == "__main__":
    workers = {"type": int, "default": usual(), "help": "processes (0: this one alone)"}
    only = {"type": int, "nargs": "+", "help": "these problems, by their numbers"}
    sys.exit(program("check_kernels", "Kernels against the formula", work, workers=workers, only=only))
