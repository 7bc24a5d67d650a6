"""One decode step over a sharded cache, tree attention beside the other ways: alone or by mpirun -n P.

python tools/bench/decode.py --local                        the CPU kernel beside its bounds and torch's SDPA
mpirun -n P python -m mpi4py tools/bench/decode.py          the ways in turns, by context
mpirun -n 2 python -m mpi4py tools/bench/decode.py --memory peak memory of tree and ring beside the paper's formulas
mpirun -n 2 python -m mpi4py tools/bench/decode.py --verify what verify=True costs
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from decoding.decode_local import compare_local
from decoding.decode_memory import compare_memory
from decoding.decode_verify import compare_verify
from decoding.decode_ways import PEER, Step, gloo, has_peer, other_ways, our_ways
from decoding.peak import growth_bytes
from decoding.reading import reader
from decoding.wire import Counter, by_messages, paper_bytes
from mpi4py import MPI

from attention import local_attention
from attention.decode.communicators import state_of
from topocomm import MAX, Communicator
from topocomm.bench.libraries import MpiLibrary
from topocomm.bench.timing import Pace, Timed, Times, measure
from topocomm.execute.transports.mpi import library_name

LOCAL, FLOOR = "local attention alone", "read K and V"
AGREE = {"float32": 1e-5, "bfloat16": 2.0**-7}
"""Tolerance between methods and tree, relative to the largest |out|."""
SMALL = 16
"""Tokens per rank of the untimed first step, which plans and compiles."""


@dataclass(frozen=True)
class Row:
    """Figures of one method, each of the rank with the greatest.

    Attributes:
        times: Of every block.
        sent_bytes: In one step; None where the transport is not ours, or nothing is sent.
        extra_bytes: Peak memory beyond q, K and V.
        off: Largest difference from tree, over the largest |out|.
    """

    times: Times
    sent_bytes: int | None
    extra_bytes: int | None
    off: float | None


def main() -> None:
    """Measure, and print on rank 0."""
    options = _options()
    world = MPI.COMM_WORLD
    torch.set_num_threads(options.threads or max(1, len(os.sched_getaffinity(0)) // world.size))
    if options.local:
        compare_local(options.mib, options.dim, options.processor, options.repeats or 15)
        return
    comm = Communicator.from_mpi(world)
    if comm.rank == 0:
        cores = len(os.sched_getaffinity(0))
        print(f"{world.size} ranks x {torch.get_num_threads()} threads on {cores} cores, {library_name(MPI)}")
    if options.memory:
        for context in options.contexts or (128_000,):
            compare_memory(comm, context)
    elif options.verify:
        for context in options.contexts or (131_072,):
            compare_verify(comm, _draw(options, context, comm), options.repeats or 192)
    else:
        compare(comm, world, options)


def compare(comm: Communicator, world: MPI.Comm, options: argparse.Namespace) -> None:
    """Measure all methods at every context."""
    if comm.rank == 0:
        print(
            f"{options.heads} heads, {options.kv_heads} KV heads, head dim {options.dim}, {options.dtype}; one query\n"
            f"us per step of the slowest rank, blocks in turns. sent B: by the rank that sends most, counted by the "
            f"transport;\nthe paper's formula: {paper_bytes(comm.size, options.heads, options.dim):,.0f}. "
            "extra MiB: peak memory beyond q, K, V. off: from tree, over the largest |out|"
        )
        if not has_peer():
            print(f"{PEER}: not installed")
    library = MpiLibrary(world)
    with gloo(world):
        small = _draw(options, SMALL * comm.size, comm)
        makers = {**our_ways(comm), **other_ways(library)}
        for make in makers.values():
            make(small)()
        for context in options.contexts or (8192, 32_768, 131_072):
            step = _draw(options, context, comm)
            rows = _measure(comm, step, makers, options.repeats or 30)
            if comm.rank == 0:
                _show(context, step, rows)
            _check(rows, AGREE[options.dtype])
            del step
    library.close()


def _measure(
    comm: Communicator, step: Step, makers: dict[str, Callable[[Step], Callable[[], torch.Tensor]]], blocks: int
) -> dict[str, Row]:
    """Measure bytes, then peaks, then times, so that no measurement sees another's memory."""
    sent_bytes: dict[str, int] = {}
    with by_messages(comm) as twin:
        counter = Counter(twin)
        for name, make in our_ways(twin).items():
            way = make(step)
            way()
            sent_bytes[name] = counter.of(way)
        state_of(twin).clear()
    state_of(comm).pop("ring", None)
    ways, extra_bytes = {}, {}
    for name, make in makers.items():

        def first(make: Callable[[Step], Callable[[], torch.Tensor]] = make, name: str = name) -> torch.Tensor:
            ways[name] = make(step)
            return ways[name]()

        extra_bytes[name] = _most(comm, growth_bytes(first))
    outs = {name: way().float() for name, way in ways.items()}
    largest = float(outs["tree"].abs().max())
    first_two = Timed(reader(step.k, step.v)), Timed(lambda: local_attention(*step))
    read, local, *times = measure(comm, [*first_two, *(Timed(way) for way in ways.values())], Pace(blocks, warmup=1))
    state_of(comm).pop("ring", None)
    rows = {}
    for (name, out), one in zip(outs.items(), times, strict=True):
        off = float((out - outs["tree"]).abs().max()) / largest
        rows[name] = Row(one, sent_bytes.get(name), extra_bytes[name], off)
    return {**rows, LOCAL: Row(local, None, None, None), FLOOR: Row(read, None, None, None)}


def _show(context: int, step: Step, rows: dict[str, Row]) -> None:
    tree_us = rows["tree"].times.percentile_us(50)
    blocks = len(rows["tree"].times.us)
    print(f"\n{context:,} tokens, {step.kv_bytes / 2**20:,.1f} MiB of K and V on rank 0, {blocks} blocks")
    print(f"{'way':24} {'p50 us':>11} {'p99 us':>11} {'/ tree':>7} {'sent B':>14} {'extra MiB':>9} {'off':>8}")
    for name, row in rows.items():
        p50_us, p99_us = (row.times.percentile_us(percent) for percent in (50, 99))
        sent = "-" if row.sent_bytes is None else f"{row.sent_bytes:,}"
        extra = "-" if row.extra_bytes is None else f"{row.extra_bytes / 2**20:.1f}"
        off = "-" if row.off is None else f"{row.off:.1e}"
        print(f"{name:24} {p50_us:11.1f} {p99_us:11.1f} {p50_us / tree_us:7.2f} {sent:>14} {extra:>9} {off:>8}")


def _check(rows: dict[str, Row], limit: float) -> None:
    """End the run if a method's result differs from tree."""
    wrong = {name: row.off for name, row in rows.items() if row.off is not None and not row.off <= limit}
    wrong.pop(PEER, None)  # in 16 bits it rounds more often
    if wrong:
        raise SystemExit(f"differ from tree by more than {limit:g}: {wrong}")


def _draw(options: argparse.Namespace, context: int, comm: Communicator) -> Step:
    """Draw normal q, the same on all ranks, and this rank's K and V, an equal share of the tokens."""
    dtype = getattr(torch, options.dtype)
    q = torch.randn(1, options.heads, 1, options.dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    n = (comm.rank + 1) * context // comm.size - comm.rank * context // comm.size
    random = torch.Generator().manual_seed(1 + comm.rank)
    k, v = (torch.randn(1, options.kv_heads, n, options.dim, generator=random, dtype=dtype) for _ in range(2))
    return Step(q, k, v)


def _most(comm: Communicator, mine: int) -> int:
    return int(comm.allreduce(np.array([mine]), MAX)[0])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--local", action="store_true", help="the kernel of one process")
    mode.add_argument("--memory", action="store_true", help="peak memory")
    mode.add_argument("--verify", action="store_true", help="what verify=True costs")
    parser.add_argument("--contexts", type=_contexts, help="tokens: one number, or FROM:TO:FACTOR (8192:131072:4)")
    parser.add_argument("--dtype", choices=tuple(AGREE), default="float32", help="of q, K and V (default float32)")
    parser.add_argument("--heads", type=int, default=32, help="query heads (default 32)")
    parser.add_argument("--kv-heads", type=int, default=8, help="key and value heads (default 8)")
    parser.add_argument("--dim", type=int, default=128, help="numbers per head (default 128)")
    parser.add_argument("--mib", type=int, default=1024, help="K and V with --local (default 1024)")
    parser.add_argument("--processor", help="with --local: the kernel of another, such as avx2 (default the best)")
    parser.add_argument("--threads", type=int, help="of each rank (default its share of the cores)")
    parser.add_argument("--repeats", type=int, help="blocks (30; --local 15), or calls of --verify (192)")
    return parser.parse_args()


def _contexts(text: str) -> tuple[int, ...]:
    parts = text.split(":")
    if len(parts) not in (1, 3) or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected a number of tokens or FROM:TO:FACTOR, got {text!r}")
    first, last, factor = (int(part) for part in (parts if len(parts) == 3 else (text, text, "2")))
    if not 1 <= first <= last or factor < 2:
        raise argparse.ArgumentTypeError(f"expected 1 <= FROM <= TO and FACTOR >= 2, got {text!r}")
    found = []
    while first <= last:
        found.append(first)
        first *= factor
    return tuple(found)


if __name__ == "__main__":
    main()
