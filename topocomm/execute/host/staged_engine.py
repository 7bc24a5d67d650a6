"""An engine that runs stage by stage: post messages, or publish progress, and wait; then fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from topocomm.execute.calls.structure import Fields
from topocomm.execute.host.call_engine import CallEngine, Work, parts_of_pieces
from topocomm.execute.host.credits import Credits
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.transports.shared_memory import SharedMemory
from topocomm.execute.transports.transport import Batch
from topocomm.operators.layout import ALIGNMENT_BYTES, Buffer, Fold
from topocomm.planning.program.shared_memory_layout import SharedProgram
from topocomm.planning.program.slot_memory import RankProgram, Stage
from topocomm.planning.schedule.schedule import Piece

CREDITS, VALUE = -2, -1
"""State of a call before its first stage, while it waits for credits or for free shared memory."""


class StagedEngine(CallEngine):
    """Buffers and stages of one call.

    Args:
        batches: For every stage, what is awaited in it.
        before: What is awaited before the value is written.
        after: What is started when the call is through.
        shared: The shared memory whose calls the engine counts.
        credits: Credits by messages.
    """

    def __init__(
        self,
        work: Work,
        memory: Buffer,
        program: RankProgram | SharedProgram,
        batches: Sequence[Batch | None],
        *,
        before: Batch | None = None,
        after: Batch | None = None,
        shared: SharedMemory | None = None,
        credits: Credits | None = None,
    ) -> None:
        self._work, self.memory, self._offsets = work, memory, program.offsets
        self._inputs = parts_of_pieces(work, self._piece, program.input_pieces, work.value, value=True)
        self._outputs = parts_of_pieces(work, self._piece, program.output_pieces, work.result, value=False)
        self.takes_value, self.gives_result = bool(program.input_pieces), bool(program.output_pieces)
        self.views = work.send_buffer(memory, self._offsets, program.input_pieces)
        folds, self._last = self._bind(program.stages, program.output_pieces)
        self._stages = tuple(zip(batches, folds, strict=True))
        self._before, self._after = before, after
        self.shared, self._credits = shared, credits
        self._at, self._posted = CREDITS, False
        self._fields: Fields | None = None
        self._target: Fields | None = None

    def begin(self, fields: Fields | None, target: Fields | None, apart: bool) -> bool:
        self._fields, self._target = fields, target
        self._at, self._posted = (CREDITS if self._credits is not None else VALUE), False
        if self.shared is not None:
            self.shared.epoch += 1
        return self.advance(0.0)

    def advance(self, timeout_s: float) -> bool:
        stages = self._stages
        if self._at > len(stages):
            return True
        if self._at < 0 and not self._prepare(timeout_s):
            return False
        while self._at < len(stages):
            batch, folds = stages[self._at]
            if batch is not None:
                if not self._posted:
                    batch.start()
                    self._posted = True
                if not batch.wait(timeout_s):
                    return False
            for fold in folds:
                fold()
            self._at, self._posted = self._at + 1, False
        self._at += 1  # through; advancing again does nothing
        self._finish()
        return True

    def awaited(self) -> AwaitedMessages:
        if self._at == CREDITS and self._credits is not None:
            return AwaitedMessages(VALUE, *self._credits.pending())
        batch = self._stages[self._at][0] if 0 <= self._at < len(self._stages) else self._before
        if batch is None or not self._posted:
            return AwaitedMessages(max(self._at, VALUE), (), ())
        return AwaitedMessages(max(self._at, VALUE), *batch.pending())

    def free(self) -> None:
        for batch, _ in self._stages:
            if batch is not None:
                batch.free()
        if self._credits is not None:
            self._credits.free()

    def _prepare(self, timeout_s: float) -> bool:
        """Wait for room, and put the value there; return whether that is done."""
        if self._at == CREDITS:
            if self._credits is not None and not self._credits.take(timeout_s):
                return False
            self._at = VALUE
        if self._before is not None:
            if not self._posted:
                self._before.start()
                self._posted = True
            if not self._before.wait(timeout_s):
                return False
        if self._fields is not None:
            for part in self._inputs:
                field = self._fields[part.name]
                part.view[...] = field.reshape(self._work.value.rows, *part.view.shape[1:])[part.rows]
        self._at, self._posted = 0, False
        return True

    def _finish(self) -> None:
        target, rows = self._target, self._work.result.rows
        self._fields = self._target = None
        if target is not None:
            flat = {f.name: target[f.name].reshape(rows, *f.row_shape) for f in self._work.layout.fields}
            if self._last is not None:
                self._last({part.name: flat[part.name][part.rows] for part in self._outputs})
            else:
                for part in self._outputs:
                    flat[part.name][part.rows] = part.view
        if self._after is not None:
            self._after.start()
            self._after.wait(0.0)  # it publishes, and waits for nobody
        if self._credits is not None:
            self._credits.give()

    def _bind(
        self, stages: Sequence[Stage], results: Sequence[Piece]
    ) -> tuple[Sequence[Sequence[Callable[[], None]]], Fold | None]:
        """The folds of every stage and, apart from them, the very last if it makes the whole result.

        Nobody else reads that result, since a stage sends before it folds.
        """
        work, offsets = self._work, self._offsets
        bound = [
            [(work.bind_fold(self.memory, offsets, fold), (fold.out_slot, fold.chunk)) for fold in stage.folds]
            for stage in stages
        ]
        last = None
        if bound and bound[-1] and list(results) == [bound[-1][-1][1]]:
            last, _ = bound[-1].pop()
        folds = [[partial(f, self._piece(piece, work.chunk_rows(piece[1]))) for f, piece in some] for some in bound]
        return folds, last

    def _piece(self, piece: Piece, rows: int) -> Mapping[str, Any]:
        return self._work.layout.views(self.memory, self._offsets[piece], rows)


def aligned_buffer(size_bytes: int) -> Buffer:
    """Return a zeroed byte buffer that starts on a cache line."""
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]
