"""`python -m attention decode`: one decode step over a long synthetic cache, each method checked and timed.

Every rank makes its own part of the keys and values only. The methods take turns, step by step, so that what else
the machine does hits all alike. Standard output holds the table; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from attention.jobs.job_launch import (
    OK,
    WORK_FAILED,
    InputError,
    add_device,
    check_device,
    device_of_rank,
    positive,
    say,
    tokens,
)
from topocomm import MAX, SUM

if TYPE_CHECKING:
    import torch

    from attention.jobs.synthetic import Sizes
    from topocomm import Communicator, Plan

METHODS = ("tree", "ring", "allreduce")
WARM_UP_STEPS = 2
ERROR_LIMIT = 1e-5
"""Largest accepted error against float64, in units of the largest |partial out| of a rank."""


@dataclass(frozen=True)
class Decoded:
    """What one rank brings back; all figures but `outs` are over all ranks."""

    latencies_us: np.ndarray[Any, np.dtype[np.float64]]
    """[method, step]: of the slowest rank, from a barrier on."""
    outs: tuple[torch.Tensor, ...]
    """Per method, the output of the sampled heads [batch, sampled, 1, head_dim]."""
    same_bits: tuple[bool, ...]
    """Per method, whether all ranks hold the same bits."""
    wire_bytes: tuple[int, ...]
    """Per method, the payload bytes of one step's messages."""
    partial_max: float
    """Largest |out| of a rank's partial result."""
    shard_bytes: int
    peak_bytes: int
    """Peak resident memory of the largest process."""
    plan: str


def add_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("decode", help="check and time one decode step", description=__doc__)
    parser.add_argument("--context", type=tokens, default=131_072, help="keys, as 128K (default 131072)")
    parser.add_argument("--heads", type=positive, default=32, help="query heads (default 32)")
    parser.add_argument("--kv-heads", type=positive, default=8, help="key and value heads (default 8)")
    parser.add_argument("--head-dim", type=positive, default=128, help="numbers per head (default 128)")
    parser.add_argument("--batch", type=positive, default=1, help="sequences (default 1)")
    parser.add_argument("--method", choices=(*METHODS, "all"), default="all", help="default: all, taking turns")
    parser.add_argument("--steps", type=positive, default=30, help="timed steps per method (default 30)")
    add_device(parser)
    parser.add_argument("--ranks", type=positive, help="run on this many threads, without mpirun")
    parser.set_defaults(job=DecodeJob)


class DecodeJob:
    """The job; see `attention.jobs.job_launch.Job`."""

    name = "attention decode"

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.methods = METHODS if options.method == "all" else (options.method,)
        self.sizes: Sizes
        heads = options.heads
        self.sampled = sorted({0, heads // 2, heads - 1})
        """The query heads that are checked."""

    def prepare(self, ranks: int) -> None:
        """Check the sizes.

        Raises:
            InputError: The heads do not divide, or there is no GPU to run on.
        """
        o = self.options
        check_device(o.device, ranks)
        if o.heads % o.kv_heads:
            raise InputError(f"--heads {o.heads} must be a multiple of --kv-heads {o.kv_heads}")
        from attention.jobs.synthetic import Sizes

        self.sizes = Sizes(o.context, o.batch, o.heads, o.kv_heads, o.head_dim)

    def work(self, comm: Communicator, cpu_threads: int) -> Decoded:
        """Decode on this rank."""
        import torch

        from attention.cache.shards import ShardMap
        from attention.decode.three_allreduce import three_allreduce_decode
        from attention.decode.tree_decode import tree_decode
        from attention.jobs.synthetic import queries, shard
        from attention.local.dispatch import local_attention
        from attention.ring.ring_decode import ring_decode

        torch.set_num_threads(cpu_threads)
        device = device_of_rank(comm, self.options.device)
        q = queries(self.sizes).to(device)
        k, v = (x.to(device) for x in shard(self.sizes, ShardMap(comm.size), comm.rank))
        methods: dict[str, Callable[..., Any]] = {
            "tree": tree_decode,
            "ring": ring_decode,
            "allreduce": three_allreduce_decode,
        }
        calls = [partial(methods[name], q, k, v, comm) for name in self.methods]
        latencies_us, outs = self._time(calls, comm)
        own = local_attention(q, k, v, exact="float32").out
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        partial_max, peak_bytes = comm.allreduce(np.array([float(own.abs().max()), peak_kib * 1024]), MAX)
        return Decoded(
            latencies_us=comm.allreduce(latencies_us, MAX),
            outs=tuple(out[:, self.sampled].cpu().clone() for out in outs),
            same_bits=tuple(_same_bits(out, comm) for out in outs),
            wire_bytes=tuple(_wire_bytes(method, self.sizes, comm) for method in self.methods),
            partial_max=float(partial_max),
            shard_bytes=k.nbytes + v.nbytes,
            peak_bytes=int(peak_bytes),
            plan=explain_merge(comm, q.shape[0], q.shape[1], q.shape[3]).summary(),
        )

    def report(self, result: Decoded) -> int:
        """Print the table."""
        from attention.jobs.synthetic import exact

        s = self.sizes
        say("check: the sampled heads in float64 ...")
        expected = exact(s, self.sampled)
        heads = ", ".join(map(str, self.sampled))
        devices = "" if self.options.device == "cpu" else ", on GPUs"
        lines = (
            f"context {s.context:,}, batch {s.batch}, {s.heads} heads, {s.kv_heads} KV heads, head dim {s.head_dim}"
            f"{devices}",
            f"float32 keys and values: {s.kv_bytes:,} bytes, {result.shard_bytes:,} on rank 0",
            f"peak memory of a process, all methods: {result.peak_bytes:,} bytes",
            f"plan of tree: {result.plan}",
            f"latency: of the slowest rank, {self.options.steps} steps",
            "wire_bytes: payload of one step's messages",
            f"error: against float64, heads {heads}, over the largest |partial out|; limit {ERROR_LIMIT:g}",
        )
        for line in lines:
            print("\n".join(wrap(line, 80, subsequent_indent="  ", break_on_hyphens=False)))
        print(f"\n{'method':<10}{'p50_us':>12}{'p99_us':>12}{'wire_bytes':>16}{'error':>11}  bits on all ranks")
        worst = 0.0
        for i, method in enumerate(self.methods):
            error = float((result.outs[i].double() - expected).abs().max()) / result.partial_max
            worst = max(worst, error)
            p50_us, p99_us = np.percentile(result.latencies_us[i], [50, 99])
            bits = "the same" if result.same_bits[i] else "differ"
            print(f"{method:<10}{p50_us:>12.1f}{p99_us:>12.1f}{result.wire_bytes[i]:>16,}{error:>11.1e}  {bits}")
        if worst <= ERROR_LIMIT:
            return OK
        say(f"{self.name}: error: the result is off by {worst:.1e}, more than {ERROR_LIMIT:g}")
        return WORK_FAILED

    def _time(self, calls: list[Any], comm: Communicator) -> tuple[Any, list[torch.Tensor]]:
        import torch
        from tqdm import trange

        latencies_us = np.zeros((len(calls), self.options.steps))
        outs = [call() for _ in range(WARM_UP_STEPS) for call in calls][-len(calls) :]
        for step in trange(self.options.steps, desc="decode", unit="step", disable=comm.rank != 0):
            for i, call in enumerate(calls):
                comm.barrier()
                began_s = time.perf_counter()
                outs[i] = call()
                if outs[i].is_cuda:
                    torch.cuda.synchronize(outs[i].device)
                latencies_us[i, step] = (time.perf_counter() - began_s) * 1e6
        return latencies_us, outs


def _wire_bytes(method: str, sizes: Sizes, comm: Communicator) -> int:
    """Payload bytes that all ranks together send in one step, by the plans."""
    if method == "ring":
        return (comm.size - 1) * sizes.kv_bytes
    if method == "tree":
        return explain_merge(comm, sizes.batch, sizes.heads, sizes.head_dim).figures.wire_bytes
    out = np.zeros((sizes.batch, sizes.heads, 1, sizes.head_dim), np.float32)
    calls = ((out[..., 0], MAX), (out, SUM), (out[..., 0], SUM))
    return sum(comm.explain("allreduce", like=x, operator=op).figures.wire_bytes for x, op in calls)


def explain_merge(comm: Communicator, batch: int, heads: int, head_dim: int) -> Plan:
    """Return the plan of one decode step's reduction."""
    from attention.merge.logsumexp import LOGSUMEXP

    rows = (batch, heads, 1)
    like = {"out": np.zeros((*rows, head_dim), np.float32), "lse": np.zeros(rows, np.float32)}
    return comm.explain("allreduce", like=like, operator=LOGSUMEXP)


def _same_bits(out: torch.Tensor, comm: Communicator) -> bool:
    digest = hashlib.blake2b(out.contiguous().cpu().numpy().tobytes(), digest_size=16).digest()
    records = comm.allgather_bytes(np.frombuffer(digest, np.uint8))
    return all((record == records[0]).all() for record in records)
