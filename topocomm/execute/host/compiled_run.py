"""The run of an engine in C: what it leaves to Python, its waits, and for whom it waits."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from topocomm.execute.host.call_engine import Work
from topocomm.execute.host.credits import Credits
from topocomm.execute.transports.shared_memory import SharedMemory
from topocomm.execute.transports.transport import Batch, Message
from topocomm.native import _native
from topocomm.native._native import THROUGH, TO_EXCHANGE, TO_FOLD, WAITING
from topocomm.operators.layout import Buffer, Fold
from topocomm.planning.program.shared_memory_layout import SharedProgram
from topocomm.planning.schedule.schedule import Piece

MOST_SLEEP_S = 0.01
"""Limit of a sleep between two looks at the clock."""
NO_EXCHANGES: Mapping[int, Batch] = {}
Sizes = Mapping[tuple[int, int], int]
"""Bytes awaited, by stage and position of the rank."""


class CompiledRun(Batch):
    """An engine in C as it advances; as a batch, what it waits for within the host.

    Args:
        outside: Its folds that are not compiled.
        exchanges: Messages with other hosts, by the number of their stage.
        from_python: The stages whose messages are sent and received here.
    """

    def __init__(
        self,
        shared: SharedMemory,
        native: _native.Engine,
        sizes: Sizes,
        outside: OutsideFolds | None = None,
        exchanges: Mapping[int, Batch] = NO_EXCHANGES,
        from_python: Collection[int] = (),
        credits: Credits | None = None,
    ) -> None:
        self.sends: tuple[Message, ...] = ()
        self._ranks, self._native, self._sizes, self._outside = shared.ranks, native, sizes, outside
        self._exchanges, self._from_python, self._under_way = exchanges, from_python, False
        self._credits = credits
        self.receives = tuple(self._message(*key) for key in sorted(sizes))

    def start(self) -> None:
        """As `Batch.start`, for a program without arrays."""
        self._native.start()

    def follow(self, state: int, timeout_s: float = 0.0) -> bool:
        """Advance from a state of the engine until it waits or is complete; return whether it is complete.

        Messages are awaited for about `timeout_s` in each stage.
        """
        while state not in (THROUGH, WAITING):
            if state == TO_FOLD:
                assert self._outside is not None, "an engine without a compiled fold has another"
                self._outside.run(self._native.stage)
            elif not self._exchange(timeout_s):
                return False
            state = self._native.go_on()
        return state == THROUGH

    def wait(self, timeout_s: float) -> bool:
        native = self._native
        until_s = time.monotonic() + timeout_s if timeout_s > 0 else 0.0
        sleep_us = int(1e6 * min(max(timeout_s, 0.0), MOST_SLEEP_S))
        while not self.follow(native.go_on(sleep_us) if self._waits_in_c() else native.state, timeout_s):
            if timeout_s <= 0 or time.monotonic() >= until_s:
                return False
        return True

    def _waits_in_c(self) -> bool:
        """Whether the engine waits, in shared memory or for messages that it sends and receives."""
        if self._native.state == TO_EXCHANGE and self._native.stage not in self._from_python:
            self._check()  # what was heard meanwhile
            return True
        return self._native.state == WAITING

    def _check(self) -> None:
        """Raise what compiled code ran into, or a look at what is pending found."""
        stage = self._native.stage
        if stage in self._exchanges:
            self._exchanges[stage].check()
        elif self._credits is not None:
            self._credits.check()

    def _exchange(self, timeout_s: float) -> bool:
        """Send and receive the messages of the stage, waiting about so long; return whether all are through."""
        if self._native.stage not in self._from_python:
            self._check()
            return False
        batch = self._exchanges[self._native.stage]
        if not self._under_way:
            batch.start()
            self._under_way = True
        self._under_way = not batch.wait(timeout_s)
        return not self._under_way

    def free(self) -> None:
        for batch in self._exchanges.values():
            batch.free()
        if self._credits is not None:
            self._credits.free()

    def pending(self) -> tuple[list[Message], list[Message]]:
        stage = self._native.stage
        if self._native.state == TO_EXCHANGE and stage in self._exchanges:
            return self._exchanges[stage].pending()
        if self._native.state == TO_EXCHANGE and self._credits is not None:
            self._credits.calls = self._native.credited
            return self._credits.pending()
        return [], [self._message(stage, position) for position in sorted(set(self._native.behind()))]

    def _message(self, stage: int, position: int) -> Message:
        size_bytes = self._sizes.get((stage, position), 0)
        return Message(self._ranks[position], ((0, size_bytes),) if size_bytes else ())


BoundFold = tuple[Fold, slice | None, Mapping[str, NDArray[Any]]]
"""A fold, the rows of the result that it makes, and where it writes, by field, if it makes none."""


class OutsideFolds:
    """Folds that an engine in C leaves to Python. Not known here: its Python engine, which goes with its last user."""

    def __init__(
        self, work: Work, program: SharedProgram, results: Mapping[Piece, int], memory: Buffer, native: _native.Engine
    ) -> None:
        self._work, self._native = work, native
        self.folds: list[list[BoundFold]] = []
        for stage in program.stages:
            self.folds.append([])
            for combine in stage.folds:
                piece, rows = (combine.out_slot, combine.chunk), work.chunk_rows(combine.chunk)
                fold = work.bind_fold(memory, program.offsets, combine)
                first = work.result.place(work.parts[combine.chunk][0])
                where = slice(first, first + rows) if piece in results else None
                target = work.layout.views(memory, program.offsets[piece], rows) if where is None else {}
                self.folds[-1].append((fold, where, target))

    def run(self, stage: int) -> None:
        """Run the folds of a stage."""
        fields, rows, results = self._work.layout.fields, self._work.result.rows, self._native.results
        for fold, where, target in self.folds[stage]:
            if where is not None:
                arrays = zip(fields, results, strict=True)
                target = {f.name: array.reshape(rows, *f.row_shape)[where] for f, array in arrays}
            fold(target)
