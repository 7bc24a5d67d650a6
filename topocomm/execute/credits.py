"""Credits: a rank that only sends may be two calls ahead of those that it sends to, no more.

In a broadcast, a reduce or a scan some ranks never wait for others; without credits they would fill the memory of the
slowest. Whoever finishes a call says so to the ranks that sent to it; whoever begins one waits for the word that its
receivers have finished the call before the last.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from topocomm.execute.transports.transport import Batch, Message, Transport

CALLS_AHEAD = 2


class Credits:
    """One prepared call's credits on one rank.

    Args:
        transport: What carries them.
        receivers: Ranks that this one sends to.
        senders: Ranks that it receives from.
        tag: Of the messages.
    """

    def __init__(self, transport: Transport, receivers: Iterable[int], senders: Iterable[int], tag: int) -> None:
        coming = [Message(peer, ((index, 1),)) for index, peer in enumerate(sorted(receivers))]
        going = [Message(peer, ((index, 1),)) for index, peer in enumerate(sorted(senders))]
        turns = range(CALLS_AHEAD)
        self._coming = [transport.batch(np.zeros(len(coming), np.uint8), [], coming, tag) for _ in turns if coming]
        self._going = [transport.batch(np.zeros(len(going), np.uint8), going, [], tag) for _ in turns if going]
        self._calls = 0

    @property
    def awaited(self) -> Batch | None:
        """What the call that begins waits for, if anything."""
        return self._coming[self._calls % CALLS_AHEAD] if self._coming else None

    def take(self, timeout_s: float) -> bool:
        """Whether a call may begin, after waiting about `timeout_s` at most; counts it if so."""
        turn = self._calls % CALLS_AHEAD
        before = [*self._coming[turn : turn + 1], *self._going[turn : turn + 1]] if self._calls >= CALLS_AHEAD else []
        if not all(batch.wait(timeout_s) for batch in before):
            return False
        if self._coming:
            self._coming[turn].start()
        self._calls += 1
        return True

    def give(self) -> None:
        """Say that the call is through."""
        if self._going:
            self._going[(self._calls - 1) % CALLS_AHEAD].start()

    def free(self) -> None:
        """Give back the requests."""
        for batch in (*self._coming, *self._going):
            batch.free()
