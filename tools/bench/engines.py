"""The merge by heads of serving engines: ours beside what vLLM and SGLang do for it, in turns, over gloo.

    torchrun --standalone --nproc-per-node P tools/bench/engines.py

Microseconds a call of the slowest rank, median, quartiles and least, and each median over ours. The engines' kernels
are for GPUs. So their messages are made here by torch's own operations on the CPU, in the dtypes in which they go:

    ag_rs       all-gather of lse, out weighted in its dtype, reduce-scatter (vLLM's default)
    ag_rs32     the same with out in float32 (SGLang's for MLA)
    ag_ar       all-gather of lse, out in float32, all-reduce of all heads, a slice (SGLang's for MHA)
    a2a         out and lse in one all-to-all of bytes, merged in float32 (`a2a` of both)

Where SGLang can be imported, `sglang mha` is its own `cp_lse_ag_out_rs_mha` on its own coordinator, which is torch
alone. It writes into its argument, so each call gets a copy. All results are compared with ours before any is timed.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from attention.engines.combine import combine_heads, head_combine
from topocomm.bench.timing import Pace, Timed, measure

SHAPES = ((1, 32, 128), (8, 32, 128), (64, 32, 128), (1, 128, 512), (16, 128, 512))
"""[rows, heads, dim]: of grouped-query models and of DeepSeek's latents; a row is a token of a batch."""
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
LIMIT = timedelta(seconds=300)
WITHIN = {torch.float32: 1e-5, torch.bfloat16: 0.1}
"""Differences that rounding explains: sums in bfloat16 round at each step."""


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(description="The merge by heads beside those of vLLM and SGLang.")
    parser.add_argument("--blocks", type=int, help="timed blocks (default: by time, 20 to 100)")
    parser.add_argument("--calls", type=int, help="calls in a block (default: 1 ms of them); 1 for a busy machine")
    parser.add_argument("--shapes", nargs="+", help="ROWSxHEADSxDIM (default: some of models)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bfloat16"])
    options = parser.parse_args()
    shapes = SHAPES if options.shapes is None else [tuple(map(int, text.split("x"))) for text in options.shapes]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=LIMIT)
    own = sglangs_own() if importlib.util.find_spec("sglang") else None
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, us a call: median (quartiles), least, median over ours")
    for rows, heads, dim in shapes:
        for name in options.dtypes:
            compare((rows, heads, dim), DTYPES[name], own, Pace(options.blocks, calls=options.calls))
    dist.destroy_process_group()


def compare(shape: tuple[int, int, int], dtype: torch.dtype, own: Callable[..., Any] | None, pace: Pace) -> None:
    """Time all ways for one shape and print their row."""
    torch.manual_seed(dist.get_rank())
    out, lse = torch.randn(shape).to(dtype), torch.randn(shape[:2]) * 3 + 12
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "topocomm": lambda: combine_heads(out, lse, dist.group.WORLD),
        "ag_rs": lambda: gather_and_scatter(out, lse, dtype),
        "ag_rs32": lambda: gather_and_scatter(out, lse, torch.float32),
        "ag_ar": lambda: gather_and_reduce(out, lse),
        "a2a": lambda: exchange(out, lse),
    }
    if own is not None:
        ways["sglang mha"] = lambda: own(out.to(torch.float32, copy=True), lse)
    wanted = ways["topocomm"]().float()
    for name, way in ways.items():
        error = (way().float() - wanted).abs().max().item()
        if not error <= WITHIN[dtype]:
            raise SystemExit(f"{name} differs from ours by {error:g}")
    comm = head_combine(dist.group.WORLD).comm
    times = measure(comm, [Timed(way) for way in ways.values()], pace)
    if dist.get_rank():
        return
    print(f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}")
    for name, taken in zip(ways, times, strict=True):
        ratio = taken.median_us / times[0].median_us
        print(f"    {name:12}{taken}, {float(np.min(taken.us)):,.2f}  {ratio:.1f}", flush=True)


def weighted(out: torch.Tensor, lse: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return out times its weight among all ranks, in the dtype, after an all-gather of lse."""
    lses = torch.empty(dist.get_world_size(), *lse.shape)
    dist.all_gather_into_tensor(lses.view(-1, lse.shape[1]), lse)
    weight = torch.exp(lse - torch.logsumexp(lses, 0))
    return (out * weight[..., None]).to(dtype)


def gather_and_scatter(out: torch.Tensor, lse: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`ag_rs`, `ag_rs32`."""
    by_heads = weighted(out, lse, dtype).transpose(0, 1).contiguous()
    part = by_heads.new_empty(by_heads.shape[0] // dist.get_world_size(), *by_heads.shape[1:])
    dist.reduce_scatter_tensor(part, by_heads)
    return part.transpose(0, 1).contiguous().to(out.dtype)


def gather_and_reduce(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """`ag_ar`."""
    whole = weighted(out, lse, torch.float32)
    dist.all_reduce(whole)
    share = out.shape[1] // dist.get_world_size()
    return whole[:, share * dist.get_rank() : share * (dist.get_rank() + 1)].to(out.dtype).contiguous()


def exchange(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """`a2a`."""
    (rows, heads, dim), size = out.shape, dist.get_world_size()
    words = 4 // out.element_size()
    sent = out.new_empty(size, rows, heads // size, dim + words)
    sent[..., :dim] = out.view(rows, size, -1, dim).transpose(0, 1)
    sent[..., dim:] = lse.view(rows, size, -1, 1).transpose(0, 1).contiguous().view(out.dtype)
    got = torch.empty_like(sent)
    dist.all_to_all_single(got.view(-1).view(torch.uint8), sent.view(-1).view(torch.uint8))
    lses = got[..., dim:].contiguous().view(torch.float32)
    weights = torch.softmax(lses, 0)
    return (got[..., :dim].float() * weights).sum(0).to(out.dtype)


def sglangs_own() -> Callable[..., Any]:
    """Return SGLang's merge for MHA on a coordinator of all ranks."""
    parallel_state: Any = importlib.import_module("sglang.srt.distributed.parallel_state")
    merges: Any = importlib.import_module("sglang.srt.layers.dcp.comm")
    kinds = ("pynccl", "mscclpp", "custom_allreduce", "torch_symm_mem_all_reduce", "hpu_communicator")
    off = {f"use_{kind}": False for kind in (*kinds, "xpu_communicator")}
    ranks = list(range(dist.get_world_size()))
    group = parallel_state.GroupCoordinator([ranks], dist.get_rank(), "gloo", **off, group_name="dcp")
    return lambda out, lse: merges.cp_lse_ag_out_rs_mha(out, lse, group)


if __name__ == "__main__":
    main()
