"""Tiles of the prefill kernel by GPU, dtype and head dim.

Chosen so that shared memory fits and registers do not spill, both known from compiling by Triton 3.6 and 3.9. What
a tuner found on a card comes before them, from `prefill_table.json` (see `attention.gpu.tuned`); how fast others are
has not been measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from attention.gpu.limits import SHARED_KIB, generation_of
from attention.gpu.tuned import Tuned

TUNED = Tuned(Path(__file__).with_name("prefill_table.json"))
"""`Tile`s that a card chose."""


class Tile(NamedTuple):
    """Queries and keys of a block, warps of a program, and blocks of keys in flight."""

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


_HALF_WIDE = Tile(32, 16, 8, 1)
_SINGLE_WIDE = Tile(16, 16, 16, 2)
_SINGLE = (Tile(64, 32, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2), _SINGLE_WIDE)
_LITTLE = (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 16, 4, 1), Tile(32, 16, 8, 1))
_LITTLE_HALF = (*_LITTLE, _HALF_WIDE)
_TABLE = {
    "sm_80": _Row(
        (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(32, 64, 4, 2), Tile(64, 64, 8, 2), _HALF_WIDE),
        (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(128, 32, 8, 2), Tile(64, 64, 8, 2), _HALF_WIDE),
        (Tile(64, 32, 8, 2), Tile(16, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 16, 2)),
        (Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(32, 16, 8, 2), Tile(16, 16, 8, 2), Tile(32, 16, 16, 2)),
    ),
    "sm_89": _Row(
        (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(64, 32, 8, 2), Tile(64, 32, 8, 2), _HALF_WIDE),
        (Tile(64, 32, 8, 3), Tile(128, 32, 8, 3), Tile(32, 32, 4, 2), Tile(64, 32, 8, 2), _HALF_WIDE),
        (_SINGLE[0], Tile(32, 16, 16, 2), *_SINGLE[2:]),
        (Tile(32, 32, 8, 2), Tile(16, 16, 4, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2), _SINGLE_WIDE),
    ),
    "sm_90": _Row(
        (Tile(128, 128, 8, 3), Tile(128, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), _HALF_WIDE),
        (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(128, 32, 8, 2), Tile(64, 32, 8, 2), _HALF_WIDE),
        _SINGLE,
        (Tile(32, 32, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 16, 2), _SINGLE_WIDE),
    ),
    "sm_100": _Row(
        (Tile(128, 128, 8, 3), Tile(128, 32, 8, 3), Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), _HALF_WIDE),
        (Tile(128, 32, 8, 3), Tile(128, 32, 8, 3), Tile(128, 32, 8, 2), Tile(128, 32, 8, 2), _HALF_WIDE),
        _SINGLE,
        (Tile(32, 32, 4, 2), Tile(16, 16, 8, 2), Tile(32, 16, 8, 2), Tile(32, 16, 16, 2), _SINGLE_WIDE),
    ),
    "gfx9": _Row(
        (Tile(128, 64, 4, 2), Tile(128, 32, 4, 2), Tile(128, 32, 4, 2), Tile(64, 32, 4, 2), Tile(32, 16, 4, 1)),
        (Tile(128, 64, 4, 2), Tile(128, 32, 4, 2), Tile(128, 32, 4, 2), Tile(64, 32, 4, 2), Tile(32, 16, 4, 1)),
        (Tile(64, 32, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 32, 4, 2), Tile(16, 16, 4, 1)),
        (Tile(64, 32, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 16, 4, 2), Tile(16, 16, 4, 1)),
    ),
    # any other GPU: little of everything
    "sm": _Row(_LITTLE_HALF, _LITTLE_HALF, (*_LITTLE, _SINGLE_WIDE), (*_LITTLE, _SINGLE_WIDE)),
    "other": _Row(_LITTLE_HALF, _LITTLE_HALF, (*_LITTLE, Tile(16, 16, 8, 1)), (*_LITTLE, Tile(16, 16, 8, 1))),
}
"""By generation of GPU; "sm": other GPUs of NVIDIA."""

EXCEPTIONS = {
    ("sm_80", "16 bit, 64 wide, few queries, full"): Tile(64, 64, 4, 2),
    ("sm_80", "16 bit, 192 wide, many queries, full"): Tile(32, 32, 4, 2),
    ("sm_80", "16 bit, 192 wide, few queries, full"): Tile(32, 32, 4, 2),
    ("sm_80", "16 bit, 256 wide, many queries, full"): Tile(64, 32, 8, 2),
    ("sm_80", "16 bit, 256 wide, few queries, full"): Tile(64, 32, 8, 2),
    ("sm_89", "16 bit, 192 wide, many queries, full"): Tile(32, 32, 4, 2),
    ("sm_89", "16 bit, 192 wide, few queries, full"): Tile(32, 32, 4, 2),
    ("sm_89", "32 bit, 128 wide, many queries, full"): Tile(16, 32, 8, 2),
    ("sm_89", "32 bit, 128 wide, few queries, full"): Tile(16, 32, 8, 2),
    ("sm_89", "32 bit, 512 wide, many queries, full"): Tile(16, 16, 32, 2),
    ("sm_89", "32 bit, 512 wide, few queries, full"): Tile(16, 16, 32, 2),
    ("sm_100", "16 bit, 64 wide, many queries, full"): Tile(128, 64, 8, 3),
    ("sm_100", "16 bit, 64 wide, few queries, full"): Tile(64, 64, 4, 2),
    ("sm_100", "16 bit, 192 wide, many queries, full"): Tile(128, 32, 8, 2),
    ("sm_100", "16 bit, 192 wide, few queries, full"): Tile(128, 32, 8, 2),
    ("sm_100", "16 bit, 256 wide, many queries, full"): Tile(64, 64, 8, 2),
    ("sm_100", "16 bit, 256 wide, few queries, full"): Tile(64, 64, 8, 2),
    ("sm_100", "32 bit, 128 wide, many queries, full"): Tile(32, 16, 16, 2),
    ("sm_100", "32 bit, 128 wide, few queries, full"): Tile(32, 16, 16, 2),
    ("sm_100", "32 bit, 512 wide, many queries, full"): Tile(16, 16, 32, 2),
    ("sm_100", "32 bit, 512 wide, few queries, full"): Tile(16, 16, 32, 2),
}
"""Where the tile of the rules spills, by generation and key of the problem: masks and merges take more registers than
the plain form, and blocks of 64 rows with 4 warps more than those of 128 with 8."""


def problem_of(arch: str, bits: int, width: int, *, q_len: int = 1 << 20, form: str = "plain") -> Problem:
    """Return the problem of a call: arguments as the attributes of `Problem`, `width` any from 1 to 512."""
    return Problem(arch, bits, next(x for x in WIDTHS if x >= width), q_len <= FEW, form)


def tile_for(problem: Problem) -> Tile:
    """Return the tuned tile, or that of the rules."""
    tuned = TUNED.find(problem.arch, problem.key)
    return by_rule(problem) if tuned is None else Tile(*tuned)


def by_rule(problem: Problem) -> Tile:
    """Return a tile without spills, never tried for speed."""
    generation = generation_of(problem.arch)
    if generation == "other" and problem.arch.startswith("sm_"):
        generation = "sm"
    if (generation, problem.key) in EXCEPTIONS:
        return EXCEPTIONS[generation, problem.key]
    lists = problem.form == "lists"
    tile = _TABLE[generation][(0 if problem.bits == 16 else 2) + lists][WIDTHS.index(problem.width)]
    if tile.rows == 128 and problem.few and problem.width <= 128 and not lists:
        return Tile(64, min(64, tile.keys), tile.warps // 2, tile.stages)
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
