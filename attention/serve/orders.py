"""What rank 0 tells the other ranks to do next, and what they tell it: that they are asked to end.

One small reduction an order; of a long prompt the rest follows in broadcasts of one size. Ranks that have nothing to do
ask now and then whether an order is there, so that they leave their cores alone; rank 0 sends one often enough that
no wait reaches its limit.
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from topocomm import MAX, Communicator

SMALL, LARGE = 64, 4096
"""Integers of an order's first message, and of those that follow."""
HEAD = 5
ASK_AGAIN_S = 0.01
"""Seconds between two looks for an order on ranks that have nothing to do: the first token after a pause comes later
by half of that on average, and a look takes some 0.1 ms."""


class Kind(IntEnum):
    """What there is to do."""

    NOTHING, PREFILL, STEP, END = range(4)


class Order(NamedTuple):
    """One order.

    Attributes:
        batch: Of PREFILL and STEP, which batch.
        rows: Of PREFILL, how many rows begin.
        numbers: Of PREFILL the prompt; of STEP the rows that go on, then their tokens.
    """

    kind: Kind
    batch: int = 0
    rows: int = 0
    numbers: tuple[int, ...] = ()


class Orders:
    """Orders among the ranks of a communicator; collective."""

    def __init__(self, comm: Communicator) -> None:
        self._first = comm.prepare("allreduce", like=np.zeros(SMALL, np.int64), operator=MAX)
        self._rest = comm.prepare("broadcast", like=np.zeros(LARGE, np.int64))
        self._root = comm.rank == 0

    def exchange(self, order: Order | None, *, end: bool, idle: bool) -> tuple[Order, bool]:
        """Return rank 0's order, and whether any rank is asked to end.

        Args:
            order: On rank 0 the order; None elsewhere.
            end: Whether this rank is asked to end.
            idle: Whether the ranks have nothing to do, so that the next order may be long in coming.

        Raises:
            RankFailedError, DeadlineError, MismatchError: As for any call.
        """
        own = np.zeros(SMALL, np.int64)
        own[0] = end
        numbers = np.array(order.numbers if order else (), np.int64)
        if order is not None:
            own[1:HEAD] = order.kind, order.batch, order.rows, len(numbers)
            own[HEAD : HEAD + len(numbers)] = numbers[: SMALL - HEAD]
        got = self._patiently(own) if idle and not self._root else self._first(own)
        asked, kind, batch, rows, count = got[:HEAD].tolist()
        parts = [got[HEAD:]]
        for start in range(SMALL - HEAD, count, LARGE):
            piece = np.zeros(LARGE, np.int64)
            sent = numbers[start : start + LARGE]
            piece[: len(sent)] = sent
            parts.append(self._rest(piece))
        return Order(Kind(kind), batch, rows, tuple(np.concatenate(parts)[:count].tolist())), bool(asked)

    def _patiently(self, own: np.ndarray) -> np.ndarray:
        handle = self._first.start(own)
        while not handle.test():
            time.sleep(ASK_AGAIN_S)
        return np.asarray(handle.wait())
