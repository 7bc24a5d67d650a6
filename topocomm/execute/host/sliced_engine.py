"""An engine that runs a long payload slice by slice, so that what ranks share stays in the caches.

Slices take the two shared memories in turn: while one is folded the next is written. Their number is even, so every
slice always has the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topocomm.execute.calls.structure import Fields
from topocomm.execute.host.call_engine import CallEngine, Work
from topocomm.execute.liveness.pollable import AwaitedMessages

SLICE_BYTES = 1 << 19
"""Payload of a slice: what ranks write and read in one turn fits the second-level cache of a core."""
HOSTS_SLICE_BYTES = 4 << 20
"""Payload of a slice where ranks are on several hosts: slices follow each other, and the network rests in between."""
MOST_SLICES = 512
NOTHING = (None, None, True)
"""Arguments of `begin` between calls."""


def slices_of(work: Work, slice_bytes: int) -> list[Work]:
    """Split the work into an even number of slices of every chunk; unsplit if it is short or cannot be split."""
    shortest = min((rows for _, rows in work.parts if rows), default=0)
    count = min(-(-work.plan.payload_bytes // slice_bytes), MOST_SLICES, shortest) & ~1
    if count < 2 or not work.layout.splittable:
        return [work]
    slices = []
    for index in range(count):
        edges = [(first + rows * index // count, first + rows * (index + 1) // count) for first, rows in work.parts]
        slices.append(replace(work, chunks=tuple((low, high - low) for low, high in edges)))
    return slices


class SlicedEngine(CallEngine):
    """The slices of a call, one engine each, of one shared memory."""

    views = None

    def __init__(self, engines: Sequence[CallEngine]) -> None:
        self.engines = engines
        self.memory = engines[0].memory
        self.takes_value, self.gives_result = engines[0].takes_value, engines[0].gives_result
        self._at = len(engines)
        self._arrays: tuple[Fields | None, Fields | None, bool] = NOTHING

    def begin(self, fields: Fields | None, target: Fields | None, apart: bool) -> bool:
        if fields is not None:  # once, not slice by slice
            fields = {name: np.ascontiguousarray(array) for name, array in fields.items()}
        self._at, self._arrays = -1, (fields, target, apart)
        return self._go_on()

    def advance(self, timeout_s: float) -> bool:
        while self._at < len(self.engines):
            if not self.engines[self._at].advance(timeout_s):
                return False
            self._go_on()
        return True

    def awaited(self) -> AwaitedMessages:
        return self.engines[min(self._at, len(self.engines) - 1)].awaited()

    def free(self) -> None:
        for engine in self.engines:
            engine.free()

    def _go_on(self) -> bool:
        """Begin the slices that follow complete ones; return whether all are complete."""
        self._at += 1
        while self._at < len(self.engines):
            if not self.engines[self._at].begin(*self._arrays):
                return False
            self._at += 1
        self._arrays = NOTHING  # the caller's arrays go when the caller lets them go
        return True
