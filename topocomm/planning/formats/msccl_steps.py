"""The steps of a plan as MSCCL's runtimes run them, before thread blocks are made of them.

Both ends of a message make their step together, so the steps of all ranks have one order: by round, messages before
folds, place in the list. Every step needs earlier ones only. That is why a receive reduces by itself (`rrc`) only
where its other operand is there before the round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from topocomm.planning.formats.gpu_program import Units, uses_of
from topocomm.planning.schedule.schedule import Combine, Piece, Schedule, Transfer

MOST_COUNT = 64
"""Most units of one step; each runtime takes fewer than 72 (MSCCL_MAX_COUNT)."""
MOST_FUSED = 16
"""Most reductions into one place that run as one (MSCCL_MAX_REDUCE_FUSION); no runtime checks it."""
Place = tuple[str, int]
"""(buffer i, o or s; unit)."""
Connection = tuple[int, int]
"""(sender, receiver); twice the same rank for what that rank does by itself."""
When = tuple[int, bool]
"""(round, whether among its folds, which come after its messages)."""


@dataclass(eq=False)
class Step:
    """One step of a rank.

    Attributes:
        connection: What it belongs to.
        turn: Its place among the steps of the connection; both ends of a message have the same.
        kind: `s`, `r`, `rrc`, `cpy` or `re`.
        src: What it reads, or what it sends.
        dst: What it writes.
        count: Units.
        needs: Earlier steps of the same rank that must be done.
        ends_run: Whether the runtime may not join later reductions to it.
    """

    connection: Connection
    turn: int
    kind: str
    src: Place
    dst: Place
    count: int
    needs: list[Step] = field(default_factory=list)
    ends_run: bool = False


@dataclass
class _Run:
    """Chunks of one message that lie one behind the other everywhere: what is sent, read, and written."""

    kind: str
    places: tuple[Place, Place, Place]
    count: int
    sent: list[Piece]
    read: list[Piece]
    written: list[Piece]

    def takes(self, kind: str, places: tuple[Place, Place, Place], count: int) -> bool:
        """Whether a chunk continues the run and one step still moves it."""
        follow = tuple((buffer, unit + self.count) for buffer, unit in self.places)
        return kind == self.kind and places == follow and self.count + count <= MOST_COUNT


class Program:
    """The steps of all ranks.

    Attributes:
        steps: Of each rank, in an order in which they can run.
        scratch: Units of scratch memory of each rank.
        turns: How many steps each connection has.
    """

    def __init__(self, name: str, schedule: Schedule, units: Units, *, merged: bool = True) -> None:
        """Make the steps.

        Args:
            name: The collective.
            schedule: Without `repeat`: the runtime slices by itself.
            units: Its chunks in units.
            merged: Whether chunks of one message that are neighbours share a step.
        """
        self.name, self.schedule, self.units, self.merged = name, schedule, units, merged
        self.scratch = [0] * schedule.ranks
        self.steps: list[list[Step]] = [[] for _ in range(schedule.ranks)]
        self.turns: dict[Connection, int] = {}
        self._uses = uses_of(schedule)
        self._places: list[dict[Piece, Place]] = [{} for _ in range(schedule.ranks)]
        self._writer: list[dict[Piece, list[Step]]] = [{} for _ in range(schedule.ranks)]
        self._readers: list[dict[Piece, list[Step]]] = [{} for _ in range(schedule.ranks)]
        self._place_inputs()
        self._written, self._arrivals = _rounds_of(schedule)
        self._fused = {key: fold for fold in schedule.combine_list() if (key := self._fusible(fold)) is not None}
        self._run()

    def _place_inputs(self) -> None:
        for rank, use in enumerate(self._uses):
            for piece in sorted(use.inputs):
                self._places[rank][piece] = ("i", self.units.input_offset(self.name, rank, piece[1]))

    def _fusible(self, fold: Combine) -> tuple[int, int, int] | None:
        """(rank, slot, chunk) of the operand that is reduced as it arrives, if the fold can be done so.

        Of two operands one must arrive, be read by nothing else, and find the other there before its round.
        """
        if len(fold.operands) != 2:
            return None
        use = self._uses[fold.rank]
        for slot, other in (fold.operands, fold.operands[::-1]):
            piece, partner = (slot, fold.chunk), (other, fold.chunk)
            arrival = self._arrivals.get((fold.rank, *piece))
            if arrival is None or piece in use.outputs or len(use.reads[piece]) > 1:
                continue
            if partner in use.inputs or self._written[fold.rank, *partner] < arrival:
                return (fold.rank, *piece)
        return None

    def _run(self) -> None:
        merged = set(self._fused.values())
        moves: list[dict[Connection, list[Transfer]]] = [{} for _ in range(self.schedule.rounds)]
        folds: list[list[Combine]] = [[] for _ in range(self.schedule.rounds)]
        for move in self.schedule.transfer_list():
            moves[move.round].setdefault((move.src, move.dst), []).append(move)
        for fold in self.schedule.combine_list():
            if fold not in merged:
                folds[fold.round].append(fold)
        for round_ in range(self.schedule.rounds):
            for message in moves[round_].values():
                self._message(sorted(message, key=lambda move: self.units.first[move.chunk]), (round_, False))
            for fold in folds[round_]:
                self._fold(fold, (round_, True))
        for rank, use in enumerate(self._uses):
            for piece in sorted(use.outputs):
                if self._places[rank][piece][0] != "o":
                    self._copy_out(rank, piece)

    def _message(self, moves: list[Transfer], when: When) -> None:
        """What one rank sends to another in one round."""
        runs: list[_Run] = []
        for move in moves:
            self._add(runs, move, when)
        connection = (moves[0].src, moves[0].dst)
        for run in runs:
            sends, receives = self._both_ends(connection, run)
            self._reads(connection[0], run.sent, sends)
            self._reads(connection[1], run.read, receives)
            self._writes(connection[1], run.written, receives)

    def _add(self, runs: list[_Run], move: Transfer, when: When) -> None:
        src, dst, count = (move.src_slot, move.chunk), (move.dst_slot, move.chunk), self.units.count[move.chunk]
        fold = self._fused.get((move.dst, *dst))
        if fold is None:
            kind, read, written = "r", [], dst
            home = origin = self._home(move.dst, dst, when)
        else:
            other = next((slot, fold.chunk) for slot in fold.operands if slot != move.dst_slot)
            kind, read, written = "rrc", [other], (fold.out_slot, fold.chunk)
            origin, home = self._places[move.dst][other], self._home(move.dst, written, when, other)
        places = (self._places[move.src][src], origin, home)
        if not (self.merged and runs and runs[-1].takes(kind, places, count)):
            runs.append(_Run(kind, places, 0, [], [], []))
        runs[-1].count += count
        runs[-1].sent.append(src)
        runs[-1].read += read
        runs[-1].written.append(written)

    def _both_ends(self, connection: Connection, run: _Run) -> tuple[list[Step], list[Step]]:
        """The steps of the sender and of the receiver, as many."""
        sender, receiver = connection
        sends, receives = [], []
        sent, origin, home = run.places
        for at in range(0, run.count, MOST_COUNT):
            count, turn = min(MOST_COUNT, run.count - at), self._turn(connection)
            sends.append(Step(connection, turn, "s", _after(sent, at), _after(sent, at), count))
            receives.append(Step(connection, turn, run.kind, _after(origin, at), _after(home, at), count))
        self.steps[sender] += sends
        self.steps[receiver] += receives
        return sends, receives

    def _fold(self, fold: Combine, when: When) -> None:
        """The left fold of the operands into a place of its own, begun with a copy of the first."""
        rank, out = fold.rank, (fold.out_slot, fold.chunk)
        operands = [(slot, fold.chunk) for slot in fold.operands]
        if operands[1] in self._uses[rank].inputs:  # a + b is b + a bit by bit; in place the own value is the result's
            operands[:2] = operands[1], operands[0]
        home = self._home(rank, out, when, operands[0])
        before: list[Step] = []
        for index, operand in enumerate(operands):
            steps = self._local(rank, "re" if index else "cpy", self._places[rank][operand], home, fold.chunk)
            for number, step in enumerate(steps):
                step.needs += before[number : number + 1]
                step.ends_run = index > 0 and index % MOST_FUSED == 0
            self._reads(rank, [operand], steps)
            self._writes(rank, [out], steps)
            before = steps

    def _copy_out(self, rank: int, piece: Piece) -> None:
        """A result that lies elsewhere is copied at the end."""
        home = ("o", self.units.output_offset(self.name, rank, piece[1]))
        steps = self._local(rank, "cpy", self._places[rank][piece], home, piece[1])
        self._reads(rank, [piece], steps)
        if piece not in self._uses[rank].inputs:  # in place the own value is copied onto itself
            self._wait_for_readers(rank, piece[1], steps)

    def _local(self, rank: int, kind: str, src: Place, dst: Place, chunk: int) -> list[Step]:
        """Steps for all units of a chunk that the rank does by itself."""
        whole, own = self.units.count[chunk], (rank, rank)
        steps = [
            Step(own, self._turn(own), kind, _after(src, at), _after(dst, at), min(MOST_COUNT, whole - at))
            for at in range(0, whole, MOST_COUNT)
        ]
        self.steps[rank] += steps
        return steps

    def _turn(self, connection: Connection) -> int:
        turn = self.turns.get(connection, 0)
        self.turns[connection] = turn + 1
        return turn

    def _home(self, rank: int, piece: Piece, when: When, own: Piece | None = None) -> Place:
        """Where a piece is written: straight into the output, if nothing reads the rank's own value there later.

        Args:
            rank: Whose piece.
            piece: What is written.
            when: When that is.
            own: What the same step reads first; it may lie in the same place.
        """
        use = self._uses[rank]
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
        self._places[rank][piece] = home
        return home

    def _reads(self, rank: int, pieces: Iterable[Piece], steps: list[Step]) -> None:
        for piece in pieces:
            for step in steps:
                step.needs += self._writer[rank].get(piece, [])
            self._readers[rank].setdefault(piece, []).extend(steps)

    def _writes(self, rank: int, pieces: Iterable[Piece], steps: list[Step]) -> None:
        for piece in pieces:
            if self._places[rank][piece][0] == "o":
                self._wait_for_readers(rank, piece[1], steps)
            self._writer[rank].setdefault(piece, []).extend(steps)

    def _wait_for_readers(self, rank: int, chunk: int, steps: list[Step]) -> None:
        """In place the result overwrites the own value: whoever reads that comes first."""
        for own in sorted(self._uses[rank].inputs):
            if own[1] == chunk:
                for step in steps:
                    step.needs += [reader for reader in self._readers[rank].get(own, ()) if reader not in steps]


def _after(place: Place, units: int) -> Place:
    return place[0], place[1] + units


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
