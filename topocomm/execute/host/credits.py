"""Credits: a rank that only sends may be two calls ahead of those that it sends to, no more.

In a broadcast, a reduce or a scan some ranks never wait for others; without credits they would fill the memory of the
slowest. Whoever finishes a call says so to the ranks that sent to it; whoever begins one waits for the word that its
receivers have finished the call before the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from topocomm.execute.transports.transport import Batch, Message, Transport

if TYPE_CHECKING:
    from topocomm.native._native import Requests

CALLS_AHEAD = 2


class Credits:
    """One prepared call's credits on one rank, which sends to `receivers` and receives from `senders`.

    Attributes:
        calls: Calls that have taken them; set from the engine's where compiled code takes them.
    """

    def __init__(self, transport: Transport, receivers: Iterable[int], senders: Iterable[int], tag: int) -> None:
        coming = [Message(peer, ((index, 1),)) for index, peer in enumerate(sorted(receivers))]
        going = [Message(peer, ((index, 1),)) for index, peer in enumerate(sorted(senders))]
        turns = range(CALLS_AHEAD)
        self._coming = [transport.batch(np.zeros(len(coming), np.uint8), [], coming, tag) for _ in turns if coming]
        self._going = [transport.batch(np.zeros(len(going), np.uint8), going, [], tag) for _ in turns if going]
        self.calls = 0

    def pending(self) -> tuple[list[Message], list[Message]]:
        """(words of this rank not taken yet, words not come yet) that the call that begins waits for."""
        pending = [batch.pending() for batch in self._before()]
        return [m for sends, _ in pending for m in sends], [m for _, receives in pending for m in receives]

    def take(self, timeout_s: float) -> bool:
        """Wait about `timeout_s` at most; return whether a call may begin, and count it if so."""
        if not all(batch.wait(timeout_s) for batch in self._before()):
            return False
        turn = self.calls % CALLS_AHEAD
        if self._coming:
            self._coming[turn].start()
        self.calls += 1
        return True

    def give(self) -> None:
        """Tell the other side that the call is complete."""
        if self._going:
            self._going[(self.calls - 1) % CALLS_AHEAD].start()

    def _before(self) -> list[Batch]:
        """The words about the call before the last one, in both directions: their requests serve the next call."""
        turn = self.calls % CALLS_AHEAD
        return [*self._coming[turn : turn + 1], *self._going[turn : turn + 1]] if self.calls >= CALLS_AHEAD else []

    def requests(self) -> tuple[Requests | None, ...] | None:
        """Return what compiled code takes and gives them by: (coming, going) of each turn; None where it cannot."""
        made = [None if batch is None else batch.requests() for batch in self._by_turn()]
        return None if any(batch and not some for batch, some in zip(self._by_turn(), made, strict=True)) else (*made,)

    def check(self) -> None:
        """Raise what compiled code ran into."""
        for batch in (*self._coming, *self._going):
            batch.check()

    def _by_turn(self) -> list[Batch | None]:
        none: list[Batch | None] = [None] * CALLS_AHEAD
        return [batch for turn in zip(self._coming or none, self._going or none, strict=True) for batch in turn]

    def free(self) -> None:
        """Release the requests."""
        for batch in (*self._coming, *self._going):
            batch.free()
