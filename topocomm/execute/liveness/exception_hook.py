"""Hook for uncaught exceptions: shows them with their rank, those of several ranks once, and ends the job."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from hashlib import sha256
from io import StringIO
from pathlib import Path
from types import TracebackType

from topocomm.errors import DeadlineError, MismatchError, TopocommError
from topocomm.execute.liveness.log import LOGGER
from topocomm.execute.transports.transport import SHOWN_TAG, Transport

LAST_WORDS_S = 1.0
"""Seconds in which ranks that fail together hear of each other before their processes end."""
ALIKE_S, LAST_TURN = 0.25, 3
"""Seconds for each rank below, of so many at most, in which a rank hears that one has shown an error of its text."""
ONE_CAUSE = DeadlineError, MismatchError
"""Errors that several ranks find by themselves, each in words of its own, where one rank was late or went apart."""
PACKAGE = str(Path(__file__).parents[2]) + os.sep
OPERATORS = str(Path(PACKAGE, "operators")) + os.sep


def show_on(error: BaseException, transport: Transport, rank: int) -> None:
    """Have an error that several ranks raise, if none catches it, shown in full by one of them, by others in a line."""
    if not hasattr(error, "shown_on"):
        error.shown_on = transport, rank  # type: ignore[attr-defined]


def tell_shown(error: BaseException) -> None:
    """Tell the other ranks that a user has seen this error, or the one that caused it, and in what words."""
    transport, _ = getattr(error, "shown_on", (None, -1))
    if transport is not None:
        for peer in {*range(transport.size)} - {transport.rank}:
            transport.post(peer, SHOWN_TAG, _digest(error))


def end_on_uncaught(
    rank: int,
    size: int,
    end: Callable[[BaseException], None],
    current: Callable[[], Transport | None] | None = None,
) -> None:
    """Show an uncaught exception of this process with its rank, then call `end` with it.

    Without this the other ranks would wait for ever: a rank that leaves on an exception does not tell them, and
    under MPI it blocks in MPI_Finalize. The rank is that of the first call; later calls only add another `end`.

    An error that all ranks raise, or that one raises as another failed, is shown by one rank, without the frames
    inside this package. The others wait for its word that it has done so, and add a line; without word they show it
    themselves. So it is with exceptions that ranks raise each by itself, as of a wrong argument or a missing file, if
    a user has seen the same text, to the letter. TOPOCOMM_LOG=debug shows everything.

    Args:
        rank: This process's.
        size: The number of ranks.
        end: Is called with the error when it is shown.
        current: Returns by what ranks can still tell each other of an error outside of calls; None: as before.
    """
    hook = sys.excepthook
    if not isinstance(hook, _Hook):
        sys.excepthook = hook = _Hook(rank, size, hook)
    if end not in hook.ends:
        hook.ends.append(end)
    hook.current = current or hook.current


class _Hook:
    """A `sys.excepthook` that runs the one before it, then `ends`."""

    def __init__(self, rank: int, size: int, before: Callable[..., object]) -> None:
        self.ends: list[Callable[[BaseException], None]] = []
        self.current: Callable[[], Transport | None] = lambda: None
        self._who, self._before = f"rank {rank} of {size}", before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        place = None
        if isinstance(error, Exception) and not LOGGER.isEnabledFor(logging.DEBUG):
            place = _shorten(error, trace)
        with redirect_stderr(StringIO()) as text:  # in one write, since ranks share a terminal
            self._before(kind, error, trace if place is None else error.__traceback__)
        error.shown_text = text.getvalue()  # type: ignore[attr-defined]
        transport = self.current()
        if transport is not None and isinstance(error, Exception):
            show_on(error, transport, transport.rank)
        if place is not None and _shown_elsewhere(error):
            sys.stderr.write(f"{self._who} stopped too: {kind.__name__} at {place}\n")
        else:
            sys.stderr.write(f"{self._who} failed:\n{text.getvalue()}")
        sys.stderr.flush()
        sys.stdout.flush()
        for end in self.ends:
            end(error)


def _shorten(error: Exception, trace: TracebackType | None) -> str | None:
    """Take the frames of this package out of an error of its own or of an operator's rule; return where it came up.

    None where others may not have seen the same: an error of the package that came up as another one was handled.
    """
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if _of_rule(trace if earlier is None else earlier.__traceback__):
        if earlier is not None:
            _cut(earlier, earlier.__traceback__)
        return _cut(error, trace)
    if isinstance(error, TopocommError):
        return None if earlier is not None else _cut(error, trace)
    error.__traceback__ = trace
    return _place(trace)


def _of_rule(trace: TracebackType | None) -> bool:
    """Whether an exception comes out of a function of the user's that an operator called."""
    frames = _frames(trace)
    inside = [name for _, name in frames if name.startswith(PACKAGE)]
    return bool(inside) and inside[-1].startswith(OPERATORS) and inside[-1] != frames[-1][1]


def _cut(error: BaseException, trace: TracebackType | None) -> str | None:
    """Take the frames of this package out of a traceback; return the last place left, or None where there is none."""
    outside = [step for step, name in _frames(trace) if not name.startswith(PACKAGE)]
    if not outside:
        return None
    for step, following in zip(outside, [*outside[1:], None], strict=True):
        step.tb_next = following
    error.__traceback__ = outside[0]
    return _place(outside[0])


def _place(trace: TracebackType | None) -> str | None:
    """Return the last line of a traceback that is not in this package."""
    steps = [step for step, name in _frames(trace) if not name.startswith(PACKAGE)]
    code = steps[-1].tb_frame.f_code if steps else None
    return None if code is None else f"{code.co_filename}:{steps[-1].tb_lineno}, in {code.co_name}"


def _frames(trace: TracebackType | None) -> list[tuple[TracebackType, str]]:
    """The steps of a traceback, each with its file; what `dataclass` made for a class of the package lies in it."""
    steps = []
    while trace is not None:
        file, module = trace.tb_frame.f_code.co_filename, trace.tb_frame.f_globals.get("__name__") or ""
        steps.append((trace, PACKAGE + file if file == "<string>" and module.startswith("topocomm.") else file))
        trace = trace.tb_next
    return steps


def _shown_elsewhere(error: BaseException) -> bool:
    """Wait for the word of a rank that has shown an error that is not this one's to show; return whether it came.

    What this rank raised by itself is its own to show, but for another rank if that has shown the same text, or has
    waited in vain as well: each waits longer than the one below.
    """
    transport, rank = getattr(error, "shown_on", (None, -1))
    if transport is None or transport.rank == rank == 0:
        return False
    is_own = transport.rank == rank
    others = {*range(transport.size)} - {transport.rank}
    until_s = time.monotonic() + (ALIKE_S * min(rank, LAST_TURN) if is_own else LAST_WORDS_S)
    while True:
        words = [word for peer in others if (word := transport.take(peer, SHOWN_TAG)) is not None]
        if _digest(error) in words or (words and (not is_own or isinstance(error, ONE_CAUSE))):
            return True
        if time.monotonic() > until_s:
            return False
        transport.pause()


def _digest(error: BaseException) -> bytes:
    """Of the text that is shown, without what differs by rank: torch's prefix, and notes, which name a record."""
    text = re.sub(r"(?m)^\[rank\d+\]: ", "", getattr(error, "shown_text", ""))
    for note in getattr(error, "__notes__", ()):
        text = text.replace(f"{note}\n", "")
    return sha256(text.encode("utf-8", "surrogateescape")).digest()
