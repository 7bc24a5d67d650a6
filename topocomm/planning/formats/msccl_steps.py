"""The steps of a plan for MSCCL's runtimes, before they are cut into thread blocks.

Both ends of a message make their step together, so the steps of all ranks have one order: by round, messages before
folds, place in the list. Every step needs earlier ones only; a receive therefore reduces (`rrc`) only where its other
operand is written before the round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from topocomm.planning.formats.gpu_program import Memory, Place, Units
from topocomm.planning.schedule.schedule import Combine, Piece, Schedule, Transfer

MOST_COUNT = 64
"""Most units of one step; each runtime takes fewer than 72 (MSCCL_MAX_COUNT)."""
MOST_FUSED = 16
"""Most reductions into one place that run as one (MSCCL_MAX_REDUCE_FUSION); no runtime checks it."""
Connection = tuple[int, int]
"""(sender, receiver); twice the same rank for its local steps."""
When = tuple[int, bool]
"""(round, whether among its folds, which follow its messages)."""


@dataclass(eq=False)
class Step:
    """One step of a rank: from a place to another, in units.

    Attributes:
        turn: Its number among the steps of the connection, the same at both ends of a message.
        kind: `s`, `r`, `rrc`, `cpy` or `re`.
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
    """Chunks of one message that are adjacent everywhere: where they are sent, read, and written."""

    kind: str
    places: tuple[Place, Place, Place]
    count: int
    sent: list[Piece]
    read: list[Piece]
    written: list[Piece]

    def takes(self, kind: str, places: tuple[Place, Place, Place], count: int) -> bool:
        """Whether a chunk continues the run within the limit of one step."""
        follow = tuple((buffer, unit + self.count) for buffer, unit in self.places)
        return kind == self.kind and places == follow and self.count + count <= MOST_COUNT


class Program:
    """The steps of all ranks.

    Attributes:
        steps: Steps of each rank, in an order in which they can run.
        scratch: Units of scratch memory of each rank.
        turns: Number of steps of each connection.
    """

    def __init__(self, schedule: Schedule, units: Units, *, merged: bool = True) -> None:
        """Make the steps; adjacent chunks of one message share a step if `merged`. `repeat` is left to the runtime."""
        self.units, self.merged = units, merged
        self._memory = Memory(schedule, units)
        self._uses, self._places, self.scratch = self._memory.uses, self._memory.places, self._memory.scratch
        self.steps: list[list[Step]] = [[] for _ in range(schedule.ranks)]
        self.turns: dict[Connection, int] = {}
        self._writer: list[dict[Piece, list[Step]]] = [{} for _ in range(schedule.ranks)]
        self._readers: list[dict[Piece, list[Step]]] = [{} for _ in range(schedule.ranks)]
        folds = schedule.combine_list()
        self._arrivals = {(move.dst, move.dst_slot, move.chunk): move.round for move in schedule.transfer_list()}
        self._written = self._arrivals | {(fold.rank, fold.out_slot, fold.chunk): fold.round for fold in folds}
        self._fused = {key: fold for fold in folds if (key := self._fusible(fold)) is not None}
        self._run(schedule)

    def _fusible(self, fold: Combine) -> tuple[int, int, int] | None:
        """Place of the operand that is reduced as it arrives, if the fold allows it.

        Of two operands one must arrive and be read by nothing else, and the other be written before its round.
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

    def _run(self, schedule: Schedule) -> None:
        fused = set(self._fused.values())
        for round_, (moves, folds) in enumerate(schedule.by_round()):
            messages: dict[Connection, list[Transfer]] = {}
            for move in moves:
                messages.setdefault((move.src, move.dst), []).append(move)
            for connection, message in messages.items():
                runs: list[_Run] = []
                for move in sorted(message, key=lambda move: self.units.first[move.chunk]):
                    self._add(runs, move, (round_, False))
                for run in runs:
                    self._send(connection, run)
            for fold in folds:
                if fold not in fused:
                    self._fold(fold, (round_, True))
        for rank, use in enumerate(self._uses):
            for piece in sorted(use.outputs):
                if self._places[rank][piece][0] != "o":
                    home = self.units.place("o", rank, piece[1])
                    steps = self._local(rank, "cpy", self._places[rank][piece], home, piece[1])
                    self._reads(rank, [piece], steps)
                    if piece not in use.inputs:  # in place the input is copied onto itself
                        self._wait_for_readers(rank, piece[1], steps)

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

    def _send(self, connection: Connection, run: _Run) -> None:
        """Add the steps of the sender and of the receiver, equal in number."""
        sender, receiver = connection
        sends, receives = [], []
        sent, origin, home = run.places
        for at in range(0, run.count, MOST_COUNT):
            count, turn = min(MOST_COUNT, run.count - at), self._turn(connection)
            sends.append(Step(connection, turn, "s", _after(sent, at), _after(sent, at), count))
            receives.append(Step(connection, turn, run.kind, _after(origin, at), _after(home, at), count))
        self.steps[sender] += sends
        self.steps[receiver] += receives
        self._reads(sender, run.sent, sends)
        self._reads(receiver, run.read, receives)
        self._writes(receiver, run.written, receives)

    def _fold(self, fold: Combine, when: When) -> None:
        """Add a copy of the first operand to a place of its own, and the reductions of the others into it."""
        rank, out = fold.rank, (fold.out_slot, fold.chunk)
        operands = [(slot, fold.chunk) for slot in fold.operands]
        if operands[1] in self._uses[rank].inputs:  # a + b is b + a bit by bit; in place the input is the result
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

    def _local(self, rank: int, kind: str, src: Place, dst: Place, chunk: int) -> list[Step]:
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
        """Place of a piece: the output, if nothing reads the rank's input of that chunk later; else scratch.

        The step itself reads `own` first, which may be in the same place.
        """

        def is_over(event: Transfer | Combine, reader: Piece) -> bool:
            if not isinstance(event, Combine):
                return (event.round, False) < when
            itself = reader == own and event.out_slot == piece[0] and event.operands.count(reader[0]) == 1
            return itself or (event.round, True) < when

        use = self._uses[rank]
        free = piece in use.outputs and all(
            is_over(event, reader)
            for reader in use.inputs
            if reader[1] == piece[1]
            for event in use.reads.get(reader, ())
        )
        return self._memory.place(rank, piece, free)

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
        """Make the steps wait for the readers of the rank's input, which the result overwrites in place."""
        for own in sorted(self._uses[rank].inputs):
            if own[1] == chunk:
                for step in steps:
                    step.needs += [reader for reader in self._readers[rank].get(own, ()) if reader not in steps]


def _after(place: Place, units: int) -> Place:
    return place[0], place[1] + units
