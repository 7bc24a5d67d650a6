"""The MSCCL XML of a plan for sums: thread blocks of steps, as microsoft/msccl and RCCL read them.

Every rank has a thread block per peer and direction on a channel, and one for what it folds and copies by itself. A
step waits for steps of other thread blocks of its GPU (`depid`, `deps`); a step that has several to wait for has
`nop` steps before it. Sends and receives of a pair and channel match in order.

No deadlock, whatever the buffers of the channels hold: order all steps by (round, messages before folds, place in the
list) with the two ends of a message as one. Thread blocks run in that order and every step waits for earlier ones only,
so the first step that is not done can run. That is why a receive reduces by itself (`rrc`) only where its other operand
is there before the round.

The runtime cuts long buffers in slices and runs the program for each, so the `repeat` of a pipelined plan is its own
work; and it chooses the routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from topocomm.errors import PlanError
from topocomm.planning.formats.gpu_program import Piece, Units, check_exportable, equal_units, program_name, uses_of
from topocomm.planning.plan import Plan
from topocomm.planning.schedule import Combine, Schedule, Transfer
from topocomm.topology.model import Topology

FORM = "msccl-xml"
MOST_STEPS = 256
MOST_BLOCKS = 128
"""Thread blocks of a GPU: a step names the one it waits for in 8 bits with sign."""
MOST_CHANNELS = 32
MOST_PEERS = 32
"""Peers of a GPU on one channel."""
MOST_COUNT = 64
"""Units that one step moves; the runtime takes fewer than 72."""
MOST_SCRATCH = 32767
MOST_FUSED = 16
"""Reductions into one place that the runtime runs as one; it does not check that there are no more."""
LL_BYTES = 65536
"""Up to this payload the low-latency protocol, which sends a flag with every 4 bytes."""
MOST_BYTES = 2**63 - 1

Place = tuple[str, int]
"""(buffer i, o or s; unit)."""
Block = tuple[int, int, int]
"""(send peer, receive peer, channel) of a thread block; -1 is none."""
When = tuple[int, bool]
"""(round, whether among its folds, which come after its messages)."""


@dataclass(eq=False)
class Step:
    """One step of a thread block before it has a number."""

    block: Block
    kind: str
    src: Place
    dst: Place
    count: int
    needs: list[Step] = field(default_factory=list)
    number: int = -1
    awaited: bool = False


def dumps(plan: Plan, topology: Topology) -> str:
    """The plan as MSCCL XML, ending in a newline.

    Raises:
        PlanError: The format cannot say it; the message says why.
    """
    check_exportable(plan, topology, FORM)
    schedule, units = equal_units(plan.collective, plan.schedule, FORM)
    program = _Program(plan.collective.name, schedule, units)
    name = plan.collective.name
    gpus = [_gpu_lines(program, rank) for rank in range(plan.schedule.ranks)]
    channels = 1 + max((step.block[2] for steps in program.steps for step in steps), default=0)
    if channels > MOST_CHANNELS:
        raise PlanError(f"{FORM}: {channels} channels: expected at most {MOST_CHANNELS}; choose another algorithm")
    parts = bool(units.part)
    head = {
        "name": program_name(plan),
        "proto": "LL" if plan.payload_bytes <= LL_BYTES and plan.objective != "throughput" else "Simple",
        "nchannels": channels,
        "nchunksperloop": units.total,
        "ngpus": plan.schedule.ranks,
        "coll": name,
        "inplace": int(not parts),
        "outofplace": 1,
        "minBytes": 0,
        "maxBytes": MOST_BYTES,
    }
    lines = [f"<algo {_attributes(head)}>", *(line for gpu in gpus for line in gpu), "</algo>"]
    return "\n".join(lines) + "\n"


class _Program:
    """The steps of all ranks."""

    def __init__(self, name: str, schedule: Schedule, units: Units) -> None:
        self.name, self.schedule, self.units = name, schedule, units
        self.uses = uses_of(schedule)
        self.scratch = [0] * schedule.ranks
        self.steps: list[list[Step]] = [[] for _ in range(schedule.ranks)]
        """In an order in which they can run."""
        self.places: list[dict[Piece, Place]] = [{} for _ in range(schedule.ranks)]
        self.writer: list[dict[Piece, list[Step]]] = [{} for _ in range(schedule.ranks)]
        self.readers: list[dict[Piece, list[Step]]] = [{} for _ in range(schedule.ranks)]
        self.late: list[tuple[int, Piece]] = []
        """Results that lie elsewhere and are copied at the end."""
        self._place_inputs()
        self.written, self.arrivals = _rounds_of(schedule)
        self.fused = {key: fold for fold in schedule.combine_list() if (key := self._fusible(fold)) is not None}
        self._run()

    def _place_inputs(self) -> None:
        for rank, use in enumerate(self.uses):
            for piece in sorted(use.inputs):
                self.places[rank][piece] = ("i", self.units.input_offset(self.name, rank, piece[1]))

    def _fusible(self, fold: Combine) -> tuple[int, int, int] | None:
        """(rank, slot, chunk) of the operand that is reduced as it arrives, if the fold can be done so.

        Of two operands one must arrive, be read by nothing else, and find the other there before its round.
        """
        if len(fold.operands) != 2:
            return None
        use = self.uses[fold.rank]
        for slot, other in (fold.operands, fold.operands[::-1]):
            piece, partner = (slot, fold.chunk), (other, fold.chunk)
            arrival = self.arrivals.get((fold.rank, *piece))
            if arrival is None or piece in use.outputs or len(use.reads[piece]) > 1:
                continue
            if partner in use.inputs or self.written[fold.rank, *partner] < arrival:
                return (fold.rank, *piece)
        return None

    def _run(self) -> None:
        merged = set(self.fused.values())
        moves: list[list[Transfer]] = [[] for _ in range(self.schedule.rounds)]
        folds: list[list[Combine]] = [[] for _ in range(self.schedule.rounds)]
        for move in self.schedule.transfer_list():
            moves[move.round].append(move)
        for fold in self.schedule.combine_list():
            if fold not in merged:
                folds[fold.round].append(fold)
        for round_ in range(self.schedule.rounds):
            for move in moves[round_]:
                self._message(move, (round_, False))
            for fold in folds[round_]:
                self._fold(fold, (round_, True))
        for rank, use in enumerate(self.uses):
            self.late += [(rank, piece) for piece in sorted(use.outputs) if self.places[rank][piece][0] != "o"]
        for rank, piece in self.late:
            self._copy_out(rank, piece)

    def _message(self, move: Transfer, when: When) -> None:
        src, dst = (move.src_slot, move.chunk), (move.dst_slot, move.chunk)
        channel = (move.dst - move.src) % self.schedule.ranks // MOST_PEERS
        place = self.places[move.src][src]
        sends = self._steps(move.src, (move.dst, -1, channel), "s", place, place, move.chunk)
        self._reads(move.src, src, sends)
        fold = self.fused.get((move.dst, *dst))
        block = (-1, move.src, channel)
        if fold is None:
            home = self._home(move.dst, dst, when)
            self._writes(move.dst, dst, self._steps(move.dst, block, "r", home, home, move.chunk))
            return
        other = next((slot, fold.chunk) for slot in fold.operands if slot != move.dst_slot)
        out = (fold.out_slot, fold.chunk)
        home = self._home(move.dst, out, when, other)
        steps = self._steps(move.dst, block, "rrc", self.places[move.dst][other], home, move.chunk)
        self._reads(move.dst, other, steps)
        self._writes(move.dst, out, steps)

    def _fold(self, fold: Combine, when: When) -> None:
        """The left fold of the operands into a place of its own, begun with a copy of the first."""
        rank, out = fold.rank, (fold.out_slot, fold.chunk)
        operands = [(slot, fold.chunk) for slot in fold.operands]
        if operands[1] in self.uses[rank].inputs:  # a + b is b + a bit by bit; in place the own value is the result's
            operands[:2] = operands[1], operands[0]
        home = self._home(rank, out, when, operands[0])
        for index, operand in enumerate(operands):
            kind = "re" if index else "cpy"
            steps = self._steps(rank, _LOCAL, kind, self.places[rank][operand], home, fold.chunk)
            for step in steps:  # a flag that nobody waits for, but that ends a run of reductions
                step.awaited = index > 0 and index % MOST_FUSED == 0
            self._reads(rank, operand, steps)
            self._writes(rank, out, steps)

    def _copy_out(self, rank: int, piece: Piece) -> None:
        home = ("o", self.units.output_offset(self.name, rank, piece[1]))
        steps = self._steps(rank, _LOCAL, "cpy", self.places[rank][piece], home, piece[1])
        self._reads(rank, piece, steps)
        self._wait_for_readers(rank, piece[1], steps)

    def _home(self, rank: int, piece: Piece, when: When, own: Piece | None = None) -> Place:
        """Where a piece is written: straight into the output, if nothing reads the rank's own value there later.

        Args:
            rank: Whose piece.
            piece: What is written.
            when: When that is.
            own: What the same step reads first; it may lie in the same place.
        """
        use = self.uses[rank]
        if piece in use.outputs and all(
            _before(event, when) or (reader == own and _same(event, piece, reader))
            for reader in use.inputs
            if reader[1] == piece[1]
            for event in use.reads.get(reader, ())
        ):
            home = ("o", self.units.output_offset(self.name, rank, piece[1]))
        else:
            home = ("s", self.scratch[rank])
            self.scratch[rank] += self.units.count[piece[1]]
        self.places[rank][piece] = home
        return home

    def _steps(self, rank: int, block: Block, kind: str, src: Place, dst: Place, chunk: int) -> list[Step]:
        """Steps for all units of a chunk, added to a thread block."""
        whole = self.units.count[chunk]
        steps = [
            Step(block, kind, (src[0], src[1] + at), (dst[0], dst[1] + at), min(MOST_COUNT, whole - at))
            for at in range(0, whole, MOST_COUNT)
        ]
        self.steps[rank] += steps
        return steps

    def _reads(self, rank: int, piece: Piece, steps: list[Step]) -> None:
        for step in steps:
            step.needs += self.writer[rank].get(piece, [])
        self.readers[rank].setdefault(piece, []).extend(steps)

    def _writes(self, rank: int, piece: Piece, steps: list[Step]) -> None:
        if self.places[rank][piece][0] == "o":
            self._wait_for_readers(rank, piece[1], steps)
        self.writer[rank].setdefault(piece, []).extend(steps)

    def _wait_for_readers(self, rank: int, chunk: int, steps: list[Step]) -> None:
        """In place the result overwrites the own value: whoever reads that comes first."""
        for own in sorted(self.uses[rank].inputs):
            if own[1] == chunk:
                for step in steps:
                    step.needs += [reader for reader in self.readers[rank].get(own, ()) if reader not in steps]


_LOCAL: Block = (-1, -1, 0)


def _before(event: Transfer | Combine, when: When) -> bool:
    return (event.round, isinstance(event, Combine)) < when


def _same(event: Transfer | Combine, piece: Piece, own: Piece) -> bool:
    """Whether the event is the fold that writes `piece`, and reads `own` once."""
    return isinstance(event, Combine) and event.out_slot == piece[0] and event.operands.count(own[0]) == 1


def _rounds_of(schedule: Schedule) -> tuple[dict[tuple[int, int, int], int], dict[tuple[int, int, int], int]]:
    """(rank, slot, chunk) -> the round that writes it; the same of those that arrive."""
    arrivals = {(move.dst, move.dst_slot, move.chunk): move.round for move in schedule.transfer_list()}
    folds = {(fold.rank, fold.out_slot, fold.chunk): fold.round for fold in schedule.combine_list()}
    return {**arrivals, **folds}, arrivals


def _gpu_lines(program: _Program, rank: int) -> list[str]:
    """The element of one GPU."""
    steps = program.steps[rank]
    blocks = {block: index for index, block in enumerate(sorted({step.block for step in steps}))}
    if len(blocks) > MOST_BLOCKS:
        raise PlanError(f"{FORM}: {len(blocks)} thread blocks on rank {rank}: expected at most {MOST_BLOCKS}")
    if program.scratch[rank] > MOST_SCRATCH:
        raise PlanError(f"{FORM}: {program.scratch[rank]} scratch chunks: expected at most {MOST_SCRATCH}")
    listed: dict[Block, list[tuple[Step | None, Step | None]]] = {block: [] for block in blocks}
    known: dict[Block, dict[Block, int]] = {block: {} for block in blocks}
    for step in steps:
        waits = _waits(step, known[step.block])
        own = listed[step.block]
        own += [(None, wait) for wait in waits[:-1]]
        step.number = len(own)
        own.append((step, waits[-1] if waits else None))
    name, units = program.name, program.units
    sizes = {
        "id": rank,
        "i_chunks": units.size if name == "allgather" else units.total,
        "o_chunks": units.size if name == "reduce_scatter" else units.total,
        "s_chunks": program.scratch[rank],
    }
    lines = [f"  <gpu {_attributes(sizes)}>"]
    for block, index in blocks.items():
        if len(listed[block]) > MOST_STEPS:
            raise PlanError(f"{FORM}: {len(listed[block])} steps in a thread block: expected at most {MOST_STEPS}")
        send, receive, channel = block
        lines.append(f"    <tb {_attributes({'id': index, 'send': send, 'recv': receive, 'chan': channel})}>")
        lines += [_step_line(number, *entry, blocks) for number, entry in enumerate(listed[block])]
        lines.append("    </tb>")
    return [*lines, "  </gpu>"]


def _waits(step: Step, known: dict[Block, int]) -> list[Step]:
    """The steps of other thread blocks to wait for, at most one of each, and none that was waited for before.

    A thread block runs in order: to wait for one step is to wait for those before it.
    """
    last: dict[Block, Step] = {}
    for need in step.needs:
        if need.block != step.block and need.number >= last.get(need.block, need).number:
            last[need.block] = need
    waits = [need for block, need in sorted(last.items()) if need.number > known.get(block, -1)]
    for need in waits:
        known[need.block] = need.number
        need.awaited = True
    return waits


def _step_line(number: int, step: Step | None, wait: Step | None, blocks: dict[Block, int]) -> str:
    src, dst = (step.src, step.dst) if step else (("i", -1), ("o", -1))
    entry: dict[str, int | str] = {
        "s": number,
        "type": step.kind if step else "nop",
        "srcbuf": src[0],
        "srcoff": src[1],
        "dstbuf": dst[0],
        "dstoff": dst[1],
        "cnt": step.count if step else 0,
        "depid": blocks[wait.block] if wait else -1,
        "deps": wait.number if wait else -1,
        "hasdep": int(step.awaited) if step else 0,
    }
    return f"      <step {_attributes(entry)}/>"


def _attributes(pairs: Mapping[str, int | str]) -> str:
    return " ".join(f"{key}={quoteattr(str(value))}" for key, value in pairs.items())
