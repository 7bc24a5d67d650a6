"""Processes that share the card and share out numbered pieces of work: compiling takes longer than running here.

A worker is a script with the arguments FIRST STEP SECONDS: it does the pieces FIRST, FIRST + STEP, ... and prints one
line of JSON for each, `[number, ...]`. One that loses the card (an illegal access ends all that a process may do on
it) ends with the status `LOST`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NamedTuple

import torch
from card import Card, the_card
from results import first_line
from turns import Limit

MOST = 12
"""The most workers that are of use."""
LOST = 3
GRACE_S = 20.0
"""How long a piece that was begun in time may take."""
RESTARTS = 5
"""How often processes are started in the place of those that ended early."""
Told = tuple[int, str | None]


class Failed(NamedTuple):
    """A piece whose process ended with it, and why."""

    number: int
    why: str


class _Worker(NamedTuple):
    """A process, and the number of its next piece."""

    process: subprocess.Popen[str]
    following: int


def usual() -> int:
    """How many workers suit this host."""
    return max(1, min(MOST, len(os.sched_getaffinity(0)) - 2))


def shared_out(script: str, workers: int, limit: Limit) -> Iterator[list[Any] | Failed]:
    """The lines of all workers as they come; another process goes on after one that lost the card.

    Args:
        script: Of this folder.
        workers: Processes.
        limit: For all of it.
    """
    told: Queue[tuple[int, str | None]] = Queue()

    def start(lane: int, first: int) -> _Worker:
        return _Worker(_started(told, lane, [script, str(first), str(workers), str(limit.left_s)]), first)

    restarts, running = RESTARTS, {lane: start(lane, lane) for lane in range(workers)}
    while running:
        try:
            lane, line = told.get(timeout=limit.left_s + GRACE_S)
        except Empty:  # nothing came for long after the limit
            for worker in running.values():
                worker.process.kill()
                worker.process.wait()
                yield Failed(worker.following, "did not end; its process was killed")
            return
        process, following = running[lane]
        if line is not None:
            found = json.loads(line)
            running[lane] = _Worker(process, found[0] + workers)
            yield found
            continue
        status = process.wait()
        del running[lane]
        if status not in (0, LOST):
            yield Failed(following, f"its process ended with status {status}")
            following += workers
        if status != 0 and not limit.over and restarts:
            restarts -= 1
            running[lane] = start(lane, following)


def _started(told: Queue[Told], lane: int, words: list[str]) -> subprocess.Popen[str]:
    """A worker, whose lines a thread puts into the queue, at its end None."""
    python = os.environ.get("PYTHON", sys.executable).split()
    script = str(Path(__file__).with_name(words[0]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    process = subprocess.Popen([*python, script, *words[1:]], stdout=subprocess.PIPE, text=True, env=environment)

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                told.put((lane, line))
        told.put((lane, None))

    threading.Thread(target=listen, daemon=True).start()
    return process


def work_through(piece: Callable[[Card, int], list[Any] | None]) -> int:
    """The main function of a worker, and its status.

    Args:
        piece: Does one and says what is printed after its number; None: there are no more.
    """
    first, step, limit = int(sys.argv[1]), int(sys.argv[2]), Limit(float(sys.argv[3]))
    torch.set_num_threads(1)
    card = the_card()
    for number in itertools.count(first, step):
        if limit.over:
            return 0
        found = piece(card, number)
        if found is None:
            return 0
        print(json.dumps([number, *found]), flush=True)
        try:
            card.synchronize()
        except RuntimeError as error:
            print(f"the card answers no more: {first_line(error)}", file=sys.stderr, flush=True)
            return LOST
    return 0
