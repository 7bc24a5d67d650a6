"""Exceptions that end a rank before `topocomm.init`: shown with the rank, in one piece."""

from __future__ import annotations

import os
import sys
from types import TracebackType

RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")
"""Variables of the rank that launchers set."""


def show_with_rank() -> None:
    """Have exceptions that nobody catches shown with their rank, if a launcher has started this process."""
    if any(name in os.environ for name in RANKS):
        sys.excepthook = _EarlyHook()


class _EarlyHook:
    """A `sys.excepthook` that imports what it needs only when there is something to show."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if sys.excepthook is self:  # else that of a communicator, or the program's own, has said whose it is
            sys.excepthook = self._before
            _with_rank()
            sys.excepthook(kind, error, trace)
        else:
            self._before(kind, error, trace)


def _with_rank() -> None:
    try:
        from topocomm.execute.liveness.exception_hook import end_on_uncaught
        from topocomm.execute.setup.launchers import launched
    except ImportError:  # of NumPy, say, which may be what failed
        return
    launch = launched()
    if launch is not None:
        end_on_uncaught(launch.rank, launch.size, lambda error: None)
