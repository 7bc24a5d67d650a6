"""Tile sizes of the decode kernel for each kind of GPU: tuned ones, and rules for the others.

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

from attention.gpu.limits import SHARED_KIB, generation_of
from attention.gpu.tuned import Tuned

TUNED = Tuned(Path(__file__).with_name("decode_table.json"))
"""`Cut`s that a card chose."""
WIDTHS = (64, 96, 128, 192, 256, 576)
"""A problem has the first of these widths that holds its head dims."""
FORMS = ("plain", "usual", "paged", "full")
"""Which features a call has: none, every query sees every key; lengths and causal attention of the last queries; pages
and scales too; or windows, softcap, slopes, masks or positions of their own."""
MOST_ROWS = {2: 64, 4: 32}
"""Query rows of one program, by bytes of an item: what registers hold."""
WIDE, MOST_ROWS_WIDE = 128, 32
"""Beyond this width, and with every feature, a program has no more rows than that; with every feature beyond 256, in
float32 beyond 128, the fewest."""
FEWEST_ROWS = 16
"""What matrix units take at least."""
KEYS_PER_SPLIT = 256
"""Fewer keys than this are not worth a program of their own."""
REGISTERS_AHEAD, MOST_AHEAD = 64, 8
"""Registers of a thread for states that a merge loads, if that is two states at least, and how many at most."""
MOST_BLOCKS = 1 << 30
"""Key blocks that the programs' ranges can number."""
MOST_WAVES = 8
"""Most waves of programs that splits may make."""
ALL_BUT_FULL, LITTLE = 0.8, 1.1
"""Share of a wave that counts as full; and the accepted loss beside the best number of splits."""


class Cut(NamedTuple):
    """Keys of one step, warps of a program (of 32 threads, on AMD of 64), depth of the pipeline that loads K and V."""

    block_n: int
    num_warps: int
    num_stages: int


class Problem(NamedTuple):
    """What a cut depends on.

    Attributes:
        arch: Such as "sm_90" or "gfx942".
        itemsize: Bytes of an item of the dtype that is multiplied in.
        width: Of `WIDTHS`, for the greater of the head dims of K and V.
        rows: Query rows of a program, a power of two from 16.
        form: Of `FORMS`, for the features of the call.
        shared: Whether the values are the first columns of the keys, read once for both.
    """

    arch: str
    itemsize: int
    width: int
    rows: int
    form: str
    shared: bool

    @property
    def key(self) -> str:
        """Its name in the file of tuned cuts."""
        shared = ", shared" if self.shared else ""
        return f"{self.itemsize * 8} bit, {self.width} wide, {self.rows} rows, {self.form}{shared}"


def problem_of(
    arch: str, itemsize: int, width: int, rows: int, *, form: str = "plain", shared: bool = False
) -> Problem:
    """Return the problem of a call: arguments as the attributes of `Problem`, `width` and `rows` any from 1.

    `width` is the greater of the head dims, `rows` are query rows that share a key head: heads of a group x queries.
    """
    wide = next(x for x in WIDTHS if x >= width)
    return Problem(arch, itemsize, wide, rows_of_program(rows, itemsize, width, form), form, shared)


def cut_for(problem: Problem) -> Cut:
    """Return the tuned cut, or that of the rules."""
    tuned = TUNED.find(problem.arch, problem.key)
    return by_rule(problem) if tuned is None else Cut(*tuned)


def candidates(problem: Problem) -> Iterator[Cut]:
    """Cuts to time, that of the rules first; K and V of their stages fit shared memory, registers may not."""
    yield by_rule(problem)
    room = SHARED_KIB[generation_of(problem.arch)] << 10
    item = problem.width * problem.itemsize * (1 if problem.shared else 2)
    for keys, warps, stages in product((16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4, 5)):
        cut = Cut(keys, warps, stages)
        if cut != by_rule(problem) and keys * item * max(1, stages - 1) <= room:
            yield cut


def by_rule(problem: Problem) -> Cut:
    """Return a cut without spills, never tried for speed."""
    generation = generation_of(problem.arch)
    if (generation, problem.key) in EXCEPTIONS:
        return EXCEPTIONS[generation, problem.key]
    few = problem.rows == FEWEST_ROWS
    if problem.itemsize == 4:
        much = problem.form == "full" and problem.width > WIDE and generation.startswith("sm_")
        return Cut(16, 4 if few and not much and generation != "sm_89" else 8, 2)
    plain, paged, full = (problem.form == form for form in ("plain", "paged", "full"))
    if generation in ("gfx9", "other"):  # 64 KiB of shared memory or less; loads go through registers
        if problem.width > 256 or full:
            return Cut(16, 4 if problem.width > 256 and full else 8, 2)
        return Cut(32, 8, 2) if problem.width > 128 or not plain else Cut(64, 4 if few else 8, 2)
    roomy = generation in ("sm_90", "sm_100")
    if problem.width > 256:
        if generation == "sm_100" and problem.shared and few and not full:
            return Cut(16, 8, 5) if plain else Cut(32, 8, 3)
        keys = 32 if problem.shared and (few or generation != "sm_89") else 16
        ahead = not paged and not full and (problem.shared or generation != "sm_89")
        return Cut(keys, 8, 3 if ahead else 2)
    # What lies by pages is loaded when its page is known: half of the stages go into finding it.
    stages = 5 if paged else 4 if full else 3
    if problem.width > 128:
        few_stages = not roomy or (problem.width == 192 and few and problem.form == "usual")  # else Triton 3.6 spills
        return Cut(32, 8 if not few and (full or not roomy) else 4, 2 if few_stages else stages)
    if full:
        return Cut(16 if problem.width == 96 else 32, 4 if few and generation != "sm_80" else 8, stages)
    keys = 64 if plain or (roomy and (few or (paged and problem.rows < 64))) else 32
    return Cut(keys, 4 if problem.rows < 64 else 8, stages)


EXCEPTIONS = {
    ("sm_80", "16 bit, 128 wide, 16 rows, paged"): Cut(32, 8, 5),
    ("sm_80", "16 bit, 192 wide, 32 rows, usual"): Cut(32, 16, 2),
    ("sm_80", "16 bit, 256 wide, 16 rows, paged"): Cut(32, 8, 2),
    ("sm_80", "32 bit, 128 wide, 32 rows, full"): Cut(16, 16, 2),
    ("sm_89", "16 bit, 64 wide, 16 rows, paged"): Cut(32, 8, 5),
    ("sm_89", "16 bit, 64 wide, 64 rows, plain"): Cut(64, 8, 2),
    ("sm_89", "16 bit, 128 wide, 32 rows, usual"): Cut(32, 8, 3),
    ("sm_89", "16 bit, 128 wide, 64 rows, usual"): Cut(32, 8, 2),
    ("sm_89", "16 bit, 128 wide, 64 rows, paged"): Cut(32, 16, 5),
    ("sm_89", "16 bit, 192 wide, 16 rows, paged"): Cut(32, 8, 2),
    ("sm_89", "16 bit, 192 wide, 32 rows, usual"): Cut(32, 16, 2),
    ("sm_89", "16 bit, 256 wide, 16 rows, full"): Cut(32, 8, 2),
    ("sm_89", "16 bit, 256 wide, 32 rows, usual"): Cut(32, 16, 2),
    ("sm_89", "16 bit, 576 wide, 16 rows, full"): Cut(16, 8, 3),
    ("sm_89", "16 bit, 576 wide, 16 rows, paged, shared"): Cut(32, 16, 2),
    ("sm_89", "32 bit, 256 wide, 16 rows, plain"): Cut(16, 16, 2),
    ("sm_89", "32 bit, 256 wide, 16 rows, full"): Cut(16, 16, 2),
    ("sm_100", "16 bit, 64 wide, 16 rows, paged"): Cut(64, 8, 5),
    ("sm_100", "16 bit, 96 wide, 32 rows, full"): Cut(16, 8, 5),
    ("sm_100", "16 bit, 128 wide, 16 rows, plain"): Cut(64, 8, 3),
    ("sm_100", "16 bit, 192 wide, 16 rows, full"): Cut(32, 8, 4),
    ("gfx9", "16 bit, 256 wide, 32 rows, usual"): Cut(16, 8, 2),
    ("gfx9", "16 bit, 576 wide, 16 rows, paged, shared"): Cut(16, 4, 2),
}
"""Where the rules below spill with Triton 3.6 or 3.9, mostly a few bytes: the same tile by more warps if that helps."""


def ahead_for(problem: Problem, cut: Cut, columns: int) -> int:
    """Return how many states of so many columns a merge loads before it folds them: what registers hold."""
    threads = cut.num_warps * (32 if problem.arch.startswith("sm_") else 64)
    return max(2, min(MOST_AHEAD, REGISTERS_AHEAD * threads // (problem.rows * columns)))


def rows_of_program(rows: int, itemsize: int, width: int, form: str) -> int:
    """Rows of a program, for this many query rows that share a key head."""
    full = form == "full"
    most = MOST_ROWS[itemsize] if width <= WIDE and not full else MOST_ROWS_WIDE
    if full and width > (256 if itemsize == 2 else WIDE):
        most = FEWEST_ROWS
    return min(most, max(FEWEST_ROWS, 1 << (rows - 1).bit_length()))


def splits_for(n: int, programs: int, slots: int) -> int:
    """Into how many parts n keys are split, for the programs of one part and the programs that the GPU runs at once.

    Where one wave of programs all but fills the GPU there is one. Else it is the least number of splits that loses
    little by a last wave that is not full, beside the best.
    """
    programs = max(programs, 1)
    return _balanced(max(1, min(-(-n // KEYS_PER_SPLIT), -(-MOST_WAVES * slots // programs))), programs, slots)


def is_worth_ranges(n: int, programs: int, cut: Cut) -> bool:
    """Return whether entries of up to n keys each, `programs` tiles in all, are cut by ranges (`schedule_kernel`)."""
    return n > KEYS_PER_SPLIT and programs * -(-n // cut.block_n) < MOST_BLOCKS


def flat_programs(n: int, programs: int, slots: int) -> int:
    """Return how many programs share the keys of all entries: one wave, or fewer where n is small."""
    return min(slots, programs * -(-n // KEYS_PER_SPLIT))


def fewest_blocks(cut: Cut) -> int:
    """Key blocks that a range has at least."""
    return max(1, KEYS_PER_SPLIT // cut.block_n)


@lru_cache(maxsize=4096)  # a step of decoding asks for few different ones, in every layer
def _balanced(most: int, programs: int, slots: int) -> int:
    one_wave = slots // programs
    if programs * one_wave >= ALL_BUT_FULL * slots:
        return min(most, one_wave)
    times = [-(-programs * splits // slots) / splits for splits in range(1, most + 1)]
    return 1 + next(i for i, time in enumerate(times) if time <= LITTLE * min(times))
