"""Parts shared by the formats for GPU runtimes (MSCCL, MSCCL++): their common limits, and chunks of equal size.

Both have sums of whole buffers, cut in equal chunks; neither has routes, other operators, or unequal parts. Where a
call is in place, the result of a chunk overwrites the rank's own value of it: in each of these collectives output
(rank, chunk) and input (rank, chunk) are one range of memory. Programs are right in place and out of place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd

from topocomm.errors import PlanError
from topocomm.planning.collectives import CARRYING, Collective
from topocomm.planning.plan import Plan
from topocomm.planning.program.slot_memory import output_pieces
from topocomm.planning.schedule.schedule import Combine, Piece, Schedule, Transfer, input_pieces, make_schedule
from topocomm.topology.model import Topology

KNOWN = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
MOST_UNITS = 256
"""Most units of a payload with exact chunks: buffers must be divisible by it."""
ROUNDED_UNITS = 1024
"""Units of a payload with rounded chunks: a power of two, by which long buffers are divisible."""


Place = tuple[str, int]
"""(buffer i, o or s; unit)."""


@dataclass(frozen=True)
class Units:
    """The payload in equal units.

    Attributes:
        first: First unit of each chunk.
        count: Units of each chunk.
        total: Units of the payload.
        part: Units of a rank's part (allgather, reduce_scatter); 0 for other collectives.
    """

    collective: str
    first: tuple[int, ...]
    count: tuple[int, ...]
    total: int
    part: int = 0

    @property
    def input(self) -> int:
        """Units of a rank's input; of an allgather that is the rank's part alone."""
        return self.part if self.collective == "allgather" else self.total

    @property
    def output(self) -> int:
        """Units of a rank's output; of a reduce_scatter that is the rank's part alone."""
        return self.part if self.collective == "reduce_scatter" else self.total

    def place(self, buffer: str, rank: int, chunk: int) -> Place:
        """Return the place of a chunk in the input or output of a rank."""
        own = {"i": "allgather", "o": "reduce_scatter"}[buffer] == self.collective
        return buffer, self.first[chunk] - rank * self.part * own

    def sliced(self, slices: int) -> Units:
        """Return the units of the unrolled schedule: each chunk cut in equal slices."""
        return Units(
            self.collective,
            tuple(
                slices * low + i * own for low, own in zip(self.first, self.count, strict=True) for i in range(slices)
            ),
            tuple(own for own in self.count for _ in range(slices)),
            self.total * slices,
            self.part * slices,
        )


def check_exportable(plan: Plan, topology: Topology, form: str) -> None:
    """Refuse plans that no GPU runtime can run.

    Raises:
        PlanError: The message says what the format has instead.
    """
    name = plan.collective.name
    others = [f"{end}, a {topology.by_id[end].kind}" for end in plan.ranks if topology.by_id[end].kind != "gpu"]
    own_operator = (
        f"operator {plan.operator!r}: expected sum, because that runtime reduces with its built-in operators only; "
        "save the plan as JSON, or plan with --operator sum"
    )
    for refused, why in (
        (name not in KNOWN, f"{name}: expected one of {', '.join(KNOWN)}, the format has no other"),
        (plan.operator != "sum" and name not in CARRYING, own_operator),
        (plan.order == "canonical", "canonical order: expected order any, the format has one value a rank"),
        (others, f"rank on {''.join(others[:1])}: expected GPUs only"),
        (len(set(plan.ranks)) < len(plan.ranks), "several ranks on one GPU: expected one rank on each"),
    ):
        if refused:
            raise PlanError(f"{form}: {why}")


def program_name(plan: Plan) -> str:
    """Return a name of at most 63 characters, with the root, for which the formats have no other place."""
    root = f"-root{plan.collective.root}" if plan.collective.name in ("reduce", "broadcast") else ""
    return f"topocomm-{plan.algorithm[:28]}{root}-{plan.digest[:12]}"


def equal_units(collective: Collective, schedule: Schedule, form: str) -> tuple[Schedule, Units]:
    """Return a schedule with its chunks in equal units.

    Chunks whose rows differ by at most one are one unit each. Others are multiples of the largest unit that divides
    them all. Where that takes too many units, the borders are rounded to `ROUNDED_UNITS` and empty chunks are left out:
    any cut of the payload is correct, and the busiest link carries 1 or 2 % more.

    Raises:
        PlanError: The parts of the ranks are not equal.
    """
    chunks, parts = schedule.chunks, collective.parts
    owners = collective.owners(chunks)
    rows = [count for _, count in chunks]
    unit = 0 if max(rows) - min(rows) <= 1 else gcd(*rows)
    count = [own // unit for own in rows] if unit else [1] * len(rows)
    even = not parts or max(parts) - min(parts) <= 1
    if even and sum(count) > MOST_UNITS:
        return _rounded(collective, schedule, owners)
    first, at = [0] * len(rows), 0
    for chunk in sorted(range(len(chunks)), key=lambda chunk: (chunks[chunk][0], chunk)):
        first[chunk], at = at, at + count[chunk]
    own = [0] * collective.ranks
    for chunk, owner in enumerate(owners):
        own[owner] += count[chunk]
    even = even and min(own) == max(own)
    if not even or any(first[chunk] // own[0] != owner for chunk, owner in enumerate(owners)):
        raise PlanError(
            f"{form}: {collective.name} with parts of {min(parts)} to {max(parts)} rows: expected equal parts; choose "
            f"--bytes that cuts evenly among {collective.ranks} ranks"
        )
    return schedule, Units(collective.name, tuple(first), tuple(count), at, own[0])


def _rounded(collective: Collective, schedule: Schedule, owners: Sequence[int]) -> tuple[Schedule, Units]:
    """The schedule with the borders of chunks rounded to units, within each part where there are parts."""
    part = max(ROUNDED_UNITS // collective.ranks, 1) if owners else 0
    sizes = collective.parts or (schedule.rows,)
    starts, units = [0, *accumulate(sizes)], part or ROUNDED_UNITS

    def border(row: int, owner: int) -> int:
        return owner * units + (2 * (row - starts[owner]) * units + sizes[owner]) // (2 * sizes[owner])

    parts = owners or [0] * len(schedule.chunks)
    cuts = [(border(low, o), border(low + own, o)) for (low, own), o in zip(schedule.chunks, parts, strict=True)]
    kept = [chunk for chunk, (low, high) in enumerate(cuts) if low < high]
    number = {chunk: new for new, chunk in enumerate(kept)}
    restricted = make_schedule(
        schedule.ranks,
        [schedule.chunks[chunk] for chunk in kept],
        inputs=schedule.inputs.tolist(),
        outputs=[(rank, slot, number[c]) for rank, slot, c in schedule.outputs.tolist() if c in number],
        transfers=[m._replace(chunk=number[m.chunk]) for m in schedule.transfer_list() if m.chunk in number],
        combines=[f._replace(chunk=number[f.chunk]) for f in schedule.combine_list() if f.chunk in number],
        paths=schedule.paths,
        owners=[schedule.owners[chunk] for chunk in kept] if schedule.owners else (),
        repeat=schedule.repeat,
    )
    first, count = tuple(cuts[chunk][0] for chunk in kept), tuple(cuts[c][1] - cuts[c][0] for c in kept)
    return restricted, Units(collective.name, first, count, units * len(sizes), part)


@dataclass(frozen=True)
class RankUse:
    """The pieces of one rank's input and result, and the events that read each piece, transfers before combines."""

    inputs: frozenset[Piece]
    outputs: frozenset[Piece]
    reads: dict[Piece, list[Transfer | Combine]]


class Memory:
    """Places of pieces: inputs in the input, results in the output where that is free, all else in scratch memory.

    `places` has that of each piece, by rank, at first of the inputs; `scratch` the units in use by rank.
    """

    def __init__(self, schedule: Schedule, units: Units) -> None:
        self.units, self.uses, self.scratch = units, _uses_of(schedule), [0] * schedule.ranks
        self.places = [
            {piece: units.place("i", rank, piece[1]) for piece in use.inputs} for rank, use in enumerate(self.uses)
        ]

    def place(self, rank: int, piece: Piece, free: bool) -> Place:
        """Return the place that a piece gets; `free`: whether the output of its chunk may be written."""
        if free and piece in self.uses[rank].outputs:
            place = self.units.place("o", rank, piece[1])
        else:
            place = "s", self.scratch[rank]
            self.scratch[rank] += self.units.count[piece[1]]
        self.places[rank][piece] = place
        return place


def _uses_of(schedule: Schedule) -> list[RankUse]:
    reads: list[dict[Piece, list[Transfer | Combine]]] = [{} for _ in range(schedule.ranks)]
    for moves, folds in schedule.by_round():
        for move in moves:
            reads[move.src].setdefault((move.src_slot, move.chunk), []).append(move)
        for fold in folds:
            for slot in dict.fromkeys(fold.operands):
                reads[fold.rank].setdefault((slot, fold.chunk), []).append(fold)
    return [
        RankUse(frozenset(input_pieces(schedule, rank)), frozenset(output_pieces(schedule, rank)), reads[rank])
        for rank in range(schedule.ranks)
    ]
