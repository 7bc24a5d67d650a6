"""Time of a merge of partials between several ranks on one GPU, by topocomm and by NCCL alone.

python tools/gpu/bench_ranks.py [OUT] [--seconds S]

Ranks are threads with streams of their own in one process, since processes would take turns on the GPU. NCCL takes that
from 2.30 on; NCCL_DIR names a folder that has such a one, see carried_nccl.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from card import Card, the_card
from harness.targets import ALLREDUCES, UNMEASURED, Goal
from harness.turns import Limit
from harness.workers import kill
from nccl_files.carried_nccl import libraries_in
from results import Results, first_line, program

from topocomm.bench.timing import Times

ENVIRONMENT = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_MAX_CTAS": "2",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_MODULE_LOADING": "EAGER",
    "TOPOCOMM_TIMEOUT_S": "20",
}
"""Few CTAs and many queues to the card, 8 if nothing is said, so that the kernels of all ranks are there at once: one
that waits for room, or behind another's in a queue, is awaited forever. Kernels of libraries are loaded before, since
loading one waits for those that run."""
HALF_S = 13.0
"""What a process may take for what it has begun: the half of a payload, eager or in graphs, or its own start."""
CHECK_S = 60.0
"""What two ranks may take for one small collective, the start of their process included."""
OVERTIME_S = 5.0
"""Of it so much beyond a process's share, which the program's limit allows for."""
THREE = "3 all-reduces + rescale"
NOTE = "One GPU, no link was crossed."


def work(results: Results, limit: Limit, args: argparse.Namespace) -> None:
    """Every number of ranks in a process of its own, so that one that hangs stops no other."""
    del args
    card = the_card()
    goals: list[Goal] = []
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, **ENVIRONMENT, **_preloaded(results, Path(scratch))}
        counts = card.sizes.ranks
        for place, ranks in enumerate(counts):
            share = limit.left_s / (len(counts) - place)
            with results.guarded(f"{ranks} ranks"):
                goals += _ranks(results, card, ranks, share, environment)
                results.goals(goals, NOTE)
    results.goals(goals, NOTE, said=True)


def _preloaded(results: Results, scratch: Path) -> dict[str, str]:
    """Return the environment in which an NCCL that was brought along, and works here, comes before all others.

    A packed library has the code of one architecture: whether it works is seen before anything is measured with it, and
    the wheel comes next where it lies there too.
    """
    folder = os.environ.get("NCCL_DIR")
    if not folder:
        return {}
    said: list[str] = []
    with results.guarded("NCCL_DIR"):
        for what, library in libraries_in(Path(folder), scratch):
            preloaded = {"LD_PRELOAD": ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))}
            version, fault = _tried(preloaded)
            if fault is None:
                results.note(
                    f"NCCL {version} of NCCL_DIR, {what}, works between two ranks on this card. {' '.join(said)}"
                )
                return preloaded
            said.append(f"NCCL_DIR, {what}: {fault}.")
        results.check("NCCL_DIR", f"no library in it works. {' '.join(said)}")
    return {}


def _tried(preloaded: Mapping[str, str]) -> tuple[str, str | None]:
    """(version, why it does not work or None) of a library, in a process of its own."""
    python = os.environ.get("PYTHON", sys.executable).split()
    command = [*python, str(Path(__file__).with_name("nccl_check.py"))]
    environment = {**os.environ, **ENVIRONMENT, **preloaded}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=CHECK_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return "", f"two ranks did not end within {CHECK_S:g} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return "", first_line(RuntimeError(lines[-1]))
    return done.stdout.split()[-1], None


def _ranks(results: Results, card: Card, ranks: int, seconds: float, environment: Mapping[str, str]) -> list[Goal]:
    python = environment.get("PYTHON", sys.executable).split()
    last = seconds + OVERTIME_S
    until_s = Limit(last - HALF_S).until_s
    command = [*python, str(Path(__file__).with_name("rank_worker.py")), str(ranks), str(until_s)]
    told: dict[int, Any] = {}
    goals: dict[int, list[Goal]] = {}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        for line in _lines(process, Limit(last)):
            one = json.loads(line)
            told[one["batch"]], goals[one["batch"]] = one, _table(results, card, one)  # the last word on a payload
            results.data(f"{ranks} ranks", list(told.values()))
        status = process.wait(HALF_S)
        results.check(f"{ranks} ranks", f"status {status}" if status else None)
    except TimeoutError:
        results.check(f"{ranks} ranks", f"did not end within {last:.0f} s")
    finally:
        kill(process)
    for one in told.values():
        _checked(results, _title(card, one), one)
    results.check(f"{ranks} ranks, payloads", None if told else "none was measured")
    return [goal for some in goals.values() for goal in some]


def _lines(process: subprocess.Popen[str], limit: Limit) -> Iterator[str]:
    """Yield the lines of JSON that a process prints, as they come; others go to the log.

    Raises:
        TimeoutError: It goes on beyond the limit.
    """
    lines: Queue[str | None] = Queue()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=limit.left_s)
        except Empty:
            raise TimeoutError from None
        if line is None:
            return
        if line.startswith("{") and line.endswith("\n"):
            yield line
        else:  # NCCL says what it has to say there too
            print(line.rstrip(), flush=True)


def _table(results: Results, card: Card, told: Mapping[str, Any]) -> list[Goal]:
    title = _title(card, told)
    eager = {name: Times(us) for name, us in told["eager"].items()}
    graph = {name: Times(us) for name, us in told.get("graph", {}).items()}
    rows = [(name, one, graph.get(name, "-")) for name, one in eager.items()]
    note = f"{NOTE} us per call of the slowest rank: median (quartiles)."
    if told["raw"]:
        note += f" NCCL alone was not measured: {told['raw']}."
    results.table(title, ["way", "eager", "in a graph"], rows, note)
    best = min((one.median_us for name, one in graph.items() if name.startswith("topocomm")), default=None)
    target = f">= {ALLREDUCES:g} x {THREE}"
    key = f"ranks {told['ranks']}" if told["batch"] == card.sizes.payload_batches[0] else ""
    if best is None or THREE not in graph:
        return [Goal(f"{title}, in graphs", target, UNMEASURED, UNMEASURED, key)]
    ratio = graph[THREE].median_us / best
    met = UNMEASURED if card.interpreted else "yes" if ratio >= ALLREDUCES else "no"
    return [Goal(f"{title}, in graphs", target, f"{ratio:.2f} x", met, key)]


def _title(card: Card, told: Mapping[str, Any]) -> str:
    heads, _, dim = card.sizes.heads
    return f"{told['ranks']} ranks, {told['batch']} x {heads} heads x {dim} float32, {told['bytes']:,} bytes a rank"


def _checked(results: Results, title: str, told: Mapping[str, Any]) -> None:
    """Return the distinct faults of a payload's results."""
    wrong = [*told["wrong"], *told.get("graph wrong", ())]
    results.checks([(title, words) for words in wrong])
    results.check(f"{title}: bits", None if not told["wrong"] else "see above")


if __name__ == "__main__":
    sys.exit(program("bench_ranks", "Several ranks on one GPU", work))
