"""Rows of gathers and alltoalls that are not prepared: exchanged where those of some rank are not as the time before.

Ranks first ask each other whether any rows changed, by the call that a barrier is: one byte, the shortest there is.
After a change they exchange rows without asking, until these stay the same. An all-gather does not even ask
(`all_gather.py`), and of alltoalls those alone for which there are no flags (`expected_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topocomm.execute.calls.call_cache import CallCache
from topocomm.execute.calls.expected_rows import ExpectedRows, described
from topocomm.execute.calls.ranges import gather_pairs, gather_rows, pairs_of, rows_of
from topocomm.execute.session import Session
from topocomm.operators.builtin import MAX
from topocomm.planning.collectives import IN_PAIRS, PARTS_GIVEN

ASKED = ("allreduce", MAX, 0)
SAME, CHANGED = np.zeros(1, np.uint8), np.ones(1, np.uint8)


@dataclass
class _Known:
    """What all ranks know of the last call of a collective.

    Attributes:
        own: This rank's rows; `every` those of all ranks.
        asks: Whether ranks ask before they exchange rows; the same on all of them.
    """

    own: tuple[int, ...]
    every: tuple[int, ...]
    asks: bool


class RowCounts:
    """Rows of the last call of every collective on a communicator."""

    def __init__(self, calls: CallCache, session: Session) -> None:
        self._calls, self._session = calls, session
        self._known: dict[str, _Known] = {}

    def of_gather(self, x: Any) -> tuple[int, ...]:
        """Return how many rows every rank gives to a gather; collective."""
        return self._ask("gather", (rows_of(x),), lambda: gather_rows(self._calls, self._session, x))

    def of_alltoall(self, x: Any, rows: Sequence[int] | None) -> tuple[int, ...] | None:
        """Return how many rows every rank sends to each; None where `rows` is. Collective."""
        if rows is None:
            return None
        own = pairs_of(x, rows, self._session.size)
        return self._ask("alltoall", own, lambda: gather_pairs(self._calls, self._session, own))

    def of_prepared(self, collective: str, x: Any, rows: Sequence[int] | None) -> tuple[int, ...] | None:
        """Return the rows that a call of any collective is prepared with, exchanged where ranks know only their own."""
        if collective in IN_PAIRS and rows is not None:
            return gather_pairs(self._calls, self._session, pairs_of(x, rows, self._session.size))
        if collective in PARTS_GIVEN and collective not in IN_PAIRS:
            return gather_rows(self._calls, self._session, x)
        return None if rows is None else tuple(rows)

    def _ask(self, collective: str, own: tuple[int, ...], exchange: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        known = self._known.get(collective)
        if known is not None and known.asks:
            changed = self._calls.run(ASKED, SAME if known.own == own else CHANGED, None)
            if not changed[0]:
                return known.every
        every = exchange()
        self._known[collective] = _Known(own, every, known is None or known.every == every)
        return every


class AllToAll:
    """The alltoalls of a communicator, and what it knows of their rows."""

    def __init__(self, calls: CallCache, session: Session, rows: RowCounts) -> None:
        self._calls, self._session, self._rows = calls, session, rows
        self._expected = ExpectedRows(calls, session, "alltoall", messages=True)

    def send(self, x: Any, dest: int, out: Any) -> Any:
        """Return the rows that ranks send to this one; collective. As `Communicator.sendrecv`."""
        same, result = self._expected.repeat(x, dest, out)
        if same:
            return result
        size = self._session.size
        rows = [rows_of(x) if rank == dest else 0 for rank in range(size)] if dest in range(size) else ()
        return self._run(x, rows, out, dest)

    def run(self, x: Any, rows: Sequence[int] | None, out: Any) -> Any:
        """Return the rows that all ranks have for this one; collective. As `Communicator.alltoall`."""
        if rows is None:
            return self._calls.run(("alltoall", None, 0, None), x, out)
        key = tuple(rows) if isinstance(rows, (list, tuple)) else None
        same, result = self._expected.repeat(x, key, out)
        return result if same else self._run(x, rows, out, key)

    def _run(self, x: Any, rows: Sequence[int], out: Any, key: Any) -> Any:
        if not self._expected.serve(described(x)[0]):
            return self._calls.run(("alltoall", None, 0, self._rows.of_alltoall(x, rows)), x, out)
        own = pairs_of(x, rows, self._session.size)
        return self._expected.run(x, own, lambda: gather_pairs(self._calls, self._session, own), out, key)
