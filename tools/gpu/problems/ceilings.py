"""Upper bounds of speed: reading memory and multiplying matrices, measured on the same buffers."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from card import Card, Run

BLOCK = 4096


@triton.jit
def read_kernel(words, out, count, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """The exclusive or of int32 words, a program for STEPS blocks; one word a program is written."""
    first = tl.program_id(0).to(tl.int64) * (BLOCK * STEPS)
    at = tl.arange(0, BLOCK)
    seen = tl.zeros([BLOCK], tl.int32)
    for step in tl.static_range(STEPS):  # unrolled: all loads are under way at once
        place = first + step * BLOCK + at
        seen ^= tl.load(words + place, mask=place < count, other=0)
    tl.store(out + tl.program_id(0), tl.xor_sum(seen, 0))


def reader(card: Card, buffers: Sequence[torch.Tensor], steps: int = 4) -> Run:
    """Return a call that only reads dense buffers, by a Triton kernel."""
    flat = [_words(x) for x in buffers]
    grids = [-(-x.numel() // (BLOCK * steps)) for x in flat]
    sums = [torch.empty(grid, dtype=torch.int32, device=card.place) for grid in grids]

    def run() -> None:
        for words, found, grid in zip(flat, sums, grids, strict=True):
            read_kernel[(grid,)](words, found, words.numel(), BLOCK=BLOCK, STEPS=steps, num_warps=8)

    return run


def summer(buffers: Sequence[torch.Tensor]) -> Run:
    """The same by torch's sum, of the numbers as they are; of 8 bits as bfloat16."""
    views = [x if x.dtype.itemsize > 1 else x.view(-1).view(torch.bfloat16) for x in buffers]

    def run() -> None:
        for x in views:
            x.sum()

    return run


def copier(buffers: Sequence[torch.Tensor]) -> Run:
    """Return a call that copies each buffer: its bytes are read and written."""
    flat = [_words(x) for x in buffers]
    into = torch.empty_like(max(flat, key=torch.Tensor.numel))

    def run() -> None:
        for words in flat:
            into[: words.numel()].copy_(words)

    return run


def multiplier(card: Card, size: int) -> tuple[Run, float]:
    """Return a bfloat16 product of random square matrices, and its operations."""
    left, right = (torch.randn(size, size, device=card.place).bfloat16() for _ in range(2))
    made = torch.empty_like(left)

    def run() -> None:
        torch.mm(left, right, out=made)

    return run, 2.0 * size**3


def _words(x: torch.Tensor) -> torch.Tensor:
    if not x.is_contiguous():
        raise ValueError(f"only dense buffers are read whole, got strides {x.stride()} of {list(x.shape)}")
    return x.view(-1).view(torch.int32)
