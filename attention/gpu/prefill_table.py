"""Tiles of the prefill kernel by GPU, dtype and head dim.

Chosen so that shared memory fits and registers do not spill, both known from compiling (64 bytes do on sm_90 at head
dim 128 with window, packing and merge together). How fast they are has not yet been measured.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """How a program of the kernel is laid out.

    Attributes:
        rows: Queries per block.
        keys: Keys per block.
        warps: Warps per program.
        stages: Blocks of keys in flight.
    """

    rows: int
    keys: int
    warps: int
    stages: int


WIDTHS = (64, 128, 192, 256)
"""A head dim takes the tile of the first width that holds it."""


class _Row(NamedTuple):
    """Tiles by width: for 16-bit inputs and for float32, each for contiguous positions and for lists of blocks.

    Masks by lists take more registers. float32 is multiplied without tensor cores on NVIDIA's GPUs.
    """

    half: tuple[Tile, ...]
    half_lists: tuple[Tile, ...]
    single: tuple[Tile, ...]
    single_lists: tuple[Tile, ...]


_SINGLE = (Tile(64, 32, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2))
_TABLE = {
    "sm_80": _Row(
        (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(32, 64, 4, 2), Tile(64, 64, 8, 2)),
        (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(128, 32, 8, 2), Tile(64, 64, 8, 2)),
        (Tile(64, 32, 8, 2), Tile(16, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2)),
        (Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(32, 16, 8, 2), Tile(16, 16, 8, 2)),
    ),
    "sm_89": _Row(
        (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(64, 32, 8, 2), Tile(64, 32, 8, 2)),
        (Tile(64, 32, 8, 3), Tile(128, 32, 8, 3), Tile(32, 32, 4, 2), Tile(64, 32, 8, 2)),
        _SINGLE,
        (Tile(32, 32, 8, 2), Tile(16, 16, 4, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2)),
    ),
    "sm_90": _Row(
        (Tile(128, 128, 8, 3), Tile(128, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 64, 8, 2)),
        (Tile(128, 64, 8, 3), Tile(128, 64, 8, 2), Tile(128, 32, 8, 2), Tile(64, 32, 8, 2)),
        _SINGLE,
        _SINGLE,
    ),
    "sm_100": _Row(
        (Tile(128, 128, 8, 3), Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(128, 64, 8, 2)),
        (Tile(128, 64, 8, 3), Tile(128, 64, 8, 2), Tile(128, 32, 8, 2), Tile(128, 32, 8, 2)),
        _SINGLE,
        (Tile(32, 32, 8, 2), Tile(16, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2)),
    ),
    "gfx9": _Row(
        (Tile(128, 64, 4, 2), Tile(128, 32, 4, 2), Tile(128, 32, 4, 2), Tile(64, 32, 4, 2)),
        (Tile(128, 64, 4, 2), Tile(128, 32, 4, 2), Tile(128, 32, 4, 2), Tile(64, 32, 4, 2)),
        (Tile(64, 32, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 32, 4, 2)),
        (Tile(64, 32, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 16, 4, 2)),
    ),
    # any other GPU: little of everything
    "other": _Row(*[(Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 16, 4, 1), Tile(32, 16, 8, 1))] * 4),
}


def tile_for(
    backend: str, arch: int | str, bits: int, width: int, *, q_len: int = 1 << 20, lists: bool = False
) -> Tile:
    """The tile for a GPU.

    Args:
        backend: "cuda" or "hip", as Triton names them.
        arch: Compute capability as one number (90), or the name that ROCm gives ("gfx942").
        bits: Of a value: 16, or 32 where queries, keys or values are float32.
        width: The larger of the head dims of K and V; what is wider than all of WIDTHS takes half the keys.
        q_len: Queries; up to 64 a tile of 128 rows is halved, but for lists and for wide heads.
        lists: Whether positions are in any order.
    """
    row = _TABLE[generation(backend, arch)]
    tiles = row[(0 if bits == 16 else 2) + lists]
    place = next((place for place, widest in enumerate(WIDTHS) if width <= widest), None)
    tile = tiles[-1] if place is None else tiles[place]
    if place is None:
        tile = Tile(min(32, tile.rows), 16, tile.warps, 1)
    if tile.rows == 128 and q_len <= 64 and width <= 128 and not lists:
        tile = Tile(64, min(64, tile.keys), tile.warps // 2, tile.stages)
    return tile


def generation(backend: str, arch: int | str) -> str:
    """The row of the table: "other" has room on any GPU."""
    if backend == "hip":
        return "gfx9" if str(arch).startswith(("gfx90a", "gfx94", "gfx95")) else "other"
    if backend == "cuda" and isinstance(arch, int):
        if arch in (86, 89, 120, 121):  # little shared memory
            return "sm_89"
        if 100 <= arch < 120:
            return "sm_100"
        if 90 <= arch < 100:
            return "sm_90"
        if 80 <= arch < 90:
            return "sm_80"
    return "other"
