"""Rows of gathers and alltoalls that are not prepared: exchanged where those of some rank are not as the time before.

Ranks first ask each other whether any rows changed, by the call that a barrier is: one byte, the shortest there is.
After a change they exchange rows without asking, until these stay the same. An all-gather does not even ask
(`all_gather.py`), and of alltoalls those alone for which there are no flags (`all_to_all.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topocomm.execute.calls.call_cache import CallCache
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
