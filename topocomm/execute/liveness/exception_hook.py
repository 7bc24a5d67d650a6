"""Hook for uncaught exceptions: shows them with their rank, those of several ranks once, and ends the job."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import TracebackType

from topocomm.errors import DeadlineError, TopocommError
from topocomm.execute.liveness.log import LOGGER
from topocomm.execute.transports.transport import FAILURE_TAG, SHOWN_TAG, Transport

LAST_WORDS_S = 1.0
"""Seconds in which ranks that fail together hear of each other before their processes end."""
TEXT_CHARACTERS = 800
"""Characters of an error that other ranks hear of."""
ALIKE_S = 0.3
"""Seconds in which a rank looks whether one below it fails alike, and is the one to show it."""
PACKAGE = str(Path(__file__).parents[2]) + os.sep
OPERATORS = str(Path(PACKAGE, "operators")) + os.sep


def show_on(error: BaseException, transport: Transport, rank: int) -> None:
    """Have an error that several ranks raise, if none catches it, shown in full by one of them, by others in a line."""
    if not hasattr(error, "shown_on"):
        error.shown_on = transport, rank  # type: ignore[attr-defined]


def tell_shown(error: BaseException) -> None:
    """Tell the other ranks that a user has seen this error, or the one that caused it."""
    transport, _ = getattr(error, "shown_on", (None, -1))
    if transport is not None:
        for peer in {*range(transport.size)} - {transport.rank}:
            transport.post(peer, SHOWN_TAG, b"")


def end_on_uncaught(rank: int, size: int, end: Callable[[BaseException], None]) -> None:
    """Show an uncaught exception of this process with its rank, then call `end` with it.

    Without this the other ranks would wait for ever: a rank that leaves on an exception does not tell them, and
    under MPI it blocks in MPI_Finalize. The rank is that of the first call; later calls only add another `end`.

    An error that all ranks raise, or that one raises as another failed, or several by themselves in the same words, is
    shown by one rank, without the frames inside this package. The others wait for its word that it has done so, and add
    a line; without word they show it themselves. TOPOCOMM_LOG=debug shows everything.
    """
    hook = sys.excepthook
    if not isinstance(hook, _Hook):
        sys.excepthook = hook = _Hook(rank, size, hook)
    if end not in hook.ends:
        hook.ends.append(end)


class _Hook:
    """A `sys.excepthook` that runs the one before it, then `ends`."""

    def __init__(self, rank: int, size: int, before: Callable[..., object]) -> None:
        self.ends: list[Callable[[BaseException], None]] = []
        self._who, self._before = f"rank {rank} of {size}", before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        place = None
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        of_rule = _of_rule(trace if earlier is None else earlier.__traceback__)
        if (of_rule or (earlier is None and isinstance(error, TopocommError))) and not LOGGER.isEnabledFor(
            logging.DEBUG
        ):
            place = _cut(error, trace)
            if earlier is not None:
                _cut(earlier, earlier.__traceback__)
        if place is not None and _shown_elsewhere(error):
            sys.stderr.write(f"{self._who} stopped too: {kind.__name__} at {place}\n")
        else:
            with redirect_stderr(StringIO()) as text:  # in one write, since ranks share a terminal
                self._before(kind, error, trace if place is None else error.__traceback__)
            sys.stderr.write(f"{self._who} failed:\n{text.getvalue()}")
        sys.stderr.flush()
        sys.stdout.flush()
        for end in self.ends:
            end(error)


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
    code = outside[-1].tb_frame.f_code
    return f"{code.co_filename}:{outside[-1].tb_lineno}, in {code.co_name}"


def _frames(trace: TracebackType | None) -> list[tuple[TracebackType, str]]:
    steps = []
    while trace is not None:
        steps.append((trace, trace.tb_frame.f_code.co_filename))
        trace = trace.tb_next
    return steps


def _shown_elsewhere(error: BaseException) -> bool:
    """Wait for the word of a rank that has shown an error that is not this one's to show; return whether it came."""
    transport, rank = getattr(error, "shown_on", (None, -1))
    if transport is None or (transport.rank == rank and not _fails_below(error, transport)):
        return False
    others = {*range(transport.size)} - {transport.rank}
    until_s = time.monotonic() + LAST_WORDS_S
    while all(transport.take(peer, SHOWN_TAG) is None for peer in others):
        if time.monotonic() > until_s:
            return False
        transport.pause()
    return True


def _fails_below(error: BaseException, transport: Transport) -> bool:
    """Whether a rank below this one reports an error of its own in the same words, or a wait as long as this one's."""
    kind, text = type(error).__name__, str(error)[:TEXT_CHARACTERS]
    unheard, until_s = {*range(transport.rank)}, time.monotonic() + ALIKE_S
    while unheard and time.monotonic() < until_s:
        for peer in sorted(unheard):
            if (note := transport.take(peer, FAILURE_TAG)) is None:
                continue
            unheard.remove(peer)
            report = json.loads(note)
            alike = report["text"] == text or kind == DeadlineError.__name__
            if report["rank"] == peer and report["kind"] == kind and alike:
                return True
        transport.pause()
    return False
