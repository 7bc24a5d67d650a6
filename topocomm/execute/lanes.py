"""The memory of a prepared call and what a rank does in it: by messages, or in memory that all ranks map.

A lane is one set of buffers with the stages bound to it. Calls by messages have one lane; calls in shared memory
have two, used in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.structure import Fields
from topocomm.execute.transports.shared_memory import (
    COUNTER_BYTES,
    SharedStage,
    counters_of,
    kernels_available,
    open_region,
)
from topocomm.execute.transports.transport import Batch, Message
from topocomm.execute.waiting import Waiting
from topocomm.operators.operator import ALIGNMENT_BYTES, Buffer, Fold, Layout, Operator
from topocomm.planning.buffers import Piece, Stage, rank_program
from topocomm.planning.plan import Plan
from topocomm.planning.shared_memory import shared_program

SHARED_LIMIT_BYTES = 8 << 20
"""Payloads above this go by messages: their time is in the bytes, not in the latency."""


class BoundStage(NamedTuple):
    """Messages posted together, then folds."""

    batch: Batch | None
    folds: tuple[Fold, ...]


class Copies(NamedTuple):
    """Where the fields of a rank's value lie: per chunk, and in the user's shapes where there is one chunk only."""

    parts: tuple[tuple[str, slice, NDArray[Any]], ...]
    """(field, flattened rows, view) of every chunk."""
    whole: tuple[tuple[str, NDArray[Any]], ...] | None
    """(field, view in the user's shape)."""


@dataclass(frozen=True)
class Lane:
    """Buffers and stages of one call; `state` counts the calls made in shared memory."""

    inputs: Copies
    outputs: Copies
    stages: tuple[BoundStage, ...]
    state: NDArray[np.int64] | None = None

    def fields_in(self) -> Fields | None:
        """The input as arrays in the user's shapes, if it is one chunk."""
        return dict(self.inputs.whole) if self.inputs.whole else None

    def free(self) -> None:
        """Give back the requests."""
        for batch, _ in self.stages:
            if batch is not None:
                batch.free()


@dataclass(frozen=True)
class Work:
    """What lanes are made for."""

    plan: Plan
    operator: Operator
    layout: Layout
    tag: int

    def chunk_bytes(self, chunk: int) -> int:
        """Packed bytes of a chunk."""
        return self.layout.packed_bytes(self.chunk_rows(chunk))

    def chunk_rows(self, chunk: int) -> int:
        """Rows of a chunk."""
        return self.plan.schedule.chunks[chunk][1]


def make_lanes(work: Work, waiting: Waiting) -> tuple[Lane, ...]:
    """The lanes of this rank; collective.

    Ranks of one host share memory for allreduce of small payloads, where a host gives it; else they exchange
    messages.
    """
    if _may_share(work, waiting):
        lanes = _shared_lanes(work, waiting)
        if lanes:
            return lanes
    return (_message_lane(work, waiting),)


def aligned_buffer(size_bytes: int) -> Buffer:
    """A zeroed byte buffer that starts on a cache line."""
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]


def _may_share(work: Work, waiting: Waiting) -> bool:
    transport = waiting.transport
    return (
        transport.one_host
        and transport.size > 1
        and work.plan.collective.name == "allreduce"  # the rule of two lanes needs every rank's word in every call
        and work.plan.payload_bytes <= SHARED_LIMIT_BYTES
        and kernels_available()
    )


def _message_lane(work: Work, waiting: Waiting) -> Lane:
    transport = waiting.transport
    program = rank_program(work.plan.schedule, transport.rank, work.chunk_bytes, ALIGNMENT_BYTES)
    arena = aligned_buffer(program.arena_bytes)

    def message(peer: int, pieces: Sequence[Piece]) -> Message:
        return Message(peer, tuple((program.offsets[piece], work.chunk_bytes(piece[1])) for piece in pieces))

    def bound(stage: Stage) -> BoundStage:
        sends = [message(peer, pieces) for (_, peer, _), pieces in stage.sends.items()]
        receives = [message(peer, pieces) for (_, peer, _), pieces in stage.receives.items()]
        batch = transport.batch(arena, sends, receives, work.tag) if sends or receives else None
        return BoundStage(batch, _folds(work, stage, arena, program.offsets))

    return Lane(
        inputs=_copies(work, program.input_pieces, arena, program.offsets),
        outputs=_copies(work, program.output_pieces, arena, program.offsets),
        stages=tuple(bound(stage) for stage in program.stages),
    )


def _shared_lanes(work: Work, waiting: Waiting) -> tuple[Lane, ...]:
    rank, ranks = waiting.transport.rank, waiting.transport.size
    program = shared_program(work.plan.schedule, rank, work.chunk_bytes, ALIGNMENT_BYTES)
    head = ranks * COUNTER_BYTES
    region = open_region(waiting, head + 2 * program.total_bytes)
    if region is None:
        return ()
    counters, state = counters_of(region, ranks), np.zeros(1, np.int64)
    lanes = []
    for number in range(2):
        memory = region[head + number * program.total_bytes : head + (number + 1) * program.total_bytes]
        stages = []
        for index, (stage, waits) in enumerate(zip(program.stages, program.waits, strict=True)):
            silent = not stage.sends and not waits
            batch = None if silent else SharedStage(counters, state, rank, waits, index)
            stages.append(BoundStage(batch, _folds(work, stage, memory, program.offsets)))
        inputs = _copies(work, program.input_pieces, memory, program.offsets)
        outputs = _copies(work, program.output_pieces, memory, program.offsets)
        lanes.append(Lane(inputs, outputs, tuple(stages), state))
    return tuple(lanes)


def _folds(work: Work, stage: Stage, memory: Buffer, offsets: Mapping[Piece, int]) -> tuple[Fold, ...]:
    bound = []
    for fold in stage.folds:
        at = [offsets[slot, fold.chunk] for slot in (fold.out_slot, *fold.operands)]
        bound.append(work.operator.bind_fold(work.layout, memory, work.chunk_rows(fold.chunk), at))
    return tuple(bound)


def _copies(work: Work, pieces: Sequence[Piece], memory: Buffer, offsets: Mapping[Piece, int]) -> Copies:
    layout, chunks = work.layout, work.plan.schedule.chunks
    parts = []
    for slot, chunk in pieces:
        first, rows = chunks[chunk]
        views = layout.views(memory, offsets[slot, chunk], rows)
        parts += [(name, slice(first, first + rows), view) for name, view in views.items()]
    if len(chunks) != 1:
        return Copies(tuple(parts), None)
    shapes = {f.name: (*layout.leading, *f.row_shape) for f in layout.fields}
    return Copies(tuple(parts), tuple((name, view.reshape(shapes[name])) for name, _, view in parts))
