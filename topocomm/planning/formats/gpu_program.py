"""What the formats for GPU runtimes (MSCCL, MSCCL++) share: what they can say at all, and chunks of equal size.

Both know sums of whole buffers, cut in equal chunks; neither knows routes, other operators, nor parts that differ.
Where a call is in place, the result of a chunk takes the place of the rank's own value of it: in each of these
collectives output (rank, chunk) and input (rank, chunk) are one range of memory. Programs are written so that they are
right in place and out of place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from topocomm.errors import PlanError
from topocomm.planning.collectives import CARRYING, IN_PARTS, Collective
from topocomm.planning.plan import Plan
from topocomm.planning.schedule import Combine, Schedule, Transfer, input_pieces, make_schedule, split_rows
from topocomm.topology.model import Topology

KNOWN = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
MOST_UNITS = 256
"""A buffer must divide by their number: with more of them hardly a buffer does."""

Piece = tuple[int, int]
"""(slot, chunk) of one rank."""


@dataclass(frozen=True)
class Units:
    """The payload in equal units: chunk c is `count[c]` of them from `first[c]`.

    `part` is how many of the units are a rank's part (allgather, reduce_scatter); 0 for other collectives.
    """

    first: tuple[int, ...]
    count: tuple[int, ...]
    total: int
    part: int = 0

    @property
    def size(self) -> int:
        """Units of a rank's part, or of the whole where there are no parts."""
        return self.part or self.total

    def input_offset(self, collective: str, rank: int, chunk: int) -> int:
        """Where the rank's input has the chunk; the input of an allgather is the rank's part alone."""
        return self.first[chunk] - rank * self.part * (collective == "allgather")

    def output_offset(self, collective: str, rank: int, chunk: int) -> int:
        """Where the rank's output has the chunk; the output of a reduce_scatter is the rank's part alone."""
        return self.first[chunk] - rank * self.part * (collective == "reduce_scatter")

    def sliced(self, slices: int) -> Units:
        """Each chunk cut in equal slices, chunk by chunk: the chunks of `unrolled`."""
        return Units(
            tuple(
                slices * low + i * own for low, own in zip(self.first, self.count, strict=True) for i in range(slices)
            ),
            tuple(own for own in self.count for _ in range(slices)),
            self.total * slices,
            self.part * slices,
        )


def check_exportable(plan: Plan, topology: Topology, form: str) -> None:
    """Refuse what no GPU runtime can be told.

    Raises:
        PlanError: The message says what the format has instead.
    """
    name = plan.collective.name
    if name not in KNOWN:
        raise PlanError(f"{form}: {name}: expected one of {', '.join(KNOWN)}, the format has no other")
    if plan.operator != "sum" and name not in CARRYING:
        raise PlanError(
            f"{form}: operator {plan.operator!r}: expected sum, because that runtime reduces with its built-in "
            "operators only; save the plan as JSON, or plan with --operator sum"
        )
    if plan.order == "canonical":
        raise PlanError(f"{form}: canonical order: expected order any, the format has one value a rank")
    others = [end for end in plan.ranks if topology.by_id[end].kind != "gpu"]
    if others:
        raise PlanError(f"{form}: rank on {others[0]}, a {topology.by_id[others[0]].kind}: expected GPUs only")
    if len(set(plan.ranks)) < len(plan.ranks):
        raise PlanError(f"{form}: several ranks on one GPU: expected one rank on each")


def program_name(plan: Plan) -> str:
    """A name of at most 63 characters; with the root, which the formats have no other place for."""
    root = f"-root{plan.collective.root}" if plan.collective.name in ("reduce", "broadcast") else ""
    return f"topocomm-{plan.algorithm[:28]}{root}-{plan.digest[:12]}"


def equal_units(collective: Collective, schedule: Schedule, form: str) -> Units:
    """The chunks of a schedule in equal units.

    Chunks that are as even as their rows allow are equal chunks that a row does not divide: each is one unit. Others
    are whole numbers of the greatest unit that divides them all.

    Raises:
        PlanError: That takes too many units, or the parts of the ranks are not equal.
    """
    chunks = schedule.chunks
    order = sorted(range(len(chunks)), key=lambda chunk: (chunks[chunk][0], chunk))
    rows = [count for _, count in chunks]
    if max(rows) - min(rows) <= 1:
        count = [1] * len(rows)
    else:
        unit = gcd(*rows)
        count = [own // unit for own in rows]
    total = sum(count)
    if total > MOST_UNITS:
        raise PlanError(
            f"{form}: chunks of {min(rows)} to {max(rows)} rows take {total} equal units: expected at most "
            f"{MOST_UNITS}; choose --bytes that cuts evenly"
        )
    first, at = [0] * len(rows), 0
    for chunk in order:
        first[chunk], at = at, at + count[chunk]
    part = _equal_part(collective, chunks, (first, count), form) if collective.name in IN_PARTS else 0
    return Units(tuple(first), tuple(count), total, part)


def _equal_part(
    collective: Collective, chunks: Sequence[tuple[int, int]], units: tuple[list[int], list[int]], form: str
) -> int:
    """Units of every rank's part, which must be the same number."""
    first, count = units
    own = [0] * collective.ranks
    owners = collective.owners(chunks)
    for chunk, owner in enumerate(owners):
        own[owner] += count[chunk]
    parts = collective.parts
    even = max(parts) - min(parts) <= 1 and min(own) == max(own)
    if not even or any(first[chunk] // own[0] != owner for chunk, owner in enumerate(owners)):
        raise PlanError(
            f"{form}: {collective.name} with parts of {min(parts)} to {max(parts)} rows: expected equal parts; choose "
            f"--bytes that cuts evenly among {collective.ranks} ranks"
        )
    return own[0]


def unrolled(schedule: Schedule) -> Schedule:
    """A pipelined schedule written out: slice i of every chunk in rounds i * stagger and after."""
    repeat = schedule.repeat
    if repeat is None or repeat.count == 1:
        return schedule
    slices = range(repeat.count)
    later = [repeat.stagger_rounds * i for i in slices]
    chunks = [(first + low, rows) for first, whole in schedule.chunks for low, rows in split_rows(whole, repeat.count)]
    moves, folds = schedule.transfer_list(), schedule.combine_list()
    count = repeat.count
    return make_schedule(
        schedule.ranks,
        chunks,
        inputs=schedule.inputs.tolist(),
        outputs=[(rank, slot, chunk * count + i) for rank, slot, chunk in schedule.outputs.tolist() for i in slices],
        transfers=[m._replace(round=m.round + later[i], chunk=m.chunk * count + i) for i in slices for m in moves],
        combines=[f._replace(round=f.round + later[i], chunk=f.chunk * count + i) for i in slices for f in folds],
        paths=schedule.paths,
        owners=[owner for owner in schedule.owners for _ in slices],
    )


@dataclass(frozen=True)
class RankUse:
    """What one rank does with its pieces."""

    inputs: frozenset[Piece]
    outputs: frozenset[Piece]
    reads: dict[Piece, list[Transfer | Combine]]
    """In the order of rounds; within one, transfers before combines."""


def uses_of(schedule: Schedule) -> list[RankUse]:
    """What every rank does with its pieces."""
    outputs: list[set[Piece]] = [set() for _ in range(schedule.ranks)]
    for rank, slot, chunk in schedule.outputs.tolist():
        outputs[rank].add((slot, chunk))
    reads: list[dict[Piece, list[Transfer | Combine]]] = [{} for _ in range(schedule.ranks)]
    events: list[Transfer | Combine] = [*schedule.transfer_list(), *schedule.combine_list()]
    for event in sorted(events, key=lambda e: (e.round, isinstance(e, Combine))):
        if isinstance(event, Transfer):
            reads[event.src].setdefault((event.src_slot, event.chunk), []).append(event)
        else:
            for slot in dict.fromkeys(event.operands):
                reads[event.rank].setdefault((slot, event.chunk), []).append(event)
    return [
        RankUse(frozenset(input_pieces(schedule, rank)), frozenset(outputs[rank]), reads[rank])
        for rank in range(schedule.ranks)
    ]
