"""How the decode kernel is cut for each kind of GPU: what was tuned, and rules for what was not.

Nothing is tuned at import or at a call. A tuner times `candidates` of a `Problem` and records the best in
`decode_table.json` (`attention.gpu.tuned` says how); for an arch or a problem that it lacks the rules below hold. They
keep every kernel of the compile report free of spills.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from attention.gpu.archs import SHARED_KIB, generation_of
from attention.gpu.tuned import Tuned

TUNED = Tuned(Path(__file__).with_name("decode_table.json"))
"""`Cut`s that a card chose."""
WIDTHS = (64, 128, 192, 256, 576)
"""A problem has the first of these widths that holds its head dims."""
MOST_ROWS = {2: 64, 4: 32}
"""Query rows of one program, by bytes of an item: what registers hold."""
WIDE, MOST_ROWS_WIDE = 256, 32
"""Beyond this width a program has no more rows than that."""
FEWEST_ROWS = 16
"""What matrix units take at least."""
KEYS_PER_SPLIT = 256
"""Fewer keys than this are not worth a program of their own."""
MOST_WAVES = 4
"""Programs come in about so many waves at most, if splits are what makes them many."""


class Cut(NamedTuple):
    """How the kernel is cut.

    Attributes:
        block_n: Keys of one step.
        num_warps: Warps of a program (of 32 threads, on AMD of 64).
        num_stages: Depth of the software pipeline that loads K and V.
        programs: How many programs a multiprocessor gets where there are keys enough.
    """

    block_n: int
    num_warps: int
    num_stages: int
    programs: int


class Problem(NamedTuple):
    """What a cut depends on.

    Attributes:
        arch: Such as "sm_90" or "gfx942".
        itemsize: Bytes of an item of the dtype that is multiplied in.
        width: Of `WIDTHS`, for the greater of the head dims of K and V.
        rows: Query rows of a program, a power of two from 16.
        plain: Whether all queries see all keys: no positions, masks, caps, tables or scales.
        shared: Whether the values are the first columns of the keys, read once for both.
    """

    arch: str
    itemsize: int
    width: int
    rows: int
    plain: bool
    shared: bool

    @property
    def key(self) -> str:
        """Its name in the file of tuned cuts."""
        form = ", ".join(["plain" if self.plain else "full"] + ["shared"] * self.shared)
        return f"{self.itemsize * 8} bit, {self.width} wide, {self.rows} rows, {form}"


def problem_of(arch: str, itemsize: int, width: int, rows: int, *, plain: bool, shared: bool = False) -> Problem:
    """The problem of a call: arguments as the attributes of `Problem`, `width` and `rows` any from 1.

    Args:
        arch: Such as "sm_90" or "gfx942".
        itemsize: Bytes.
        width: The greater of the head dims, at most the last of `WIDTHS`.
        rows: Query rows that share a key head: heads of a group x queries.
        plain: As there.
        shared: As there.
    """
    wide = next(x for x in WIDTHS if x >= width)
    return Problem(arch, itemsize, wide, rows_of_program(rows, itemsize, width), plain, shared)


def cut_for(problem: Problem) -> Cut:
    """The tuned cut, or that of the rules."""
    tuned = TUNED.find(problem.arch, problem.key)
    return by_rule(problem) if tuned is None else Cut(*tuned)


def candidates(problem: Problem) -> Iterator[Cut]:
    """Cuts to time, that of the rules first; K and V of their stages fit shared memory, registers may not."""
    yield by_rule(problem)
    room = SHARED_KIB[generation_of(problem.arch)] << 10
    item = problem.width * problem.itemsize * (1 if problem.shared else 2)
    for keys, warps, stages, programs in product((16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4), (1, 2, 3, 4)):
        cut = Cut(keys, warps, stages, programs)
        if cut != by_rule(problem) and keys * item * max(1, stages - 1) * programs <= room:
            yield cut


def by_rule(problem: Problem) -> Cut:
    """A cut without spills, never tried for speed."""
    if problem.itemsize == 4:
        return Cut(16, 4 if problem.rows == FEWEST_ROWS else 8, 2, 2)
    generation = generation_of(problem.arch)
    if generation in ("gfx9", "other"):
        return _by_rule_for_little(problem)
    roomy = generation in ("sm_90", "sm_100")
    if problem.width > WIDE:
        keys = 32 if problem.shared and (problem.rows == FEWEST_ROWS or generation != "sm_89") else 16
        return Cut(keys, 8, 3 if problem.plain else 2, 2 if roomy else 1)
    # what lies by positions and pages is found a stage before it is loaded
    stages = 3 if problem.plain else 4
    if problem.width <= 128:
        keys = 64 if problem.plain or (roomy and problem.rows < 64) else 32
        return Cut(keys, 4 if problem.rows < 64 else 8, stages, 2)
    return Cut(32, 4 if problem.rows == FEWEST_ROWS else 8, stages if roomy else 2, 2)


def _by_rule_for_little(problem: Problem) -> Cut:
    """For GPUs with 64 KiB of shared memory or less, whose loads go through registers."""
    if problem.width > WIDE:
        return Cut(16, 8, 2, 1)
    if problem.width > 128 or not problem.plain:
        return Cut(32, 8, 2, 2)
    return Cut(64, 4 if problem.rows == FEWEST_ROWS else 8, 2, 2)


def rows_of_program(rows: int, itemsize: int, width: int) -> int:
    """Rows of a program, for this many query rows that share a key head."""
    most = MOST_ROWS[itemsize] if width <= WIDE else MOST_ROWS_WIDE
    return min(most, max(FEWEST_ROWS, 1 << (rows - 1).bit_length()))


def splits_for(n: int, programs: int, slots: int) -> int:
    """Into how many parts n keys are split, each with programs of its own.

    The programs run in waves of as many as there is room for, and the last wave is rarely full: of the numbers of
    splits that would keep the GPU busy it is the least that loses less than a twentieth to that, beside the best.

    Args:
        n: Keys.
        programs: Programs of one part.
        slots: Programs that the GPU runs at once: its multiprocessors times `Cut.programs`.
    """
    return _balanced(max(1, min(-(-n // KEYS_PER_SPLIT), MOST_WAVES * -(-slots // max(programs, 1)))), programs, slots)


@lru_cache(maxsize=4096)  # a step of decoding asks for few different ones, in every layer
def _balanced(most: int, programs: int, slots: int) -> int:
    times = [-(-programs * splits // slots) / splits for splits in range(1, most + 1)]
    return 1 + next(i for i, time in enumerate(times) if time <= 1.05 * min(times))
