"""The CPU kernel alone, beside its two lower bounds, reading K and V and multiply-adds, and torch's SDPA."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from attention import local_attention
from attention.local import compiled_attention
from decoding.decode_ways import Step
from decoding.multiply_adds import MultiplyAdds
from decoding.reading import reader
from topocomm.bench.timing import Timed, block_us, in_turns

HEADS = ((8, 4), (32, 1), (2, 8), (1, 32))
"""Key heads, and query heads for each."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
AGREE = {torch.float32: 1e-4, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
"""Tolerance between SDPA, which rounds more, and our kernel, relative to the largest |out|."""


def compare_local(mib: int, dim: int, processor: str | None, repeats: int) -> None:
    """Print one line for every dtype and number of heads; processor: the kernel's, None: the best."""
    if processor is not None:
        kernel = SimpleNamespace(attend=partial(compiled_attention._kernel().attend, processor=processor))
        compiled_attention._kernel = lambda: kernel  # type: ignore[assignment]
    products = MultiplyAdds(processor)
    print(
        f"{mib} MiB of K and V, head dim {dim}, kernel for {processor or 'this processor'}, one query, "
        f"{torch.get_num_threads()} threads, {repeats} turns\n"
        "ms: median (quartiles). GB/s: of K and V. read: their memory summed, by as many threads\n"
        "madd/B: multiply-adds for a byte of K and V. Gmadd/s: independent ones by as many threads; ours\n"
        "bound: which of the two takes longer alone; of bound: that time over ours\n"
        f"{'dtype':9} {'KV x query heads':>16} {'keys':>10} {'read ms':>24} {'ours ms':>24} {'SDPA ms':>26} "
        f"{'read':>6} {'ours':>6} {'ours/read':>9} {'madd/B':>6} {'Gmadd/s':>7} {'ours':>6} {'ours/madd':>9} "
        f"{'bound':>6} {'of bound':>8} {'SDPA/ours':>9}"
    )
    for dtype in DTYPES:
        for kv_heads, group in HEADS:
            keys = mib * 2**20 // (2 * kv_heads * dim * dtype.itemsize)
            q = torch.randn(1, kv_heads * group, 1, dim).to(dtype)
            step = Step(q, *(torch.randn(1, kv_heads, keys, dim, dtype=dtype) for _ in range(2)))
            print(_row(step, products, f"{kv_heads} x {group}", repeats), flush=True)


def _row(step: Step, products: MultiplyAdds, heads: str, repeats: int) -> str:
    q, k, v = step
    ways: tuple[Callable[[], object], ...] = (
        reader(k, v),
        lambda: local_attention(q, k, v),
        lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True),
        products,
    )
    ours, theirs = local_attention(q, k, v).out, scaled_dot_product_attention(q, k, v, enable_gqa=True).float()
    off = float((ours - theirs).abs().max() / ours.abs().max())
    if not off <= AGREE[q.dtype]:
        raise SystemExit(f"local_attention and torch's SDPA differ by {off:.1e} in {q.dtype}")
    for way in ways:
        way()
    ms = [us / 1e3 for us in in_turns(len(ways), repeats, lambda index: block_us(Timed(ways[index]), 1))]
    read_ms, ours_ms, sdpa_ms, products_ms = (float(np.median(one)) for one in ms)
    read, our = (step.kv_bytes / took / 1e6 for took in (read_ms, ours_ms))
    count = 2 * q.numel() * k.shape[2]  # of scores and of values
    most, done = products.count / products_ms / 1e6, count / ours_ms / 1e6
    bound, share = max(("read", our / read), ("madd", done / most), key=lambda one: one[1])
    shown = [f"{np.median(one):.1f} ({np.percentile(one, 25):.1f} to {np.percentile(one, 75):.1f})" for one in ms[:3]]
    name = str(q.dtype).removeprefix("torch.")
    return (
        f"{name:9} {heads:>16} {k.shape[2]:>10,} {shown[0]:>24} {shown[1]:>24} {shown[2]:>26} "
        f"{read:6.1f} {our:6.1f} {our / read:9.0%} {count / step.kv_bytes:6.2f} {most:7.1f} {done:6.1f} "
        f"{done / most:9.0%} {bound:>6} {share:8.0%} {sdpa_ms / ours_ms:9.2f}"
    )
