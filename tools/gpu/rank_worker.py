"""One process of bench_ranks.py: so many ranks as threads, each with a stream of its own; a line of JSON a payload.

python tools/gpu/rank_worker.py RANKS SECONDS
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from card import Card, Run, the_card
from rank_ways import Way, gather_and_merge, ours, payload, three_allreduces
from results import first_line
from turns import Limit

from attention import LOGSUMEXP, Partial
from topocomm import MAX, Communicator, TopocommError, run_local

NEAR = 1e-5
"""How far other ways may be from ours."""
ALONE = "3 all-reduces alone"
_recording = threading.Lock()


def main() -> int:
    """Measure."""
    ranks, limit = int(sys.argv[1]), Limit(float(sys.argv[2]))
    card = the_card()
    run_local(lambda comm: rank_job(comm, card, limit), ranks=ranks)
    return 0


def rank_job(comm: Communicator, card: Card, limit: Limit) -> None:
    """What each rank does."""
    stream = card.stream()
    with card.on(stream):
        library, why = _library(comm, card)
        for batch in card.sizes.payload_batches:
            if _any(comm, limit.over):
                return
            x = payload(card, batch, comm.rank)
            ways = ours(comm, x)
            if library is not None:
                ways["all-gather + merge"] = gather_and_merge(library, comm.size, x)
                ways["3 all-reduces + rescale"] = three_allreduces(library, x)
                ways[ALONE] = three_allreduces(library, x, arithmetic=False)
            told: dict[str, Any] = {
                "ranks": comm.size,
                "batch": batch,
                "bytes": x.out.nbytes + x.lse.nbytes,
                "raw": why,
            }
            told["wrong"] = _checked(comm, card, x, ways)
            told["eager"] = in_turns(
                comm, card, stream, {name: run for name, (run, _) in ways.items()}, card.sizes.in_graph
            )
            _tell(comm, told)  # what came before a graph that hangs is not lost
            told["graph"], told["graph wrong"] = _in_graphs(comm, card, stream, x, ways)
            _tell(comm, told)
        if library is not None and hasattr(library, "close"):
            card.synchronize()
            library.close()


def _library(comm: Communicator, card: Card) -> tuple[Any, str | None]:
    """NCCL without us, on all ranks or on none, and why not."""
    made, why = None, None
    try:
        made = card.library(comm)
    except (RuntimeError, TopocommError, OSError) as error:
        why = first_line(error)
    return (None, why or "another rank has none") if _any(comm, made is None) else (made, None)


def _checked(comm: Communicator, card: Card, x: Partial, ways: Mapping[str, Way]) -> list[str]:
    """What is wrong with results: ours has the bits of the CPU's ranks, on every rank; others are near."""
    host = {"out": x.out.cpu().numpy().copy(), "lse": x.lse.cpu().numpy().copy()}
    exact = comm.allreduce(host, LOGSUMEXP)
    wrong = []
    for name, (run, result) in ways.items():
        if name == ALONE:
            continue
        run()
        card.synchronize()
        got = [part.cpu().numpy() for part in result()]
        wrong += _differences(name, got, exact)
        if name.startswith("topocomm"):
            first = [part.copy() for part in got]
            run()
            card.synchronize()
            again = all(np.array_equal(a, b.cpu().numpy()) for a, b in zip(first, result(), strict=True))
            wrong += [] if again else [f"{name}: a second call gives other bits"]
    return _all(comm, wrong)


def _differences(name: str, got: list[Any], exact: Mapping[str, Any]) -> list[str]:
    if name.startswith(("topocomm", "all-gather")):
        if all(a.tobytes() == exact[field].tobytes() for a, field in zip(got, ("out", "lse"), strict=True)):
            return []
        if name.startswith("topocomm"):
            return [f"{name}: other bits than ranks in host memory"]
    off = max(float(np.abs(a - exact[field]).max()) for a, field in zip(got, ("out", "lse"), strict=True))
    return [] if off <= NEAR else [f"{name}: {off:.1e} from ranks in host memory, {NEAR:.0e} allowed"]


def _in_graphs(
    comm: Communicator, card: Card, stream: Any, x: Partial, ways: Mapping[str, Way]
) -> tuple[dict[str, list[float]], list[str]]:
    """Times of a call in graphs of several, and what is wrong."""
    graphs: dict[str, Run] = {}
    wrong: list[str] = []
    repeats = card.sizes.in_graph
    for name, (run, result) in ways.items():

        def several(run: Run = run) -> None:
            for _ in range(repeats):
                run()

        before = [part.clone() for part in result()]
        card.synchronize()
        failed = None
        try:
            with _recording:
                graph = card.graph(several, stream)
        except Exception as error:  # noqa: BLE001 - a way that no graph holds is left out
            failed = first_line(error)
        if _any(comm, failed is not None):
            wrong += [f"{name}: {failed}"] if failed else []
            continue
        graph()
        card.synchronize()
        if name != ALONE and not all(torch.equal(a, b) for a, b in zip(before, result(), strict=True)):
            wrong.append(f"{name}: other bits in a graph")
        graphs[name] = graph
    us = in_turns(comm, card, stream, graphs, 2)
    return {name: [one / repeats for one in found] for name, found in us.items()}, _all(comm, wrong)


def in_turns(
    comm: Communicator, card: Card, stream: Any, ways: Mapping[str, Run], calls: int
) -> dict[str, list[float]]:
    """Microseconds per call of the slowest rank: rounds of blocks, each in another order, from a barrier to the end."""
    us = np.zeros((len(ways), card.sizes.rounds))
    runs = list(ways.values())
    for turn in range(-1, card.sizes.rounds):  # the first warms up
        for index in np.random.default_rng(turn + 1).permutation(len(runs)):
            comm.barrier()
            began_ns = time.perf_counter_ns()
            for _ in range(calls):
                runs[index]()
            if stream is not None:
                stream.synchronize()
            us[index, turn] = (time.perf_counter_ns() - began_ns) / calls / 1e3
    slowest = comm.allreduce(us, MAX)
    return {name: row.tolist() for name, row in zip(ways, slowest, strict=True)}


def _any(comm: Communicator, mine: bool) -> bool:
    return bool(comm.allreduce(np.array([mine], np.int64), MAX)[0])


def _all(comm: Communicator, words: list[str]) -> list[str]:
    """What ranks say, each thing once."""
    mine = json.dumps(words).encode()[:2000].ljust(2000)
    said = []
    for note in comm.allgather_bytes(np.frombuffer(mine, np.uint8)):
        with suppress(json.JSONDecodeError):
            said += json.loads(note.tobytes())
    return list(dict.fromkeys(said))


def _tell(comm: Communicator, told: Mapping[str, Any]) -> None:
    if comm.rank == 0:
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main())
