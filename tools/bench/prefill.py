"""Prompts on the CPU: `local_attention` of many queries beside torch's SDPA, in one process.

python tools/bench/prefill.py [--lengths 512,1024,2293,4096] [--dtype bfloat16] [--repeats 9]

SDPA gets what it can express: causality, or a bool mask [queries, keys], and no lse.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from attention import Spec, local_attention
from topocomm.bench.timing import in_turns

MODELS = ((9, 3, 64), (32, 8, 128))
"""Query heads, key heads, head dim."""
AGREE = {"float32": 1e-4, "bfloat16": 2.0**-6, "float16": 2.0**-9}
"""Tolerance, relative to the largest |out|; SDPA rounds more in 16 bits."""
RANKS, WINDOW = 4, 256


class Case(NamedTuple):
    """A call: positions of queries [q_len] and keys [n], and which keys exist [entries, n]."""

    name: str
    spec: Spec
    queries: torch.Tensor
    keys: torch.Tensor
    present: torch.Tensor

    @property
    def visible(self) -> torch.Tensor:
        """Bool [entries, 1, q_len, n]."""
        apart = self.queries[:, None] - self.keys
        seen = (apart >= 0) & self.present[:, None, None]
        return seen if self.spec.window is None else seen & (apart < self.spec.window)


def cases(n: int) -> Iterator[Case]:
    """Prompts of n tokens."""
    causal, tokens, all_there = Spec(causal=True), torch.arange(n), torch.ones(1, n, dtype=torch.bool)
    yield Case("causal", causal, tokens, tokens, all_there)
    part = n // RANKS
    yield Case(f"all queries, rank 1 of {RANKS}", causal, tokens, tokens[part : 2 * part], all_there[:, :part])
    yield Case(f"every {RANKS}th key", causal, tokens, tokens[1::RANKS], all_there[:, 1::RANKS])
    yield Case("ring: keys all in the past", causal, tokens[n - part :], tokens[:part], all_there[:, :part])
    yield Case("2 entries, one half padding", causal, tokens, tokens, torch.stack([tokens >= 0, tokens >= n // 2]))
    yield Case(f"window of {WINDOW}", Spec(causal=True, window=WINDOW), tokens, tokens, all_there)


def compare(n: int, heads: tuple[int, int, int], dtype: torch.dtype, repeats: int) -> None:
    """Print a line for every case."""
    query_heads, kv_heads, dim = heads
    for case in cases(n):
        entries, keys = case.present.shape
        q = torch.randn(entries, query_heads, len(case.queries), dim).to(dtype)
        k, v = (torch.randn(entries, kv_heads, keys, dim).to(dtype) for _ in range(2))
        visible = case.visible
        ways = _ways(case, q, k, v)
        _check(ways[0]().out, ways[1]().float(), visible, AGREE[str(dtype).removeprefix("torch.")])
        ms = in_turns(2, repeats, partial(_processor_us, ways)) / 1e3
        ours, theirs = (float(np.median(one)) for one in ms)
        products = 4 * query_heads * dim * int(visible.sum())
        print(
            f"{query_heads}/{kv_heads} x {dim:<4} {n:>6} {case.name:30} {ours:9.2f} {theirs:9.2f} {theirs / ours:9.2f} "
            f"{products / ours / 1e6:8.1f}",
            flush=True,
        )


def _ways(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Callable[[], Any], ...]:
    """Ours and SDPA."""
    positions: dict[str, Any] = {"q_positions": case.queries, "kv_positions": case.keys, "kv_mask": case.present}
    given: dict[str, Any] = {"is_causal": True} if case.name == "causal" else {"attn_mask": case.visible}
    if bool(case.visible.all()):
        given = {}
    return (
        lambda: local_attention(q, k, v, spec=case.spec, **positions),
        lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True, **given),
    )


def _check(ours: torch.Tensor, theirs: torch.Tensor, visible: torch.Tensor, limit: float) -> None:
    """End the run if results differ; rows that see nothing are NaN or 0 in SDPA."""
    theirs = theirs.masked_fill(~visible.any(-1)[..., None], 0)
    off = float((ours - theirs).abs().max() / ours.abs().max())
    if not off <= limit:
        raise SystemExit(f"local_attention and torch's SDPA differ by {off:.1e}")


def _processor_us(ways: tuple[Callable[[], Any], ...], index: int) -> float:
    """Of this process: others on the machine count less than in time."""
    began_ns = time.process_time_ns()
    ways[index]()
    return (time.process_time_ns() - began_ns) / 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,1024,2293,4096", help="tokens, separated by commas")
    parser.add_argument("--dtype", choices=tuple(AGREE), default="float32", help="of q, K and V (default float32)")
    parser.add_argument("--repeats", type=int, default=9, help="turns (default 9)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"{options.dtype}, one thread, torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), "
        f"{options.repeats} turns; ms of processor time, medians\n"
        f"{'heads x dim':11} {'tokens':>6} {'case':30} {'ours':>9} {'SDPA':>9} {'SDPA/ours':>9} {'GFLOP/s':>8}"
    )
    for heads in MODELS:
        for n in map(int, options.lengths.split(",")):
            compare(n, heads, getattr(torch, options.dtype), options.repeats)


if __name__ == "__main__":
    main()
