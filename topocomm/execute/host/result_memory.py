"""Memory for results: what the caller lets go of serves a later call.

The system clears fresh pages before a program may write to them, which takes as long as a large reduction itself.
Where there is no compiled part, results are NumPy's own.
"""

from __future__ import annotations

from collections.abc import Callable
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

    Results may go at any moment, in any thread or in the midst of a method here: memory changes hands in C, in single
    steps that nothing interrupts.

    Attributes:
        kept: Memory that no array uses, the longest unused first; `MOST_KEPT_BYTES` together.
    """

    def __init__(self) -> None:
        self.kept: list[Buffer] = []
        self._lend: Callable[[NDArray[Any]], NDArray[Any]] | None = None
        try:
            from topocomm.native._native import Results
        except ImportError:
            return
        self._results = Results(np.dtype(np.uint8), MOST_KEPT_BYTES)
        self.kept, self._lend = self._results.kept, self._results.lend

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A C-contiguous array of the caller's own, for as long as it or a view of it lives."""
        return self.maker(shape, dtype)()

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], NDArray[Any]]:
        """Return what gives such arrays, again and again."""
        lend = self._lend
        if lend is None or prod(shape) * dtype.itemsize < LEAST_BYTES:
            return lambda: np.empty(shape, dtype)
        like = np.broadcast_to(np.empty((), dtype), shape)
        return lambda: lend(like)

    def close(self) -> None:
        """Keep nothing from now on."""
        if self._lend is not None:
            self._results.close()
