"""Kill and stop random ranks at random moments in random calls, and check what the others do.

    python tools/soak/faults.py --kills 1000 --stops 1000 [--seed 1]

Jobs of 5 to 8 ranks run under `mpirun --with-ft ulfm`, in shared memory, by messages and in two levels; each goes on
with the ranks that are left, fault by fault, until one is. Every survivor must raise RankFailedError (killed) or
DeadlineError (stopped) naming the rank, in time; no result may be wrong, mpirun must end, no process may be left.
One kill in twenty is under a plain mpirun, which must end the whole job, not with status 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from streams import WAYS

Event = dict[str, Any]
LEAST_RANKS, MOST_RANKS = 5, 8
PLAIN_EVERY = 20
ORDERLY_EVERY = 4
"""The survivors of one job in this many end by MPI_Finalize, which may take five seconds."""
KILL_LIMIT_S = 60.0
"""Deadline of waits in jobs with kills, in seconds; no rank should reach it."""
STOP_LIMIT_S = 1.0
WITHIN_S = 10.0
"""Seconds in which every survivor raises after a kill, and after a stop."""
BEGIN_WITHIN_S = 90.0
END_WITHIN_S = 30.0
LATEST_S = 0.1
"""Ranks are hit at most this long after all have begun their calls."""


@dataclass
class Figures:
    """Counts of the outcomes."""

    faults: int = 0
    jobs: int = 0
    calls: int = 0
    raised_s: list[float] = field(default_factory=list)
    """Seconds from each fault to the last survivor's error."""


class Job:
    """One mpirun of victims.py, and the pipe to which its ranks report."""

    def __init__(self, directory: Path, ranks: int, arguments: Sequence[str], *, survives: bool) -> None:
        os.mkfifo(directory / "pipe")
        self._pipe = os.open(directory / "pipe", os.O_RDWR | os.O_NONBLOCK)  # never at its end, whoever writes
        self._text, self._told = b"", deque[Event]()
        self._log = open(directory / "log", "w+b")  # noqa: SIM115 - closed by __exit__
        self.processes: set[int] = set()
        program = [sys.executable, "-m", "mpi4py", str(Path(__file__).with_name("victims.py"))]
        launcher = ["mpirun", *["--with-ft", "ulfm"] * survives, "-n", str(ranks)]
        self.mpirun = subprocess.Popen(
            [*launcher, *program, "--pipe", str(directory / "pipe"), *arguments],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "OMPI_MCA_btl_sm_backing_directory": str(directory), "TOPOCOMM_TIMEOUT_S": "60"}
            | {"TOPOCOMM_RECORD_DIR": str(directory / "records")},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._log.seek(0)
            sys.stderr.write(self._log.read().decode(errors="replace")[-4000:])
        if self.mpirun.poll() is None:
            self.mpirun.kill()
            self.mpirun.wait()
        for process in self.processes:
            if alive(process):
                os.kill(process, signal.SIGKILL)
        self._log.close()
        os.close(self._pipe)

    def hear(self, phase: int, event: str, count: int, within_s: float) -> list[Event]:
        """Read `count` events of one kind; fail on another kind, or after the time limit."""
        heard: list[Event] = []
        until_s = time.monotonic() + within_s
        while len(heard) < count:
            left_s = until_s - time.monotonic()
            assert left_s > 0, (
                f"phase {phase}: after {within_s:g} s {len(heard)} of {count} ranks say: {event}; {heard}"
            )
            ended = self.mpirun.poll() is not None  # asked first: what ranks said before is in the pipe
            if not self._told and select.select([self._pipe], [], [], min(left_s, 1.0))[0]:
                self._text += os.read(self._pipe, 1 << 16)
                *lines, self._text = self._text.split(b"\n")
                self._told.extend(map(json.loads, lines))
            if self._told:
                told = self._told.popleft()
                assert (told["event"], told["phase"]) == (event, phase), f"expected {event} in {phase}, got {told}"
                heard.append(told)
                self.processes.add(told["process"])
            elif ended:
                raise AssertionError(f"phase {phase}: mpirun has ended before {count} ranks say: {event}; {heard}")
        return heard

    def end(self, within_s: float) -> int:
        """Wait for mpirun and all ranks to end; return mpirun's exit status."""
        status = self.mpirun.wait(within_s)
        until_s = time.monotonic() + within_s
        while left := [process for process in self.processes if alive(process)]:
            assert time.monotonic() < until_s, f"processes are left behind: {left}"
            time.sleep(0.02)
        return status


def alive(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return re.search(r"^State:\s+[ZX]", Path(f"/proc/{process}/status").read_text(), re.MULTILINE) is None
    except OSError:
        return False


def check_kill(event: Event, victim: int) -> None:
    """Check a survivor's error after a kill."""
    named = set(re.findall(r"rank (\d+) has", event["text"]))
    assert (event["kind"], named) == ("RankFailedError", {str(victim)}), f"rank {victim} was killed: {event}"


def check_stop(event: Event, victim: int) -> None:
    """Check a survivor's error after a stop."""
    behind = event["text"].partition("; behind: ")[2]
    assert event["kind"] == "DeadlineError", f"rank {victim} was stopped: {event}"
    assert f"rank {victim} (" in behind, f"rank {victim} was stopped: {event}"


def hit(job: Job, phase: int, ranks: int, rng: np.random.Generator, figures: Figures, stop: bool) -> None:
    """Inject one fault into a random running rank, and check the others' reports."""
    begun = {event["rank"]: event["process"] for event in job.hear(phase, "begins", ranks, BEGIN_WITHIN_S)}
    assert sorted(begun) == list(range(ranks))
    victim = int(rng.integers(ranks))
    time.sleep(rng.uniform(0, LATEST_S))
    os.kill(begun[victim], signal.SIGSTOP if stop else signal.SIGKILL)
    began_s = time.monotonic()
    raised = job.hear(phase, "raised", ranks - 1, WITHIN_S + STOP_LIMIT_S * stop)
    figures.raised_s.append(time.monotonic() - began_s)
    assert sorted(event["rank"] for event in raised) == [rank for rank in range(ranks) if rank != victim]
    for event in raised:
        (check_stop if stop else check_kill)(event, victim)
        figures.calls += event["calls"]
    if stop:
        os.kill(begun[victim], signal.SIGKILL)
    figures.faults += 1


def survive(seed: int, faults: int, figures: Figures, *, stop: bool) -> int:
    """Run a job that continues after each of at most `faults` faults; return their number."""
    rng = np.random.default_rng([seed, stop])
    ranks = int(rng.integers(LEAST_RANKS, MOST_RANKS + 1))
    faults = min(faults, ranks - 1)
    limit_s = STOP_LIMIT_S if stop else KILL_LIMIT_S
    arguments = ["--faults", faults, "--seed", seed, "--way", WAYS[seed % len(WAYS)], "--limit-s", limit_s]
    if seed % ORDERLY_EVERY:
        arguments.append("--at-once")
    with tempfile.TemporaryDirectory() as name, Job(Path(name), ranks, [*map(str, arguments)], survives=True) as job:
        for phase in range(faults):
            hit(job, phase, ranks - phase, rng, figures, stop)
        job.hear(faults, "ends", ranks - faults, BEGIN_WITHIN_S)
        job.end(END_WITHIN_S)
    figures.jobs += 1
    return faults


def perish(seed: int, figures: Figures) -> None:
    """Kill a rank under plain mpirun: the job must end with a status other than 0."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, LEAST_RANKS + 1))
    arguments = ["--faults", "1", "--seed", str(seed), "--way", WAYS[seed % len(WAYS)], "--limit-s", str(KILL_LIMIT_S)]
    with tempfile.TemporaryDirectory() as name, Job(Path(name), ranks, arguments, survives=False) as job:
        begun = job.hear(0, "begins", ranks, BEGIN_WITHIN_S)
        time.sleep(rng.uniform(0, LATEST_S))
        os.kill(begun[int(rng.integers(ranks))]["process"], signal.SIGKILL)
        began_s = time.monotonic()
        status = job.end(WITHIN_S)
        figures.raised_s.append(time.monotonic() - began_s)
        assert status != 0, "a rank was killed and mpirun ends with status 0"
    figures.faults += 1
    figures.jobs += 1


def series(wanted: int, seed: int, *, stop: bool) -> None:
    """Inject faults of one kind up to the wanted number; print the figures."""
    figures, first, began_s = Figures(), seed, time.monotonic()
    plainly = Figures()
    while figures.faults + plainly.faults < wanted:
        try:
            if not stop and plainly.faults < (figures.faults + 1) / PLAIN_EVERY:
                perish(seed, plainly)
            else:
                survive(seed, wanted - figures.faults - plainly.faults, figures, stop=stop)
        except BaseException:
            print(f"FAILED; again with --{'stops' if stop else 'kills'} 5 --seed {seed}", flush=True)
            raise
        seed += 1
    took_s = time.monotonic() - began_s
    what = "stops" if stop else "kills"
    plain = "" if stop else f" and {plainly.faults} under plain mpirun (it ended within {most(plainly):.1f} s)"
    print(
        f"{what}: {figures.faults} survived{plain}, {figures.calls} calls, {figures.jobs + plainly.jobs} jobs of seeds "
        f"{first}..{seed - 1}, {took_s:.0f} s; the last survivor raised after {np.median(figures.raised_s or [0]):.2f} "
        f"s (median), {most(figures):.2f} s (most); no wrong value, no process left",
        flush=True,
    )


def most(figures: Figures) -> float:
    """Return the longest time from a fault to its last effect."""
    return max(figures.raised_s, default=0.0)


def main() -> None:
    """Inject kills, then stops."""
    parser = argparse.ArgumentParser(description="Kill and stop ranks, and see what the others do.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--stops", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    for wanted, stop in ((args.kills, False), (args.stops, True)):
        if wanted:
            series(wanted, args.seed, stop=stop)


if __name__ == "__main__":
    main()
