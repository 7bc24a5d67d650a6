"""An engine that runs in C: it writes the value, waits, exchanges MPI messages, folds and writes the result.

Messages of other transports are sent and received from Python, stage by stage. So are folds run that have no C code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.calls.structure import Fields
from topocomm.execute.host.call_engine import CallEngine, Span, Work
from topocomm.execute.host.compiled_run import NO_EXCHANGES, CompiledRun, OutsideFolds, Sizes
from topocomm.execute.host.credits import Credits
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.transports.shared_memory import SharedMemory
from topocomm.execute.transports.transport import Batch
from topocomm.native import _native
from topocomm.native._native import FINISHED, MOST_FIELDS, STRIDE
from topocomm.operators.layout import Layout
from topocomm.planning.program.shared_memory_layout import SharedProgram
from topocomm.planning.schedule.schedule import Combine, Piece

STAGES = -2
"""Place of the stages among the sections."""
MEMORIES = 2
"""Memories of a prepared call, used in turn."""
CALLS_BEFORE_TRIAL = 8
"""Calls that warm up a memory before the trial of plain and streaming stores."""
Waits = Sequence[tuple[int, int]]
"""(position of a rank, its progress)."""


class CompiledEngine(CallEngine):
    """One of a call's two memories with this rank's program on it; `native` is the engine in C.

    Args:
        exchanges: Messages with other hosts, by the number of their stage.
        credits: Credits by messages, such as compiled code can take.

    Attributes:
        from_python: The stages whose messages are sent and received in Python.
    """

    shared: SharedMemory
    from_python: Collection[int] = ()

    def __init__(
        self,
        work: Work,
        program: SharedProgram,
        shared: SharedMemory,
        number: int,
        exchanges: Mapping[int, Batch] = NO_EXCHANGES,
        credits: Credits | None = None,
    ) -> None:
        self.shared = shared
        self.memory = shared.memories[number]
        self.takes_value, self.gives_result = bool(program.input_pieces), bool(program.output_pieces)
        encoder = _Encoder(work, program, shared, exchanges)
        fold = work.operator.compiled_fold(work.layout)
        requests = tuple([exchanges[s].requests() if s in exchanges else None for s in range(len(program.stages))])
        taken_by = () if credits is None else credits.requests()
        assert taken_by is not None, "compiled code takes no other credits"
        self.native = native_engine(shared, number, encoder.sections(), work, fold or 0, requests, taken_by)
        outside = None if fold else OutsideFolds(work, program, encoder.results, self.memory, self.native)
        self.in_python = outside is not None and any(outside.folds)
        self.from_python = {stage for stage in exchanges if requests[stage] is None}
        sizes = awaited_bytes(work, program, shared)
        self._run = CompiledRun(shared, self.native, sizes, outside, exchanges, self.from_python, credits)
        self._shapes = {f.name: (*work.value.leading, *f.row_shape) for f in work.layout.fields}
        self.views = work.send_buffer(self.memory, program.offsets, program.input_pieces)

    def begin(self, fields: Fields | None, target: Fields | None, apart: bool) -> bool:
        value = self.views if fields is None else fields
        arrays: tuple[NDArray[Any], ...] = ()
        if self.takes_value and value:
            arrays = tuple([_plain(value[name], shape) for name, shape in self._shapes.items()])
        results = () if target is None else tuple([target[name] for name in self._shapes])
        return self._run.follow(self.native.begin(arrays, results, apart))

    def advance(self, timeout_s: float) -> bool:
        return self._run.wait(timeout_s)

    def awaited(self) -> AwaitedMessages:
        return AwaitedMessages(self.native.stage, *self._run.pending())

    def free(self) -> None:
        self._run.free()


class _Encoder:
    """Writes down what one rank does in one memory, as `topocomm/native/engine.h` describes it.

    Attributes:
        results: Pieces of the result that a fold makes and no other fold here reads, each with the fold's number.
    """

    def __init__(self, work: Work, program: SharedProgram, shared: SharedMemory, exchanges: Collection[int]) -> None:
        self._work, self._program, self._shared, self._exchanges = work, program, shared, exchanges
        self._row_bytes = [f.row_bytes for f in work.layout.fields]
        self._row_items = [prod(f.row_shape) for f in work.layout.fields]
        self._folds = [fold for stage in program.stages for fold in stage.folds]
        self._slots = work.input_slots(program.input_pieces)
        read = {(slot, fold.chunk) for fold in self._folds for slot in fold.operands}
        pieces = [(fold.out_slot, fold.chunk) for fold in self._folds]
        unread = set(program.output_pieces) - read
        self.results = {piece: index for index, piece in enumerate(pieces) if piece in unread}

    def sections(self) -> list[list[tuple[int, ...]]]:
        """Return the records of every section."""
        work, program, results = self._work, self._program, self.results
        sent = {piece for stage in program.stages for pieces in stage.sends.values() for piece in pieces}
        read = sent | {(slot, fold.chunk) for fold in self._folds for slot in fold.operands}
        copied = [piece for piece in program.output_pieces if piece not in results]
        kept = [piece for piece in copied if piece in program.input_pieces and piece not in read]
        copied = [piece for piece in copied if piece not in kept]
        needed = [piece for piece in program.input_pieces if piece in sent or piece in copied]
        own_only = [piece for piece in program.input_pieces if piece not in (*needed, *kept)]
        ways = zip(self._copies(kept, value=True), self._copies(kept, value=False), strict=True)
        results_sent = [
            sorted({(fold.out_slot, fold.chunk) for fold in stage.folds} & results.keys() & sent)
            for stage in program.stages
        ]
        readers = [self._shared.ranks.index(peer) for peer in program.readers]
        waits = [[(self._shared.ranks.index(peer), done) for peer, done in some] for some in program.waits]
        stages = zip(program.stages, waits, results_sent, strict=True)
        return [
            self._copies(needed, value=True),
            self._copies(own_only, value=True),
            self._copies(copied, value=False),
            [(*source, *target[:2]) for source, target in ways],
            self._copies(list(chain.from_iterable(results_sent)), value=False),
            [],
            [],
            self._own(),
            self._targets(),
            [] if work.synchronises else [*free_memory(readers)],
            list(chain.from_iterable(waits)),
            [
                (
                    number,
                    len(some),
                    len(stage.folds),
                    len(self._row_bytes) * len(copies),
                    0,
                    number - 1 in self._exchanges,
                )
                for number, (stage, some, copies) in enumerate(stages, 1)
            ],
            [self._task(fold) for fold in self._folds],
        ]

    def _copies(self, pieces: Sequence[Piece], *, value: bool) -> list[tuple[int, ...]]:
        """Return per piece and field: array, byte offset in it, offset in memory, bytes."""
        copies: list[tuple[int, ...]] = []
        span, first_array = (self._work.value, 0) if value else (self._work.result, len(self._row_bytes))
        for slot, chunk in pieces:
            first, rows = self._work.parts[chunk]
            first = span.place(first) + (self._slot_row(slot) if value else 0)
            places = self._work.layout.addresses(self._program.offsets[slot, chunk], rows)
            for field, (at, size) in enumerate(zip(places, self._row_bytes, strict=True)):
                copies.append((first_array + field, first * size, at, rows * size))
        return copies

    def _own(self) -> list[tuple[int, ...]]:
        """Return the operands that are this rank's value, from 1 on."""
        return [
            redirect
            for index, fold in enumerate(self._folds)
            for operand, slot in enumerate(fold.operands, 1)
            if (slot, fold.chunk) in self._program.input_pieces
            for redirect in self._redirects(index, operand, 0, self._slot_row(slot) - self._work.value.first)
        ]

    def _targets(self) -> list[tuple[int, ...]]:
        """Return the results of folds that are a piece of this rank's result."""
        first_array, first_row = len(self._row_bytes), -self._work.result.first
        return [r for index in self.results.values() for r in self._redirects(index, 0, first_array, first_row)]

    def _redirects(self, index: int, place: int, first_array: int, first_row: int) -> list[tuple[int, ...]]:
        """Return per field: fold, place in its task, array, byte offset in it."""
        row = first_row + self._work.parts[self._folds[index].chunk][0]
        return [(index, place, first_array + field, row * size) for field, size in enumerate(self._row_bytes)]

    def _slot_row(self, slot: int) -> int:
        return self._slots.index(slot) * self._work.layout.rows

    def _task(self, fold: Combine) -> tuple[int, ...]:
        """Return the words of a fold's task, with offsets in memory for addresses."""
        rows, offsets = self._work.chunk_rows(fold.chunk), self._program.offsets
        starts = [offsets[slot, fold.chunk] for slot in (fold.out_slot, *fold.operands)]
        places = [self._work.layout.addresses(start, rows) for start in starts]
        return (rows, len(fold.operands), *self._row_items, *chain.from_iterable(places))


def _plain(array: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array as the engine in C takes it; leading axes of partial values may be one."""
    if not (type(array) is np.ndarray and array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C", copy=True, subok=False)
    plain: NDArray[Any] = array if array.shape == shape else array.reshape(shape)
    return plain


def native_engine(
    shared: SharedMemory,
    number: int,
    sections: Iterable[Sequence[tuple[int, ...]]],
    work: Work | None = None,
    fold: int = 0,
    requests: tuple[_native.Requests | None, ...] | None = None,
    credits: tuple[_native.Requests | None, ...] = (),
) -> _native.Engine:
    """Return an engine in C on one of the memories; of a program without arrays where there is no work."""
    listed = list(sections)
    words = [len(section) for section in listed] + list(chain.from_iterable(chain.from_iterable(listed)))
    return _native.Engine(
        words=np.array(words, np.int64),
        value=() if work is None else _kinds(work.layout, work.value),
        result=() if work is None else _kinds(work.layout, work.result),
        memory=shared.memories[number],
        counters=shared.counters,
        epoch=shared.calls,
        position=shared.position,
        looks=shared.looks,
        final=0 if work is None or work.synchronises else FINISHED,
        fold=fold,
        calls_before_trial=CALLS_BEFORE_TRIAL,
        requests=(None,) * len(listed[STAGES]) if requests is None else requests,
        credits=credits,
    )


def _kinds(layout: Layout, span: Span) -> tuple[tuple[NDArray[Any], int], ...]:
    """Of every field an array of the shape and dtype that the engine takes, without its memory, and items of a row."""
    return tuple(
        [
            (np.broadcast_to(np.empty((), f.dtype), (*span.leading, *f.row_shape)), prod(f.row_shape))
            for f in layout.fields
        ]
    )


def free_memory(readers: Iterable[int]) -> list[tuple[int, int]]:
    """Return what a rank awaits before it writes: its readers finished the earlier call on this memory."""
    return [(peer, FINISHED - MEMORIES * STRIDE) for peer in readers]


def shared_stage(shared: SharedMemory, progress: int, waits: Waits, sizes: Sizes | None = None) -> CompiledRun:
    """One stage apart from its folds, which run outside: publish this progress, wait for (position, its progress)."""
    sections = [*[()] * 10, waits, [(progress, len(waits), 0, 0, 0, 0)], ()]
    return CompiledRun(shared, native_engine(shared, 0, sections), sizes or {})


def awaited_bytes(work: Work, program: SharedProgram, shared: SharedMemory) -> Sizes:
    """Return the bytes that every stage awaits from other ranks of the host."""
    sizes: dict[tuple[int, int], int] = {}
    for index, stage in enumerate(program.stages):
        for (_, peer, _), pieces in stage.receives.items():
            if peer in shared.ranks:
                key = (index, shared.ranks.index(peer))
                sizes[key] = sizes.get(key, 0) + sum(work.chunk_bytes(chunk) for _, chunk in pieces)
    return sizes


def covers(work: Work) -> bool:
    """Return whether calls of this layout can run compiled."""
    return len(work.layout.fields) <= MOST_FIELDS
