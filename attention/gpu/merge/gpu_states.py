"""The n-way merge of partials that lie apart on a GPU: one launch, nothing packed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attention.gpu.merge.gpu_merge import states_kernel
from attention.gpu.placement import current
from topocomm.extend import launcher

MOST_STATES = 16
"""States of one launch; more are folded 16 first, then 15 at a time."""
MOST_DIM = 16384
"""Beyond it one row would not fit in the registers of a program."""
PROGRAMS = 256
"""Programs that are worth having before their tiles grow: about two for each multiprocessor of a large GPU."""
TILE_ITEMS = 256, 1024
ITEMS_PER_THREAD = 4


def merge_on_device(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The left fold of n states, on a GPU or in Triton's interpreter, by one launch for up to 16 states.

    Args:
        outs: [*rows, dim] each, of one shape; float32, bfloat16 or float16; dim up to `MOST_DIM`.
        lses: [*rows] each, float32, natural logarithms.

    Returns:
        out [*rows, dim] and lse [*rows], float32, contiguous. With contiguous states nothing else is allocated.
    """
    outs, lses = [x.contiguous() for x in outs], [x.contiguous() for x in lses]
    out = torch.empty(outs[0].shape, dtype=torch.float32, device=outs[0].device)
    lse = torch.empty(lses[0].shape, dtype=torch.float32, device=outs[0].device)
    if lse.numel():
        with current(lse.device):
            _launch(outs[:MOST_STATES], lses[:MOST_STATES], out, lse)
            for start in range(MOST_STATES, len(outs), MOST_STATES - 1):
                stop = start + MOST_STATES - 1
                _launch([out, *outs[start:stop]], [lse, *lses[start:stop]], out, lse)
    return out, lse


def _launch(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], out: torch.Tensor, lse: torch.Tensor) -> None:
    rows, dim = lse.numel(), out.shape[-1]
    width, tile_rows, warps = tiles(rows, dim)
    launcher(states_kernel, (-(-rows // tile_rows),))(
        tuple(outs),
        tuple(lses),
        out,
        lse,
        rows,
        COUNT=len(outs),
        DIM=dim,
        WIDTH=width,
        ROWS=tile_rows,
        num_warps=warps,
        enable_fp_fusion=False,
    )


def tiles(rows: int, dim: int) -> tuple[int, int, int]:
    """How rows of so many items are dealt out: (columns padded to a power of two, rows of a program, its warps)."""
    width = _power_of_two(max(1, dim))
    fewest, most = TILE_ITEMS
    items = min(max(_power_of_two(rows * width // PROGRAMS), fewest), most)
    tile_rows = max(1, min(_power_of_two(rows), items // width))
    return width, tile_rows, min(8, max(1, tile_rows * width // (32 * ITEMS_PER_THREAD)))


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
