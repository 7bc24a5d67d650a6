"""One process of bench_ranks.py: so many ranks as threads, each with a stream of its own; a line of JSON a payload.

python tools/gpu/rank_worker.py RANKS UNTIL

UNTIL is the time, of time.monotonic(), after which nothing new is begun.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from card import Card, Run, the_card
from harness.turns import Limit
from problems.rank_ways import Way, by_nccl, ours, payload
from results import first_line

from attention import LOGSUMEXP, Partial
from topocomm import MAX, Communicator, TopocommError, run_local
from topocomm.bench.timing import Pace, Timed, measure

NEAR = 1e-5
"""Tolerance between other methods and ours."""
_recording = threading.Lock()


def main() -> int:
    """Measure."""
    ranks, limit = int(sys.argv[1]), Limit.until(float(sys.argv[2]))
    card = the_card()
    run_local(lambda comm: rank_job(comm, card, limit), ranks=ranks)
    return 0


def rank_job(comm: Communicator, card: Card, limit: Limit) -> None:
    """Run one rank."""
    stream = card.stream()
    with card.on(stream):
        library, why = _library(comm, card)
        for place, batch in enumerate(card.sizes.payload_batches):
            if place and _any(comm, limit.over):
                break
            x = payload(card, batch, comm.rank)
            ways = ours(comm, x)
            if library is not None:
                ways |= by_nccl(comm, card, library, x)
            told: dict[str, Any] = {
                "ranks": comm.size,
                "batch": batch,
                "bytes": x.out.nbytes + x.lse.nbytes,
                "raw": why,
            }
            told["wrong"] = _checked(comm, stream, x, ways)
            eager = {name: way.run for name, way in ways.items()}
            told["eager"] = _timed(comm, card, stream, eager, card.sizes.in_graph)
            _tell(comm, told)  # what came before a graph that hangs is not lost
            if _any(comm, limit.over):
                break
            told["graph"], told["graph wrong"] = _in_graphs(comm, card, stream, x, ways)
            _tell(comm, told)
        if library is not None:
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


def _checked(comm: Communicator, stream: Any, x: Partial, ways: Mapping[str, Way]) -> list[str]:
    """What is wrong with results: ours has the bits of ranks in host memory by the same plan; others are near.

    A rank waits for its own stream only: on the card may be a kernel of another's next call, which waits for this rank.
    """
    host = {"out": x.out.cpu().numpy().copy(), "lse": x.lse.cpu().numpy().copy()}
    near: Any = comm.allreduce(host, LOGSUMEXP)
    wrong = []
    for name, way in ways.items():
        if not way.merges:
            continue
        way.run()
        _through(stream)
        got = Partial(*(part.cpu().numpy().copy() for part in way.result()))
        if way.plan is None:
            off = max(float(np.abs(a - near[field]).max()) for field, a in got._asdict().items())
            wrong += [] if off <= NEAR else [f"{name}: {off:.1e} from ranks in host memory, {NEAR:.0e} allowed"]
            continue
        exact: Any = comm.prepare("allreduce", like=host, operator=LOGSUMEXP, plan=way.plan)(host)
        same = all(a.tobytes() == exact[field].tobytes() for field, a in got._asdict().items())
        wrong += [] if same else [f"{name}: other bits than ranks in host memory by the same plan"]
        way.run()
        _through(stream)
        again = all(a.tobytes() == b.cpu().numpy().tobytes() for a, b in zip(got, way.result(), strict=True))
        wrong += [] if again else [f"{name}: a second call gives other bits"]
    return _all(comm, wrong)


def _in_graphs(
    comm: Communicator, card: Card, stream: Any, x: Partial, ways: Mapping[str, Way]
) -> tuple[dict[str, list[float]], list[str]]:
    """Times of a call in graphs of several, and what is wrong."""
    graphs: dict[str, Run] = {}
    wrong: list[str] = []
    repeats = card.sizes.in_graph
    for name, way in ways.items():

        def several(run: Run = way.run) -> None:
            for _ in range(repeats):
                run()

        before = [part.clone() for part in way.result()]
        _through(stream)
        comm.barrier()  # a rank that waits for the card while another records makes the graph invalid
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
        _through(stream)
        if way.merges and not all(torch.equal(a, b) for a, b in zip(before, way.result(), strict=True)):
            wrong.append(f"{name}: other bits in a graph")
        graphs[name] = graph
    us = _timed(comm, card, stream, graphs, 2)
    return {name: [one / repeats for one in found] for name, found in us.items()}, _all(comm, wrong)


def _timed(comm: Communicator, card: Card, stream: Any, ways: Mapping[str, Run], calls: int) -> dict[str, list[float]]:
    """Microseconds per call of the slowest rank, by name: of blocks of so many calls, to the end of their work."""
    timed = [Timed(run, finish=lambda: _through(stream)) for run in ways.values()]
    times = measure(comm, timed, Pace(card.sizes.rounds, warmup=calls, calls=calls))
    return {name: [float(us) for us in one.us] for name, one in zip(ways, times, strict=True)}


def _through(stream: Any) -> None:
    """Wait for this rank's own work; the stand-in has no stream."""
    if stream is not None:
        stream.synchronize()


def _any(comm: Communicator, mine: bool) -> bool:
    return bool(comm.allreduce(np.array([mine], np.int64), MAX)[0])


def _all(comm: Communicator, words: list[str]) -> list[str]:
    """Return the ranks' distinct messages."""
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
