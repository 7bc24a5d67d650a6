"""A lane in shared memory that runs in one compiled call: writing, waiting, the operator's folds, the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.compiled_run import ALL_LOOKS, CompiledRun, lane_head, stage_words
from topocomm.execute.kernels import shared_memory as word
from topocomm.execute.lanes import BUSY, Lane, LongWait, Work
from topocomm.execute.structure import Fields
from topocomm.execute.transports.shared_memory import SharedMemory
from topocomm.operators.operator import Layout, fold_task
from topocomm.planning.buffers import Piece
from topocomm.planning.schedule import Combine
from topocomm.planning.shared_memory import SharedProgram

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

Words = list[int]


class CompiledLane(Lane):
    """One of a call's two memories with this rank's program on it."""

    takes_value = gives_result = True

    def __init__(
        self, work: Work, program: SharedProgram, shared: SharedMemory, number: int, wait_long: LongWait
    ) -> None:
        self.shared, self._wait_long = shared, wait_long
        self.memory = shared.memories[number]
        lane = _Encoder(work, program, self.memory.ctypes.data).lane(shared)
        self.compiled = CompiledRun(shared, lane, (peer for waits in program.waits for peer, _ in waits))
        self._names = [f.name for f in work.layout.fields]
        self._send_buffer = self._buffer_views(work, program)
        self.views = self._send_buffer if len(program.input_pieces) == 1 else None

    def run(self, fields: Fields | None, target: Fields | None, apart: bool) -> None:
        """As `Lane.run`."""
        assert target is not None, "every rank of an allreduce gets the result"
        source = self._send_buffer if fields is None else fields
        arrays = [source[name] for name in self._names]
        for index, array in enumerate(arrays):
            if type(array) is not np.ndarray or not array.flags.c_contiguous:
                arrays[index] = np.ascontiguousarray(array)
        arrays += [target[name] for name in self._names]
        mode = word.DIRECT if apart else 0
        if self.compiled.begin(mode, tuple(map(id, arrays))) != word.DONE:
            self._wait_long(self.compiled)

    def finish(self, at: int, objects: tuple[int, ...]) -> None:
        """Wait for a call that stands at `at`."""
        self._wait_long(self.compiled.stand_at(at, word.DIRECT, objects))

    def free(self) -> None:
        """Nothing: the mapping goes with its last array."""

    def _buffer_views(self, work: Work, program: SharedProgram) -> Fields:
        """The send buffer in the user's shapes; where it is split, a value of its own."""
        layout = work.layout
        memory, at = self.memory, program.offsets[program.input_pieces[0]]
        if len(program.input_pieces) != 1:
            memory, at = np.zeros(layout.packed_bytes(layout.rows), np.uint8), 0
        views = layout.views(memory, at, layout.rows)
        return {f.name: views[f.name].reshape((*layout.leading, *f.row_shape)) for f in layout.fields}


class _Encoder:
    """Tells the compiled executor what one rank does on one memory."""

    def __init__(self, work: Work, program: SharedProgram, base: int) -> None:
        self._work, self._program, self._base = work, program, base
        self._row_bytes = [f.row_bytes for f in work.layout.fields]
        self._folds = [fold for stage in program.stages for fold in stage.folds]
        self._tasks = [self._task(fold) for fold in self._folds]
        sizes = [len(task) for task in self._tasks]
        self._starts = [sum(sizes[:index]) for index in range(len(sizes))]

    def lane(self, shared: SharedMemory) -> NDArray[np.int64]:
        """The lane as `kernels.shared_memory` describes it."""
        made = self._made()
        copied = [piece for piece in self._program.output_pieces if piece not in made]
        fields = len(self._row_bytes)
        pack = list(chain.from_iterable(self._copies(self._program.input_pieces, 0)))
        unpack = list(chain.from_iterable(self._copies(copied, fields)))
        own, targets = self._own(), self._targets(made)
        leading = self._work.layout.leading
        shapes: Words = []
        for field in self._work.layout.fields:
            size = (*leading, *field.row_shape)
            shapes += [id(field.dtype), len(size), *size]
        lengths = [len(shapes), len(pack), 4 * len(own), 3 * len(targets), len(unpack), len(self._stages(0))]
        edges = [word.HEADER_WORDS + sum(lengths[:index]) for index in range(7)]
        tasks_at = edges[6]
        head = lane_head(shared, self._work.operator.compiled_fold(self._work.layout) or 0, edges)
        told = [(*entry[:-1], tasks_at + entry[-1]) for entry in (*own, *targets)]
        parts: Iterable[Iterable[int]] = (
            head,
            shapes,
            pack,
            *told[: len(own)],
            *told[len(own) :],
            unpack,
            self._stages(tasks_at),
            *self._tasks,
        )
        return np.array(list(chain.from_iterable(parts)), np.int64)

    def _task(self, fold: Combine) -> Words:
        places = [self._base + self._program.offsets[slot, fold.chunk] for slot in (fold.out_slot, *fold.operands)]
        return fold_task(self._work.layout, self._work.chunk_rows(fold.chunk), places)

    def _copies(self, pieces: Sequence[Piece], first_array: int) -> list[Words]:
        """Per piece and field: array, byte offset in it, address, bytes."""
        found = []
        for slot, chunk in pieces:
            first, rows = self._work.plan.schedule.chunks[chunk]
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
                    first = self._work.plan.schedule.chunks[fold.chunk][0]
                    found += [
                        (field, first * size, task[at + field], start + at + field)
                        for field, size in enumerate(self._row_bytes)
                    ]
        return found

    def _made(self) -> dict[Piece, int]:
        """Pieces of the result that a fold makes and nobody reads, each with its task's start."""
        read = {piece for stage in self._program.stages for pieces in stage.sends.values() for piece in pieces}
        read |= {(slot, fold.chunk) for fold in self._folds for slot in fold.operands}
        results = set(self._program.output_pieces) - read
        return {
            (fold.out_slot, fold.chunk): start
            for fold, start in zip(self._folds, self._starts, strict=True)
            if (fold.out_slot, fold.chunk) in results
        }

    def _targets(self, made: dict[Piece, int]) -> list[tuple[int, ...]]:
        """Per piece made and field: array, byte offset in it, word in the tasks."""
        fields = len(self._row_bytes)
        chunks = self._work.plan.schedule.chunks
        return [
            (fields + field, chunks[chunk][0] * size, start + 2 + fields + field)
            for (_, chunk), start in made.items()
            for field, size in enumerate(self._row_bytes)
        ]

    def _stages(self, tasks_at: int) -> Words:
        starts = iter(self._starts)
        found: Words = []
        for index, (stage, waits) in enumerate(zip(self._program.stages, self._program.waits, strict=True)):
            found += stage_words(index, waits)
            found += [len(stage.folds), *(tasks_at + next(starts) for _ in stage.folds)]
        return found


PAIR = 2


def quick_way(comm: Communicator, lanes: Sequence[CompiledLane], layout: Layout) -> Callable[[Any], Fields | None]:
    """The shortest way through an allreduce of two fields: one microsecond of Python around the compiled call.

    Returns:
        quick(x): the result for a dict of NumPy arrays that fit; None, and nothing done, for any other x. The check
        of x is part of the compiled call.
    """
    shared, words = lanes[0].compiled.shared, [lane.compiled.words for lane in lanes]
    (name0, shape0, dtype0), (name1, shape1, dtype1) = (
        (f.name, (*layout.leading, *f.row_shape), f.dtype) for f in layout.fields
    )
    run_pair, looks, done, misfit, empty = word.run_pair, ALL_LOOKS, word.DONE, word.MISFIT, np.empty

    def quick(x: Any) -> Fields | None:
        if type(x) is not dict or len(x) != PAIR or comm.refusal is not None:
            return None
        try:
            x0, x1 = x[name0], x[name1]
        except KeyError:
            return None
        y0, y1 = empty(shape0, dtype0), empty(shape1, dtype1)
        comm.refusal = BUSY
        epoch = shared.epoch + 1
        at = run_pair(words[epoch & 1], epoch, looks, id(x0), id(x1), id(y0), id(y1))
        if at == misfit:
            comm.refusal = None
            return None
        shared.epoch = epoch
        comm.calls += 1
        if at != done:
            try:
                lanes[epoch & 1].finish(at, (id(x0), id(x1), id(y0), id(y1)))
            except BaseException as error:
                comm.fail(error)
                raise
        comm.refusal = None
        return {name0: y0, name1: y1}

    return quick


def covers(work: Work) -> bool:
    """Whether calls of this operator and layout can run compiled."""
    return len(work.layout.fields) <= word.MOST_FIELDS and work.operator.compiled_fold(work.layout) is not None
