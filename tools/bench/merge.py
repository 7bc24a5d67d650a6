"""One decode step's merge of partials, 32 heads x 128 float32, beside its alternatives (mpirun -n P).

Every method runs in blocks of 200 calls, all methods in turn, block after block; a block's time per call is that of
the slowest rank. Printed are the median over the blocks and the quartiles, in microseconds, and the ratio to ours.

    ours          comm.allreduce({"out", "lse"}, LOGSUMEXP): value in, new value out
    ours prepared the same call prepared, the partial already in its send buffer, into an array that is reused
    three         the paper's three all-reduces (MAX, SUM, SUM) with the NumPy rescale between
    three bare    the three all-reduces alone, without the arithmetic
    gather        all-gather of the packed partials, then a local merge in NumPy
    floor         one persistent exchange of the same bytes with one neighbour, no merge
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import topocomm
from attention import LOGSUMEXP

HEADS, DIM = 32, 128
BLOCKS, CALLS = 40, 200
WARM_BLOCKS = 5

Method = Callable[[], Any]


def methods(world: MPI.Comm) -> dict[str, Method]:
    """The merge in every way, on the same data."""
    rng = np.random.default_rng(world.rank)
    out = rng.standard_normal((HEADS, DIM), dtype=np.float32)
    lse = rng.standard_normal(HEADS).astype(np.float32)
    comm = topocomm.Communicator.from_mpi(world)
    value = {"out": out, "lse": lse}
    call = comm.prepare("allreduce", like=value, operator=LOGSUMEXP)
    result = {"out": np.empty_like(out), "lse": np.empty_like(lse)}
    for _ in range(2):  # send buffers take turns
        call.input["out"][...], call.input["lse"][...] = out, lse
        call(call.input, out=result)
    if world.rank == 0:
        print(comm.explain("allreduce", like=value, operator=LOGSUMEXP).summary())
    return {
        "ours": lambda: comm.allreduce(value, LOGSUMEXP),
        "ours prepared": lambda: call(call.input, out=result),
        **three_allreduces(world, out, lse),
        "gather": gather_and_merge(world, out, lse),
        "floor": floor(world),
    }


def three_allreduces(world: MPI.Comm, out: Any, lse: Any) -> dict[str, Method]:
    """Algorithm 3 of the Tree Attention paper, and its communication alone."""
    column = lse[:, None]
    highest, weight, total = np.empty_like(column), np.empty_like(column), np.empty_like(out)

    def with_rescale() -> Any:
        world.Allreduce(column, highest, op=MPI.MAX)
        denominator = np.exp(column - highest)
        numerator = out * denominator
        world.Allreduce(MPI.IN_PLACE, denominator)
        world.Allreduce(MPI.IN_PLACE, numerator)
        return numerator / denominator

    def bare() -> None:
        world.Allreduce(column, highest, op=MPI.MAX)
        world.Allreduce(column, weight)
        world.Allreduce(out, total)

    return {"three": with_rescale, "three bare": bare}


def gather_and_merge(world: MPI.Comm, out: Any, lse: Any) -> Method:
    """Every rank gets every partial and merges them."""
    packed = np.concatenate([out, lse[:, None]], axis=1)
    everyone = np.empty((world.size, *packed.shape), np.float32)

    def run() -> Any:
        world.Allgather(packed, everyone)
        logs = everyone[..., -1:]
        weights = np.exp(logs - logs.max(0))
        return np.einsum("phd,ph->hd", everyone[..., :-1], weights[..., 0]) / weights.sum(0)

    return run


def floor(world: MPI.Comm) -> Method:
    """One exchange of the packed bytes with the neighbour rank ^ 1; the last of an odd number sits out."""
    send = np.zeros((HEADS, DIM + 1), np.float32)
    receive = np.empty_like(send)
    peer = world.rank ^ 1
    requests: list[Any] = []
    if peer < world.size:
        requests = [world.Recv_init(receive, peer), world.Send_init(send, peer)]

    def run() -> None:
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)

    return run


def measure(world: MPI.Comm, found: dict[str, Method]) -> dict[str, Any]:
    """Microseconds per call of every block, slowest rank."""
    times: dict[str, list[float]] = {name: [] for name in found}
    for block in range(WARM_BLOCKS + BLOCKS):
        for name, method in found.items():
            world.Barrier()
            began = time.perf_counter()
            for _ in range(CALLS):
                method()
            elapsed = world.allreduce((time.perf_counter() - began) / CALLS * 1e6, op=MPI.MAX)
            if block >= WARM_BLOCKS:
                times[name].append(elapsed)
    return {name: np.array(values) for name, values in times.items()}


def main() -> None:
    """Measure, and print on rank 0."""
    world = MPI.COMM_WORLD
    if world.size < 2:
        sys.exit("merge.py compares ways to merge between ranks: run it with mpirun -n 2 or more")
    times = measure(world, methods(world))
    if world.rank:
        return
    cores = len(os.sched_getaffinity(0))
    crowded = f"MORE RANKS THAN CORES ({cores})" if world.size > cores else f"{cores} cores"
    library = MPI.Get_library_version().split(",")[0]
    print(f"merge of {HEADS} x {DIM} float32 partials, {world.size} ranks, {crowded}, {library}")
    print(f"{BLOCKS} interleaved blocks of {CALLS} calls; us per call, slowest rank")
    print(f"{'method':14} {'median':>8} {'q1':>8} {'q3':>8} {'/ ours':>7} {'/ floor':>8}")
    ours, least = np.median(times["ours"]), np.median(times["floor"])
    for name, values in times.items():
        q1, middle, q3 = np.percentile(values, [25, 50, 75])
        print(f"{name:14} {middle:8.1f} {q1:8.1f} {q3:8.1f} {middle / ours:7.2f} {middle / least:8.2f}")


if __name__ == "__main__":
    main()
