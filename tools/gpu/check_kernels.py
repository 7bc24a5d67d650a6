"""Every kernel on random problems: against the float64 formula and the CPU, for equal bits, and by CUDA graphs.

python tools/gpu/check_kernels.py [OUT] [--seconds S] [--workers N] [--only INDEX]

Compiling takes most of the time, so several processes share the card; 0 workers check in this one. A problem is drawn
by its number; `--only` runs one again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import NamedTuple

from card import the_card
from check_kinds import Found
from check_worker import LANES, LOST, ODDS, one
from results import Results, program
from turns import Limit

GRACE_S = 15.0
"""How long a problem that was begun in time may take."""
RESTARTS = 5
"""How often processes are started in the place of those that ended early."""
Numbered = tuple[int, Found]


def work(results: Results, limit: Limit, args: argparse.Namespace) -> None:
    """Check until the time is over."""
    if args.only is not None:
        found = [(args.only, one(the_card(), args.only))]
    elif args.workers:
        found = list(_shown(_from_workers(limit, args.workers)))
    else:
        found = list(_shown(_here(limit)))
    _report(results, found, whole=args.only is None)


def _here(limit: Limit) -> Iterator[Numbered]:
    index = 0
    while not limit.over:
        yield index, one(the_card(), index)
        index += 1


def _shown(found: Iterator[Numbered]) -> Iterator[Numbered]:
    """The same, with what is wrong and a count now and then printed on the way."""
    for count, (index, case) in enumerate(found, 1):
        if case.wrong:
            print(f"wrong: {index} {case.kind} ({case.what}): {case.wrong}", flush=True)
        if count % 50 == 0:
            print(f"{count} problems", flush=True)
        yield index, case


class _Worker(NamedTuple):
    """A process, and the number of its next problem."""

    process: subprocess.Popen[str]
    following: int


def _from_workers(limit: Limit, workers: int) -> Iterator[Numbered]:
    """What processes find; one whose card is lost is followed by another, from its next problem on."""
    told: Queue[tuple[int, str | None]] = Queue()
    restarts = RESTARTS
    running = {lane: _Worker(_start(told, lane, lane, workers, limit), lane) for lane in range(workers)}
    while running:
        try:
            lane, line = told.get(timeout=limit.left_s + GRACE_S)
        except Empty:  # nothing came for long after the limit
            for worker in running.values():
                worker.process.kill()
                yield worker.following, Found("worker", "", "this problem did not end; its process was killed")
            return
        process, following = running[lane]
        if line is not None:
            index, record = json.loads(line)
            running[lane] = _Worker(process, index + workers)
            yield index, Found(**record)
            continue
        status = process.wait()
        del running[lane]
        if status not in (0, LOST):
            yield following, Found("worker", "", f"the process of this problem ended with status {status}")
        if status != 0 and not limit.over and restarts:
            restarts -= 1
            following += workers if status != LOST else 0
            running[lane] = _Worker(_start(told, lane, following, workers, limit), following)


def _start(
    told: Queue[tuple[int, str | None]], lane: int, first: int, step: int, limit: Limit
) -> subprocess.Popen[str]:
    """A worker, whose lines a thread puts into the queue, at its end None."""
    python = os.environ.get("PYTHON", sys.executable).split()
    script = str(Path(__file__).with_name("check_worker.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*python, script, str(first), str(step), str(limit.left_s)], stdout=subprocess.PIPE, text=True, env=environment
    )

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            told.put((lane, line))
        told.put((lane, None))

    threading.Thread(target=listen, daemon=True).start()
    return process


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
    cores = len(os.sched_getaffinity(0))
    workers = {"type": int, "default": max(1, min(LANES, cores - 2)), "help": "processes (0: this one alone)"}
    only = {"type": int, "help": "one problem by its number"}
    sys.exit(program("check_kernels", "Kernels against the formula", work, workers=workers, only=only))
