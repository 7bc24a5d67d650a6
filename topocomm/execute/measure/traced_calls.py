"""Calls of all ranks in one trace for Perfetto: a process a rank, with its calls, their rounds and folds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from topocomm.errors import TopocommError
from topocomm.execute.calls.agreement import gather_texts
from topocomm.execute.calls.call_cache import CallCache
from topocomm.execute.liveness.call_trace import CallEvent, CallTrace, decode, now_ns
from topocomm.execute.session import Session
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.execute.transports.watch import process_space
from topocomm.planning.report.perfetto import Span, trace_text

_SYNCHRONISED = 3
"""Exchanges before the trace begins; the last ones end on all ranks at about the same time."""


@contextmanager
def traced(session: Session, calls: CallCache, path: str | Path) -> Iterator[None]:
    """Trace all calls in host memory that are made or prepared inside; collective, rank 0 writes the file.

    Calls are prepared anew for it and run stage by stage in Python: rounds take longer than those of compiled calls,
    and wait for each other as these do. Ranks of one host have one clock; those of others are set to rank 0's by an
    exchange, to some tens of microseconds.

    Raises:
        TopocommError: Calls are traced already.
        OSError: Rank 0 cannot write the file.
    """
    waiting = session.waiting
    if waiting.trace is not None:
        raise TopocommError(f"rank {session.rank}: calls are traced already; leave that trace first")
    for _ in range(_SYNCHRONISED):
        _exchange(session, b"")
    ahead_ns = now_ns()
    waiting.trace = trace = CallTrace()
    try:
        with calls.apart():
            yield
            notes = _exchange(session, trace.encode())
            own = f"{ahead_ns} {process_space()[0]}"  # processes of one kernel have one clock
            clocks = [note.decode().split(" ", 1) for note in _exchange(session, own.encode())]
    finally:
        waiting.trace = None
    if session.rank == 0:
        shifts = [0 if name == clocks[0][1] else int(clocks[0][0]) - int(zero) for zero, name in clocks]
        text = trace_text(_spans(session, [decode(note) for note in notes], shifts))
        Path(path).write_text(text)


def _exchange(session: Session, own: bytes) -> list[bytes]:
    """Every rank's bytes, of any length."""
    with session.call(GATHER_TAG):
        return gather_texts(session.waiting, own, what="an exchange of traces")


def _spans(session: Session, ranks: Sequence[Sequence[CallEvent]], shifts_ns: Sequence[int]) -> Iterator[Span]:
    """The events of all ranks on one clock, from the first one."""
    starts = [event.start_ns + shift for own, shift in zip(ranks, shifts_ns, strict=True) for event in own]
    zero_ns = min(starts, default=0)
    for rank, (own, shift) in enumerate(zip(ranks, shifts_ns, strict=True)):
        for event in sorted(own, key=lambda event: (["calls", "rounds", "folds"].index(event.row), event.start_ns)):
            times = (event.start_ns + shift - zero_ns, event.end_ns + shift - zero_ns)
            process = f"rank {rank} on {session.places[rank]}"
            yield Span(process, event.row, *times, name=event.name, category=event.row, args=event.facts)
