"""A lane that runs stage by stage: post messages, or publish progress, and wait; then fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.lanes import Lane, LongWait, Work
from topocomm.execute.structure import Fields
from topocomm.execute.transports.shared_memory import SharedMemory
from topocomm.execute.transports.transport import Batch, Message, Transport
from topocomm.operators.operator import ALIGNMENT_BYTES, Buffer, Fold
from topocomm.planning.buffers import Piece, RankProgram, Stage, rank_program
from topocomm.planning.schedule import Combine
from topocomm.planning.shared_memory import SharedProgram

SPIN_S = 0.001
"""Waits are polled this long before the reason for them is looked for."""


class BoundStage(NamedTuple):
    """Messages posted together, then folds."""

    batch: Batch | None
    folds: tuple[Callable[[], None], ...]


class Part(NamedTuple):
    """Where some rows of one field lie."""

    name: str
    rows: slice
    """Which of the flattened rows."""
    view: NDArray[Any]
    """[rows, *dims]."""


class StagedLane(Lane):
    """Buffers and stages of one call."""

    def __init__(self, work: Work, memory: Buffer, program: RankProgram | SharedProgram, wait_long: LongWait) -> None:
        self._work, self.memory, self._offsets = work, memory, program.offsets
        self._wait_long = wait_long
        self.shared = None
        self._inputs, self._outputs = self._parts(program.input_pieces), self._parts(program.output_pieces)
        self._row_shapes = {f.name: (work.layout.rows, *f.row_shape) for f in work.layout.fields}
        self._folds, self._last = self._bind(program.stages, program.output_pieces)
        self._stages: tuple[BoundStage, ...] = ()
        self.takes_value, self.gives_result = bool(program.input_pieces), bool(program.output_pieces)
        self.views = self._views(program.input_pieces)

    def attach(self, batches: Sequence[Batch | None], shared: SharedMemory | None = None) -> StagedLane:
        """With what is awaited in every stage, and the shared memory whose calls it counts."""
        self.shared = shared
        self._stages = tuple(BoundStage(batch, folds) for batch, folds in zip(batches, self._folds, strict=True))
        return self

    def run(self, fields: Fields | None, target: Fields | None, apart: bool) -> None:
        """As `Lane.run`."""
        if fields is not None:
            for part in self._inputs:
                part.view[...] = fields[part.name].reshape(self._row_shapes[part.name])[part.rows]
        if self.shared is not None:
            self.shared.epoch += 1
        for batch, folds in self._stages:
            if batch is not None:
                batch.start()
                if not batch.wait(SPIN_S):
                    self._wait_long(batch)
            for fold in folds:
                fold()
        if target is None:
            return
        rows = {name: target[name].reshape(shape) for name, shape in self._row_shapes.items()}
        if self._last is not None:
            self._last(rows)
            return
        for part in self._outputs:
            rows[part.name][part.rows] = part.view

    def free(self) -> None:
        """As `Lane.free`."""
        for batch, _ in self._stages:
            if batch is not None:
                batch.free()

    def _bind(
        self, stages: Sequence[Stage], results: Sequence[Piece]
    ) -> tuple[list[tuple[Callable[[], None], ...]], Fold | None]:
        """The folds of every stage and, apart from them, the very last if it makes the whole result.

        Nobody else reads that result, since a stage sends before it folds.
        """
        bound = [[self._fold(combine) for combine in stage.folds] for stage in stages]
        last = None
        if bound and bound[-1]:
            final = stages[-1].folds[-1]
            if list(results) == [(final.out_slot, final.chunk)]:
                last, _ = bound[-1].pop()
        return [tuple(partial(fold, target) for fold, target in some) for some in bound], last

    def _fold(self, combine: Combine) -> tuple[Fold, Mapping[str, Any]]:
        layout, rows = self._work.layout, self._work.chunk_rows(combine.chunk)
        at = [self._offsets[slot, combine.chunk] for slot in combine.operands]
        target = layout.views(self.memory, self._offsets[combine.out_slot, combine.chunk], rows)
        return self._work.operator.bind_fold(layout, self.memory, rows, at), target

    def _parts(self, pieces: Sequence[Piece]) -> tuple[Part, ...]:
        found = []
        for slot, chunk in pieces:
            first, rows = self._work.plan.schedule.chunks[chunk]
            views = self._work.layout.views(self.memory, self._offsets[slot, chunk], rows)
            found += [Part(name, slice(first, first + rows), view) for name, view in views.items()]
        return tuple(found)

    def _views(self, pieces: Sequence[Piece]) -> Fields | None:
        if len(pieces) != 1:
            return None
        layout = self._work.layout
        shapes = {f.name: (*layout.leading, *f.row_shape) for f in layout.fields}
        return {part.name: part.view.reshape(shapes[part.name]) for part in self._inputs}


def message_lane(work: Work, transport: Transport, wait_long: LongWait) -> StagedLane:
    """A lane by messages."""
    program = rank_program(work.plan.schedule, transport.rank, work.chunk_bytes, ALIGNMENT_BYTES)
    arena = aligned_buffer(program.arena_bytes)

    def messages(moves: Mapping[tuple[int, int, int], Sequence[Piece]]) -> list[Message]:
        return [
            Message(peer, tuple((program.offsets[piece], work.chunk_bytes(piece[1])) for piece in pieces))
            for (_, peer, _), pieces in moves.items()
        ]

    def batch(stage: Stage) -> Batch | None:
        sends, receives = messages(stage.sends), messages(stage.receives)
        return transport.batch(arena, sends, receives, work.tag) if sends or receives else None

    lane = StagedLane(work, arena, program, wait_long)
    return lane.attach([batch(stage) for stage in program.stages])


def shared_lane(
    work: Work, program: SharedProgram, shared: SharedMemory, number: int, wait_long: LongWait
) -> StagedLane:
    """A lane in shared memory, for operators without a compiled fold."""
    from topocomm.execute.compiled_run import shared_stage  # needs numba

    batches: list[Batch | None] = []
    for index, (stage, waits) in enumerate(zip(program.stages, program.waits, strict=True)):
        silent = not stage.sends and not waits
        batches.append(None if silent else shared_stage(shared, index, waits))
    return StagedLane(work, shared.memories[number], program, wait_long).attach(batches, shared)


def aligned_buffer(size_bytes: int) -> Buffer:
    """A zeroed byte buffer that starts on a cache line."""
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]
