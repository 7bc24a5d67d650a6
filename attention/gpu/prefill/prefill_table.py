"""Tiles of the prefill kernel by GPU, dtype and head dim.

Chosen so that shared memory fits and registers do not spill, both known from compiling by Triton 3.6 and 3.9. How fast
they are has not yet been measured; what a tuner finds on a card comes before them, from `prefill_table.json` (see
`attention.gpu.tuned`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from attention.gpu.archs import SHARED_KIB, generation_of
from attention.gpu.tuned import Tuned

TUNED = Tuned(Path(__file__).with_name("prefill_table.json"))
"""`Tile`s that a card chose."""


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


class Problem(NamedTuple):
    """What a tile depends on.

    Attributes:
        arch: Such as "sm_90" or "gfx942".
        bits: Of a value: 16, or 32 where queries, keys or values are float32.
        width: Of `WIDTHS`, for the larger of the head dims of K and V.
        few: Whether there are at most `FEW` queries.
        form: Of `FORMS`, for the features of the call.
    """

    arch: str
    bits: int
    width: int
    few: bool
    form: str

    @property
    def key(self) -> str:
        """Its name in the file of tuned tiles."""
        rows = "few" if self.few else "many"
        return f"{self.bits} bit, {self.width} wide, {rows} queries, {self.form}"


FORMS = ("plain", "full", "lists")
"""Causal attention by contiguous positions, or all keys; with a window, softcap, slopes, lengths or a partial to merge
onto too; with lists of blocks, for positions in any order."""
FEW = 64
"""Queries for which a tile of 128 rows is halved, but for lists and for wide heads."""
WIDTHS = (64, 128, 192, 256, 512)
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
        (_SINGLE[0], Tile(32, 16, 16, 2), *_SINGLE[2:]),
        (Tile(32, 32, 8, 2), Tile(16, 16, 4, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2)),
    ),
    "sm_90": _Row(
        (Tile(128, 128, 8, 3), Tile(128, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 64, 8, 2)),
        (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(128, 32, 8, 2), Tile(64, 32, 8, 2)),
        _SINGLE,
        (Tile(32, 32, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 16, 2)),
    ),
    "sm_100": _Row(
        (Tile(128, 128, 8, 3), Tile(128, 32, 8, 3), Tile(128, 64, 8, 2), Tile(128, 64, 8, 2)),
        (Tile(128, 32, 8, 3), Tile(128, 32, 8, 3), Tile(128, 32, 8, 2), Tile(128, 32, 8, 2)),
        _SINGLE,
        (Tile(32, 32, 4, 2), Tile(16, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 16, 2)),
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


_FULL = {
    ("sm_80", 16, 192): Tile(32, 32, 4, 2),
    ("sm_80", 16, 256): Tile(64, 32, 8, 2),
    ("sm_89", 16, 192): Tile(32, 32, 4, 2),
    ("sm_89", 32, 128): Tile(16, 32, 8, 2),
    ("sm_100", 16, 64): Tile(128, 64, 8, 3),
    ("sm_100", 32, 128): Tile(32, 16, 16, 2),
    ("sm_100", 16, 192): Tile(128, 32, 8, 2),
    ("sm_100", 16, 256): Tile(64, 64, 8, 2),
}
"""Where masks and merges take too many registers: in the place of the tiles by contiguous positions, by GPU, bits and
width."""


def problem_of(arch: str, bits: int, width: int, *, q_len: int = 1 << 20, form: str = "plain") -> Problem:
    """The problem of a call: arguments as the attributes of `Problem`, `width` any from 1 to 512.

    Args:
        arch: Such as "sm_90" or "gfx942".
        bits: 16 or 32.
        width: The larger of the head dims.
        q_len: Queries.
        form: As there.
    """
    return Problem(arch, bits, next(x for x in WIDTHS if x >= width), q_len <= FEW, form)


def tile_for(problem: Problem) -> Tile:
    """The tuned tile, or that of the rules."""
    tuned = TUNED.find(problem.arch, problem.key)
    return by_rule(problem) if tuned is None else Tile(*tuned)


def by_rule(problem: Problem) -> Tile:
    """A tile without spills, never tried for speed."""
    generation = generation_of(problem.arch)
    row = _TABLE[generation]
    lists = problem.form == "lists"
    tiles = row[(0 if problem.bits == 16 else 2) + lists]
    place = WIDTHS.index(problem.width)
    if place == len(tiles):  # wider than all of the table
        tile = tiles[-1]
        if problem.bits == 32:
            if problem.arch.startswith("sm_"):
                warps = 32 if generation in ("sm_89", "sm_100") and problem.form == "full" else 16
                return Tile(32 if generation == "sm_80" else 16, 16, warps, 2)
            return Tile(16, 16, tile.warps, 1)
        return Tile(min(32, tile.rows), 16, tile.warps, 1)
    tile = tiles[place]
    if problem.form == "full":
        tile = _FULL.get((generation, problem.bits, problem.width), tile)
    if tile.rows == 128 and problem.few and problem.width <= 128 and not lists:
        two = generation in ("sm_80", "sm_100") and (problem.form, problem.width) == ("full", 64)
        tile = Tile(64, min(64, tile.keys), tile.warps // 2, 2 if two else tile.stages)
    return tile


def candidates(problem: Problem) -> Iterator[Tile]:
    """Tiles to time, that of the rules first; keys and values of their stages fit shared memory, registers may not."""
    yield by_rule(problem)
    room = SHARED_KIB[generation_of(problem.arch)] << 10
    key_bytes = 2 * problem.width * problem.bits // 8
    rows = (16, 32, 64) if problem.few else (32, 64, 128)
    for tile in (Tile(*sizes) for sizes in product(rows, (16, 32, 64, 128), (4, 8), (1, 2, 3))):
        if tile != by_rule(problem) and tile.keys * key_bytes * max(1, tile.stages - 1) <= room:
            yield tile
