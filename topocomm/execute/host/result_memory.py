"""Memory for results: what the caller lets go of serves a later call.

The system clears fresh pages before a program may write to them, which takes as long as a large reduction itself.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.operators.layout import Buffer

LEAST_BYTES = 1 << 20
"""Smaller results are NumPy's own: the C library keeps memory of that size itself."""
MOST_KEPT_BYTES = 256 << 20


class ResultMemory:
    """Gives arrays without contents, on memory of results that are gone where it has some of that size.

    Results may go at any moment, in any thread or in the midst of a method here: the list is changed by single steps
    that nothing interrupts, and never read while it can change.

    Attributes:
        kept: Memory that no array uses, the longest unused first; `MOST_KEPT_BYTES` together.
    """

    def __init__(self) -> None:
        self.kept: list[Buffer] = []
        self._closed = False

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A C-contiguous array of the caller's own, for as long as it or a view of it lives."""
        size = prod(shape) * dtype.itemsize
        if size < LEAST_BYTES or self._closed:
            return np.empty(shape, dtype)
        others: list[Buffer] = []
        try:
            while (memory := self.kept.pop()).size != size:
                others.append(memory)
        except IndexError:
            memory = np.empty(size, np.uint8)
        self.kept.extend(reversed(others))
        lent = _lent_kind(size).from_buffer(memory)
        lent.owner, lent.memory = self, memory
        return np.ndarray(shape, dtype, lent)

    def take_back(self, memory: Buffer) -> None:
        """Keep memory that no array uses any more, and give the system what is then too much."""
        if self._closed:
            return
        self.kept.append(memory)
        while sum(map(len, self.kept.copy())) > MOST_KEPT_BYTES:
            del self.kept[:1]

    def close(self) -> None:
        """Keep nothing from now on."""
        self._closed = True
        self.kept.clear()


class _Lent:
    """What an array on lent memory is based on: gone when the last view of it is."""

    owner: ResultMemory
    memory: Buffer

    def __del__(self) -> None:
        self.owner.take_back(self.memory)


@lru_cache(maxsize=64)
def _lent_kind(size: int) -> Any:
    """The type of what is lent of so many bytes: a buffer of ctypes, since NumPy takes that in a microsecond."""
    return type("_Lent", (_Lent, ctypes.Array), {"_type_": ctypes.c_char, "_length_": size})
