"""How the decode kernel is cut for each kind of GPU: what was tuned, and rules for what was not.

Nothing is tuned at import or at a call. `tools/gpu/tune.py` times the choices on a card and writes `decode_table.json`,
which is read once; for a GPU, dtype or head dim that it lacks the rules below hold. They keep every kernel of the
compile report free of spills.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).with_name("decode_table.json")
MOST_ROWS = {2: 64, 4: 32}
"""Query rows of one program, by bytes of an item: what registers hold."""
FEWEST_ROWS = 16
"""What matrix units take at least."""
PROGRAMS_PER_CORE = 2
"""How many programs a multiprocessor gets where there are keys enough."""
KEYS_PER_SPLIT = 256
"""Fewer keys than this are not worth a program of their own."""


class Cut(NamedTuple):
    """How the kernel is cut.

    Attributes:
        block_n: Keys of one step.
        num_warps: Warps of a program (of 32 threads, on AMD of 64).
        num_stages: Depth of the software pipeline that loads K and V.
    """

    block_n: int
    num_warps: int
    num_stages: int


class Kind(NamedTuple):
    """What a cut depends on.

    Attributes:
        backend: "cuda" or "hip".
        arch: Such as "sm_90" or "gfx942".
        itemsize: Bytes of an item of the dtype that is multiplied in.
        width: The greater of the head dims of K and V.
        rows: Query rows of a program, a power of two from 16.
        plain: Whether all queries see all keys: no positions, masks, caps, tables or scales.
    """

    backend: str
    arch: str
    itemsize: int
    width: int
    rows: int
    plain: bool

    @property
    def key(self) -> str:
        """As the table names it."""
        form = "plain" if self.plain else "full"
        return f"{self.arch}, {self.itemsize * 8} bit, {self.width} wide, {self.rows} rows, {form}"


def cut_for(kind: Kind) -> Cut:
    """The tuned cut, or that of the rules."""
    tuned = _table().get(kind.key)
    return by_rule(kind) if tuned is None else Cut(*tuned)


def by_rule(kind: Kind) -> Cut:
    """A cut without spills, never tried for speed."""
    narrow = kind.width <= 128
    stages = 3 if kind.backend == "cuda" and kind.plain else 2
    if kind.itemsize == 4:
        return Cut(16, 4 if kind.rows == FEWEST_ROWS else 8, 2)
    if not kind.plain:
        return Cut(32, 8, stages)
    return Cut(64 if narrow else 32, 4 if narrow and kind.rows == FEWEST_ROWS else 8, stages)


def rows_of_program(rows: int, itemsize: int) -> int:
    """Rows of a program, for this many query rows that share a key head."""
    return min(MOST_ROWS[itemsize], max(FEWEST_ROWS, 1 << (rows - 1).bit_length()))


def splits_for(n: int, programs: int, cores: int) -> int:
    """Into how many parts n keys are split, each with programs of its own.

    Args:
        n: Keys.
        programs: Programs of one part.
        cores: Multiprocessors of the GPU.
    """
    wanted = -(-cores * PROGRAMS_PER_CORE // max(programs, 1))
    return max(1, min(wanted, -(-n // KEYS_PER_SPLIT)))


@cache
def _table() -> dict[str, Any]:
    if not TABLE.exists():
        return {}
    found: dict[str, Any] = json.loads(TABLE.read_text())["cuts"]
    return found
