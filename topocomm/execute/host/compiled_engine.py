"""An engine in shared memory that runs in one compiled call: writing, waiting, the operator's folds, the result.

Of an operator without a compiled fold it comes back at the folds of every stage, which run here, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.calls.structure import Fields
from topocomm.execute.host.call_engine import CallEngine, Span, Work
from topocomm.execute.host.compiled_run import CompiledRun, Sizes, free_memory, lane_head, stage_words, wait_words
from topocomm.execute.host.kernels import shared_memory_call as word
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.transports.shared_memory import SharedMemory
from topocomm.operators.layout import Buffer, Fold
from topocomm.operators.operator import fold_task
from topocomm.planning.program.shared_memory_layout import SharedProgram
from topocomm.planning.schedule.schedule import Combine, Piece

Words = list[int]


class CompiledEngine(CallEngine):
    """One of a call's two memories with this rank's program on it."""

    def __init__(self, work: Work, program: SharedProgram, shared: SharedMemory, number: int) -> None:
        self.shared = shared
        self.memory = shared.memories[number]
        self.takes_value, self.gives_result = bool(program.input_pieces), bool(program.output_pieces)
        encoder = _Encoder(work, program, self.memory.ctypes.data, shared)
        words, sizes = encoder.engine(), awaited_bytes(work, program, shared)
        self._outside = _OutsideFolds(work, program, encoder, words, self.memory)
        self.in_python = any(self._outside.folds.values())
        self.compiled = CompiledRun(shared, words, sizes, self._outside.run)
        self._names = [f.name for f in work.layout.fields]
        self.views = self._send_buffer(work, program)
        self._kept: Sequence[Any] = ()

    def begin(self, fields: Fields | None, target: Fields | None, apart: bool) -> bool:
        """As `CallEngine.begin`."""
        names = self._names
        arrays: list[Any] = []
        if self.takes_value:
            source = self.views if fields is None else fields
            assert source is not None, "a value comes from the caller or from the send buffer"
            arrays = [source[name] for name in names]
            for index, array in enumerate(arrays):
                if type(array) is not np.ndarray or not array.flags.c_contiguous:
                    arrays[index] = np.ascontiguousarray(array)
        results = arrays if target is None else [target[name] for name in names]
        objects = tuple(map(id, (*(arrays or results), *results)))
        self._kept, self._outside.results = arrays, results  # compiled code knows them by address only
        return self._let_go(self.compiled.begin(word.DIRECT if apart else 0, objects) == word.DONE)

    def advance(self, timeout_s: float) -> bool:
        """As `CallEngine.advance`."""
        return self._let_go(self.compiled.wait(timeout_s))

    def awaited(self) -> AwaitedMessages:
        """As `CallEngine.awaited`."""
        return AwaitedMessages(self.compiled.stage, *self.compiled.pending())

    def stand_at(self, at: int, kept: Sequence[Any]) -> None:
        """Go on with a call that others began, by address, on these arrays: it stands at `at`.

        If that is before its beginning, folds do not read the arrays themselves: the result may go to the same memory.
        """
        self._kept, self._outside.results = kept, kept[len(kept) // 2 :]
        self.compiled.stand_at(at, 0, tuple(map(id, kept)))

    def free(self) -> None:
        """Nothing: the mapping goes with its last array."""

    def _let_go(self, through: bool) -> bool:
        if through:
            self._kept = self._outside.results = ()
        return through

    def _send_buffer(self, work: Work, program: SharedProgram) -> Fields | None:
        """The send buffer in the user's shapes; None where there is none or it is split."""
        layout, span = work.layout, work.value
        if len(program.input_pieces) != 1 or work.chunk_rows(program.input_pieces[0][1]) != span.rows:
            return None
        views = layout.views(self.memory, program.offsets[program.input_pieces[0]], span.rows)
        return {f.name: views[f.name].reshape((*span.leading, *f.row_shape)) for f in layout.fields}


class BoundFold(NamedTuple):
    """A fold that runs outside compiled code.

    Attributes:
        fold: Writes to a target.
        rows: Rows of the result that it makes, or None.
        target: By field, where it writes if it makes none.
    """

    fold: Fold
    rows: slice | None
    target: Mapping[str, NDArray[Any]]


class _OutsideFolds:
    """The folds of an engine that run outside compiled code. They do not know the engine: it goes with its last user.

    Attributes:
        folds: By where they stand in the engine; none where compiled code has them.
        results: By field, where they write what they make of the result.
    """

    def __init__(
        self, work: Work, program: SharedProgram, encoder: _Encoder, words: NDArray[np.int64], memory: Buffer
    ) -> None:
        self._work, self._program, self._memory, self._made = work, program, memory, encoder.made
        stages = () if encoder.function else encoder.folds_at(words)
        self.folds = {at: [self._bind(fold) for fold in some] for at, some in stages}
        self.results: Sequence[NDArray[Any]] = ()

    def run(self, at: int) -> None:
        """Run the folds that stand at a place of the engine."""
        rows = self._work.result.rows
        for fold, where, target in self.folds[at]:
            if where is not None:
                fields = zip(self._work.layout.fields, self.results, strict=True)
                target = {f.name: array.reshape(rows, *f.row_shape)[where] for f, array in fields}
            fold(target)

    def _bind(self, combine: Combine) -> BoundFold:
        """A fold; with where in the result its rows go, or else the memory they go to."""
        work, piece = self._work, (combine.out_slot, combine.chunk)
        rows, offsets = work.chunk_rows(combine.chunk), self._program.offsets
        places = [offsets[slot, combine.chunk] for slot in combine.operands]
        fold = work.operator.bind_fold(work.layout, self._memory, rows, places, tensors=work.tensors)
        if piece in self._made:
            first = work.parts[combine.chunk][0] - work.result.first
            return BoundFold(fold, slice(first, first + rows), {})
        return BoundFold(fold, None, work.layout.views(self._memory, offsets[piece], rows))


class _Encoder:
    """Tells the compiled executor what one rank does on one memory."""

    def __init__(self, work: Work, program: SharedProgram, base: int, shared: SharedMemory) -> None:
        self._work, self._program, self._base, self._shared = work, program, base, shared
        self._row_bytes = [f.row_bytes for f in work.layout.fields]
        self._folds = [fold for stage in program.stages for fold in stage.folds]
        self._tasks = [self._task(fold) for fold in self._folds]
        sizes = [len(task) for task in self._tasks]
        self._starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self._slots = work.input_slots(program.input_pieces)
        self._read = {piece for stage in program.stages for pieces in stage.sends.values() for piece in pieces}
        self.made = self._find_made()
        self.function = work.operator.compiled_fold(work.layout) or 0
        self._waits = [self._positions(waits) for waits in program.waits]
        self._credits = [] if work.synchronises else free_memory([place for place, _ in self._readers()])

    def engine(self) -> NDArray[np.int64]:
        """The engine as `kernels.shared_memory` describes it."""
        made, read = self.made, self._read
        inputs, span = self._program.input_pieces, self._work.result
        copied = [piece for piece in self._program.output_pieces if piece not in made]
        needed = [piece for piece in inputs if piece in read or piece in copied]
        fields = len(self._row_bytes)
        pack = list(chain.from_iterable(self._copies(needed, 0, self._work.value)))
        own_only = [piece for piece in inputs if piece not in needed]
        pack_own = list(chain.from_iterable(self._copies(own_only, 0, self._work.value)))
        unpack = list(chain.from_iterable(self._copies(copied, fields, span)))
        own, targets = self._own(), self._targets()
        shapes, credits = self._shapes(), wait_words(self._credits)
        parts = (shapes, pack, pack_own, own, targets, unpack, credits, self._stages(0))
        lengths = [sum(len(entry) if isinstance(entry, tuple) else 1 for entry in part) for part in parts]
        edges = [word.HEADER_WORDS + sum(lengths[:index]) for index in range(9)]
        tasks_at = edges[8]
        final = 0 if self._work.synchronises else word.FINISHED
        sizes = [span.rows * size for span in (self._work.value, self._work.result) for size in self._row_bytes]
        head = lane_head(self._shared, self.function, final, edges, sizes)
        told = [[(*entry[:-1], tasks_at + entry[-1]) for entry in entries] for entries in (own, targets)]
        words: Iterable[Iterable[int]] = (
            head,
            shapes,
            pack,
            pack_own,
            *told[0],
            *told[1],
            unpack,
            credits,
            self._stages(tasks_at),
            *self._tasks,
        )
        return np.array(list(chain.from_iterable(words)), np.int64)

    def folds_at(self, words: NDArray[np.int64]) -> Iterator[tuple[int, Sequence[Combine]]]:
        """Where in an engine the folds of every stage stand."""
        at = int(words[word.PROGRAM])
        for stage in self._program.stages:
            at += 2 + 2 * int(words[at + 1])
            yield at, stage.folds
            at += 1 + len(stage.folds)
            at += 1 + int(words[at])

    def _shapes(self) -> Words:
        """What the arrays must be."""
        shapes: Words = []
        for span, field in product((self._work.value, self._work.result), self._work.layout.fields):
            size = (*span.leading, *field.row_shape)
            shapes += [id(field.dtype), len(size), *size]
        return shapes

    def _slot_row(self, slot: int) -> int:
        """The row of the value where an input slot begins."""
        return self._slots.index(slot) * self._work.layout.rows

    def _positions(self, waits: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(self._shared.ranks.index(peer), done) for peer, done in waits]

    def _readers(self) -> list[tuple[int, int]]:
        return self._positions([(peer, 0) for peer in self._program.readers])

    def _task(self, fold: Combine) -> Words:
        places = [self._base + self._program.offsets[slot, fold.chunk] for slot in (fold.out_slot, *fold.operands)]
        return fold_task(self._work.layout, self._work.chunk_rows(fold.chunk), places)

    def _copies(self, pieces: Sequence[Piece], first_array: int, span: Span) -> list[Words]:
        """Per piece and field: array, byte offset in it, address, bytes."""
        found = []
        for slot, chunk in pieces:
            first, rows = self._work.parts[chunk]
            first += (0 if first_array else self._slot_row(slot)) - span.first
            places = self._work.layout.addresses(self._base + self._program.offsets[slot, chunk], rows)
            for field, (at, size) in enumerate(zip(places, self._row_bytes, strict=True)):
                found.append([first_array + field, first * size, at, rows * size])
        return found

    def _own(self) -> list[tuple[int, ...]]:
        """Operands that are this rank's value: array, byte offset, address in shared memory, word in the tasks."""
        fields = len(self._row_bytes)
        found: list[tuple[int, ...]] = []
        for fold, task, start in zip(self._folds, self._tasks, self._starts, strict=True):
            for operand, slot in enumerate(fold.operands):
                if (slot, fold.chunk) in self._program.input_pieces:
                    at = 2 + fields + (1 + operand) * fields
                    first = self._slot_row(slot) + self._work.parts[fold.chunk][0] - self._work.value.first
                    found += [
                        (field, first * size, task[at + field], start + at + field)
                        for field, size in enumerate(self._row_bytes)
                    ]
        return found

    def _find_made(self) -> dict[Piece, int]:
        """Pieces of the result that a fold makes and no other fold here reads, each with its task's start."""
        read = {(slot, fold.chunk) for fold in self._folds for slot in fold.operands}
        results = set(self._program.output_pieces) - read
        return {
            (fold.out_slot, fold.chunk): start
            for fold, start in zip(self._folds, self._starts, strict=True)
            if (fold.out_slot, fold.chunk) in results
        }

    def _targets(self) -> list[tuple[int, ...]]:
        """Per piece made and field: array, byte offset in it, word in the tasks."""
        fields = len(self._row_bytes)
        chunks, first = self._work.parts, self._work.result.first
        return [
            (fields + field, (chunks[chunk][0] - first) * size, start + 2 + fields + field)
            for (_, chunk), start in self.made.items()
            for field, size in enumerate(self._row_bytes)
        ]

    def _stages(self, tasks_at: int) -> Words:
        starts = iter(self._starts)
        found: Words = []
        for index, (stage, waits) in enumerate(zip(self._program.stages, self._waits, strict=True)):
            found += stage_words(index + 1, waits)
            found += [len(stage.folds), *(tasks_at + next(starts) for _ in stage.folds)]
            made = {(fold.out_slot, fold.chunk) for fold in stage.folds} & self.made.keys() & self._read
            copies = self._copies(sorted(made), len(self._row_bytes), self._work.result)
            found += [4 * len(copies), *chain.from_iterable(copies)]
        return found


def awaited_bytes(work: Work, program: SharedProgram, shared: SharedMemory) -> Sizes:
    """What every stage awaits from the other ranks of the host."""
    sizes: dict[tuple[int, int], int] = {}
    for index, stage in enumerate(program.stages):
        for (_, peer, _), pieces in stage.receives.items():
            if peer in shared.ranks:
                key = (index, shared.ranks.index(peer))
                sizes[key] = sizes.get(key, 0) + sum(work.chunk_bytes(chunk) for _, chunk in pieces)
    return sizes


def covers(work: Work) -> bool:
    """Whether calls of this layout can run compiled."""
    return len(work.layout.fields) <= word.MOST_FIELDS
