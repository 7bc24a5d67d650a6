"""Several ranks on one GPU: what a merge of partials between them takes, by topocomm and by NCCL alone.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from card import Card, the_card
from carried_nccl import libraries_in
from results import Results, first_line, program
from targets import ALLREDUCES, UNMEASURED, Goal
from turns import Limit, Times

ENVIRONMENT = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_MAX_CTAS": "2",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "TOPOCOMM_TIMEOUT_S": "20",
}
"""Few CTAs and many queues to the card, 8 if nothing is said, so that the kernels of all ranks are there at once: one
that waits for room, or behind another's in a queue, is awaited forever."""
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
    hung = False
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=last, check=False)
        said, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        given = error.stdout or b""
        said, status, hung = given.decode() if isinstance(given, bytes) else given, -1, True
    told = {one["batch"]: one for one in map(json.loads, said.splitlines())}  # the last word on each payload
    results.data(f"{ranks} ranks", list(told.values()))
    results.check(
        f"{ranks} ranks",
        f"did not end within {last:.0f} s" if hung else f"status {status}" if status else None,
    )
    results.check(f"{ranks} ranks, payloads", None if told else "none was measured")
    goals: list[Goal] = []
    for one in told.values():
        goals += _table(results, card, one)
    return goals


def _table(results: Results, card: Card, told: Mapping[str, Any]) -> list[Goal]:
    heads, _, dim = card.sizes.heads
    title = f"{told['ranks']} ranks, {told['batch']} x {heads} heads x {dim} float32, {told['bytes']:,} bytes a rank"
    eager = {name: Times(us) for name, us in told["eager"].items()}
    graph = {name: Times(us) for name, us in told.get("graph", {}).items()}
    rows = [(name, one, graph.get(name, "-")) for name, one in eager.items()]
    note = f"{NOTE} us per call of the slowest rank: median (quartiles)."
    if told["raw"]:
        note += f" NCCL alone was not measured: {told['raw']}."
    results.table(title, ["way", "eager", "in a graph"], rows, note)
    for words in (*told["wrong"], *told.get("graph wrong", ())):
        results.check(title, words)
    results.check(f"{title}: bits", None if not told["wrong"] else "see above")
    best = min((one.median_us for name, one in graph.items() if name.startswith("topocomm")), default=None)
    target = f">= {ALLREDUCES:g} x {THREE}"
    key = f"ranks {told['ranks']}" if told["batch"] == card.sizes.payload_batches[0] else ""
    if best is None or THREE not in graph:
        return [Goal(f"{title}, in graphs", target, UNMEASURED, UNMEASURED, key)]
    ratio = graph[THREE].median_us / best
    met = UNMEASURED if card.interpreted else "yes" if ratio >= ALLREDUCES else "no"
    return [Goal(f"{title}, in graphs", target, f"{ratio:.2f} x", met, key)]


if __name__ == "__main__":
    sys.exit(program("bench_ranks", "Several ranks on one GPU", work))
