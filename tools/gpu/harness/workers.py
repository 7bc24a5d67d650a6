"""Worker processes that share the card and divide numbered pieces of work, since compiling dominates.

A worker is a script with the arguments FIRST STEP UNTIL: until that time, of time.monotonic(), it begins the pieces
FIRST, FIRST + STEP, ... and prints one line of JSON for each, `[number, ...]`. One that loses the card (an illegal
access ends all that a process may do on it) ends with the status `LOST`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NamedTuple

import torch
from card import Card, the_card
from results import first_line

from harness.turns import Limit

MOST = 12
"""Largest useful number of workers."""
LOST = 3
HANGS_S = 60.0
"""Seconds after which a piece fails; includes process start and compilation."""
GRACE_S = 20.0
"""After the limit, once, but no more than a sixth of it: pieces that were begun before it may end; then every process
is killed."""
RESTARTS = 5
"""Limit of replacements of processes that ended early."""
Told = tuple[int, str | None]


class Failed(NamedTuple):
    """A piece whose process died or took too long, and the reason."""

    number: int
    why: str


class Unfinished(NamedTuple):
    """A piece that the deadline cut off: no failure."""

    number: int


@dataclass
class _Worker:
    """A process, the number of its piece, and the piece's start by time.monotonic()."""

    process: subprocess.Popen[str]
    piece: int
    since_s: float


def usual() -> int:
    """Return the number of workers that suits this host."""
    return max(1, min(MOST, len(os.sched_getaffinity(0)) - 2))


def shared_out(script: str, workers: int, limit: Limit) -> Iterator[list[Any] | Failed | Unfinished]:
    """Yield the lines of all workers as they come; a new process replaces one that lost the card, died or hung.

    Args:
        script: Of tools/gpu.
        workers: Processes.
        limit: For all of it, but for GRACE_S.
    """
    crew = _Crew(script, workers, limit)
    try:
        for engine in range(workers):
            crew.start(engine)
        while crew.running:
            try:
                said = crew.told.get(timeout=crew.patience_s())
            except Empty:
                yield from crew.overdue()
            else:
                yield from crew.heard(*said)
    finally:
        for worker in crew.running.values():
            kill(worker.process)


class _Crew:
    """The running workers by unique numbers, so that a killed worker's output is not taken for another's."""

    def __init__(self, script: str, step: int, limit: Limit) -> None:
        self.told: Queue[Told] = Queue()
        self.running: dict[int, _Worker] = {}
        self._script, self._step, self._limit = script, step, limit
        self._last_s = limit.until_s + min(GRACE_S, limit.left_s / 6)
        self._restarts, self._names = RESTARTS, itertools.count()

    def start(self, first: int) -> None:
        """Start a worker at this piece."""
        words = [self._script, str(first), str(self._step), str(self._limit.until_s)]
        name = next(self._names)
        self.running[name] = _Worker(_started(self.told, name, words), first, time.monotonic())

    def patience_s(self) -> float:
        """Return the seconds to wait for output."""
        last = min(worker.since_s + HANGS_S for worker in self.running.values())
        return max(0.0, min(last, self._last_s) - time.monotonic())

    def overdue(self) -> Iterator[Failed | Unfinished]:
        """Kill workers whose piece takes too long, and all after the grace period."""
        now = time.monotonic()
        ends = now >= self._last_s
        for name, worker in list(self.running.items()):
            hangs = now >= worker.since_s + HANGS_S
            if hangs or ends:
                del self.running[name]
                kill(worker.process)
                why = f"did not end within {HANGS_S:g} s; its process was killed"
                yield Failed(worker.piece, why) if hangs else Unfinished(worker.piece)
                self._again(worker.piece + self._step)

    def heard(self, name: int, line: str | None) -> Iterator[list[Any] | Failed]:
        """Handle a worker's line; None: it ended."""
        worker = self.running.get(name)
        if worker is None:  # killed
            return
        if line is not None and not (line.startswith("[") and line.endswith("]\n")):
            print(line.rstrip(), flush=True)  # of a library
            return
        if line is not None:
            found = json.loads(line)
            worker.piece, worker.since_s = found[0] + self._step, time.monotonic()
            yield found
            return
        status = worker.process.wait()
        del self.running[name]
        if status not in (0, LOST):
            yield Failed(worker.piece, f"its process ended with status {status}")
            worker.piece += self._step
        if status != 0:
            self._again(worker.piece)

    def _again(self, first: int) -> None:
        if self._restarts and not self._limit.over:
            self._restarts -= 1
            self.start(first)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and wait briefly for its end."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):  # one that a driver holds ends when the driver lets it
        process.wait(2)


def _started(told: Queue[Told], name: int, words: list[str]) -> subprocess.Popen[str]:
    """Start a worker; a thread puts its lines into the queue, and None at its end."""
    python = os.environ.get("PYTHON", sys.executable).split()
    script = str(Path(__file__).parents[1] / words[0])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    process = subprocess.Popen([*python, script, *words[1:]], stdout=subprocess.PIPE, text=True, env=environment)

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                told.put((name, line))
        told.put((name, None))

    threading.Thread(target=listen, daemon=True).start()
    return process


def work_through(piece: Callable[[Card, int], list[Any] | None]) -> int:
    """Run a worker's main function; return its exit status.

    Args:
        piece: Does one and says what is printed after its number; None: there are no more.
    """
    first, step, limit = int(sys.argv[1]), int(sys.argv[2]), Limit.until(float(sys.argv[3]))
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
