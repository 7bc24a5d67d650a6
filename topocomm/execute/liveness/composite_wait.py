"""Two ways to wait as one: progress in shared memory and messages."""

from __future__ import annotations

import time
from collections.abc import Sequence

from topocomm.execute.transports.transport import Batch, Message

TURN_S = 0.0002


class CompositeWait(Batch):
    """Batches that are started together and awaited together.

    Args:
        batches: The one that publishes progress first: others may wait for it.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self.sends = [message for batch in batches for message in batch.sends]
        self.receives = [message for batch in batches for message in batch.receives]

    def start(self) -> None:
        """As `Batch.start`."""
        for batch in self._batches:
            batch.start()
            batch.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """As `Batch.wait`."""
        until_s = time.monotonic() + timeout_s
        while True:
            left = [batch for batch in self._batches if not batch.wait(0.0)]
            if not left:
                return True
            if time.monotonic() >= until_s:
                return False
            left[0].wait(min(timeout_s, TURN_S))

    def pending(self) -> tuple[list[Message], list[Message]]:
        """As `Batch.pending`."""
        found = [batch.pending() for batch in self._batches]
        return [m for sends, _ in found for m in sends], [m for _, receives in found for m in receives]

    def free(self) -> None:
        """As `Batch.free`."""
        for batch in self._batches:
            batch.free()
