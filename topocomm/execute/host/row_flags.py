"""Flags by which ranks tell each other, beside a call and not before it, whether its rows are as the time before.

Each rank sets its flag, makes the call, and then looks at the flags of the others, which most have set by then: no rank
waits for a flag and then again for the call. On one host flags lie in shared memory, else they are messages.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.transports.transport import GATHER_TAG, Message

if TYPE_CHECKING:
    from topocomm.execute.session import Session
    from topocomm.operators.layout import Buffer

MOST_RANKS = 16
"""Ranks up to which all send messages to all."""
LINE_WORDS = 8
"""Words of a cache line: each rank's flag has one of its own."""


class RowFlags(ABC):
    """The flags of one kind of call; a `Pollable`, complete when those of all ranks are there."""

    memory: memoryview | None = None
    """Where calls in C set and read them; None where these cannot."""

    @abstractmethod
    def tell(self, changed: bool) -> None:
        """Set this rank's flag of the next call: whether its rows have changed."""

    @abstractmethod
    def heard(self) -> bool | None:
        """Return whether any rank's rows have changed; None where flags are missing."""

    @abstractmethod
    def awaited(self) -> AwaitedMessages:
        """Return whose flags are missing."""

    def advance(self, timeout_s: float) -> bool:
        """Wait about this long; return whether all flags are there."""
        until_s = time.monotonic() + timeout_s
        while self.heard() is None:
            if time.monotonic() >= until_s:
                return False
            os.sched_yield()
        return True

    def free(self) -> None:  # noqa: B027 - memory goes with its last user
        """Give back what the transport keeps for them."""


class SharedFlags(RowFlags):
    """In memory that all ranks map, by turns in two places: who is in call n + 2 knows that all have left call n.

    A flag says 2 n, or 2 n + 1 where rows have changed. Calls in C tell and hear too (call.c).
    """

    def __init__(self, memory: Buffer, rank: int, size: int) -> None:
        self.memory = self._words = memory.view(np.int64).data
        self._rank, self._size = rank, size
        self._others = [
            [(turn * size + peer) * LINE_WORDS for peer in range(size) if peer != rank] for turn in range(2)
        ]

    def tell(self, changed: bool) -> None:
        call = (self._told() >> 1) + 1
        self._words[((call & 1) * self._size + self._rank) * LINE_WORDS] = 2 * call + changed

    def heard(self) -> bool | None:
        told = self._told()
        same, changed = told & ~1, bool(told & 1)
        for place in self._others[told >> 1 & 1]:
            word = self._words[place]
            if word < same:
                return None
            changed |= word > same
        return changed

    def awaited(self) -> AwaitedMessages:
        told = self._told()
        places = [place for place in self._others[told >> 1 & 1] if self._words[place] < told & ~1]
        return AwaitedMessages(0, (), [Message(place // LINE_WORDS % self._size, ()) for place in places])

    def _told(self) -> int:
        """What this rank's last flag says."""
        own = self._rank * LINE_WORDS
        return max(self._words[own], self._words[own + self._size * LINE_WORDS])


class MessageFlags(RowFlags):
    """One byte from every rank to every other."""

    def __init__(self, session: Session) -> None:
        rank, size = session.rank, session.size
        self._memory = np.zeros(size, np.uint8)
        others = [peer for peer in range(size) if peer != rank]
        sends = [Message(peer, ((rank, 1),)) for peer in others]
        receives = [Message(peer, ((peer, 1),)) for peer in others]
        self._batch = session.transport.batch(self._memory, sends, receives, session.next_tag("rows of an alltoall"))

    def tell(self, changed: bool) -> None:
        self._memory[:] = changed
        self._batch.start()

    def heard(self) -> bool | None:
        return b"\1" in self._memory.tobytes() if self._batch.wait(0.0) else None

    def awaited(self) -> AwaitedMessages:
        return AwaitedMessages(0, *self._batch.pending())

    def free(self) -> None:
        self._batch.free()


def row_flags(session: Session, *, messages: bool) -> RowFlags | None:
    """Return new flags; None, on all ranks, where they would be messages and may not, or too many. Collective."""
    hosts = session.transport.hosts
    if len(set(hosts)) == 1 and session.size > 1:
        with session.call(GATHER_TAG):
            size_bytes = 2 * session.size * LINE_WORDS * 8
            taken = session.arenas[1].take(session.waiting, size_bytes, hosts)
        if taken is not None:
            return SharedFlags(taken[0][:size_bytes], session.rank, session.size)
    return MessageFlags(session) if messages and session.size <= MOST_RANKS else None
