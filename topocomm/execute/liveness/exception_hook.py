"""What an uncaught exception does to the other ranks: it ends their waiting, or the whole job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TextIO


def end_on_uncaught(rank: int, size: int, end: Callable[[BaseException], None]) -> None:
    """Show an uncaught exception of this process with its rank, then call `end` with it.

    Without this the other ranks would wait for ever: a rank that leaves on an exception does not tell them, and
    under MPI it blocks in MPI_Finalize. The rank is that of the first call; later calls only add another `end`.
    """
    hook = sys.excepthook
    if not isinstance(hook, _Hook):
        sys.excepthook = hook = _Hook(rank, size, hook)
    if end not in hook.ends:
        hook.ends.append(end)


class _Hook:
    """A `sys.excepthook` before another one."""

    def __init__(self, rank: int, size: int, before: Callable[..., object]) -> None:
        self.ends: list[Callable[[BaseException], None]] = []
        self._who, self._before = f"rank {rank} of {size}", before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(f"{self._who} failed:\n")
        self._before(kind, error, trace)
        streams: tuple[TextIO, ...] = (sys.stderr, sys.stdout)
        for stream in streams:
            stream.flush()
        for end in self.ends:
            end(error)
