"""Configurations of the merge of partials in the compile report."""

from __future__ import annotations

from collections.abc import Iterator

from attention.gpu.gpu_merge import MOST_STATES, tiles
from configs.resources import Config

CASES = (
    ("fp32", 2, 1, 4096), ("fp32", 2, 128, 32), ("fp32", 2, 16384, 32), ("bf16", 3, 128, 4096),
    ("fp32", 8, 80, 32), ("fp32", 8, 512, 4096), ("fp32", MOST_STATES, 128, 4096),
)  # fmt: skip
"""dtype, states, items of a row, rows: by few and many rows tiles are small and large."""


def merge_configs(arch: str) -> Iterator[Config]:
    """Return the configurations, the same for each arch."""
    del arch
    for case in CASES:
        yield _config(*case)


def _config(dtype: str, states: int, dim: int, rows: int) -> Config:
    from attention.gpu.gpu_merge import states_kernel

    width, tile_rows, warps = tiles(rows, dim)
    constants = {"COUNT": states, "DIM": dim, "WIDTH": width, "ROWS": tile_rows}
    signature: dict[str, str | tuple[str, ...]] = {
        "outs": (f"*{dtype}",) * states, "lses": ("*fp32",) * states, "out": "*fp32", "lse": "*fp32", "rows": "i32",
        **dict.fromkeys(constants, "constexpr"),
    }  # fmt: skip
    what = f"{dtype}, {states} states, dim {dim}, {tile_rows} rows a program, {warps} warps"
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return Config("merge", what, states_kernel, signature, constants, options)
