"""Pollables that a rank can wait for: the interface, background calls, and batches awaited together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from topocomm.execute.transports.transport import Batch, Message


class AwaitedMessages(NamedTuple):
    """Messages that a call waits for.

    Attributes:
        stage: Number of the stage that it is in; -1 where it waits for ranks to finish an earlier call; None where that
            is not known, since a device goes through the stages by itself.
        sends: Messages that were not taken yet.
        receives: Messages that have not come yet.
    """

    stage: int | None
    sends: Sequence[Message]
    receives: Sequence[Message]


class Pollable(Protocol):
    """Something that a rank can wait for."""

    def advance(self, timeout_s: float) -> bool:
        """Advance, waiting about `timeout_s` at each stage; return whether it is complete."""

    def awaited(self) -> AwaitedMessages:
        """Return what it waits for."""


class BackgroundCall:
    """A call on its own thread, to wait for; begun at once.

    Args:
        call: What is called. The library must give other threads of Python leave to run meanwhile.
        name: Of the thread, behind the name of the one that begins it.
        others: Whom the call waits for, as far as that is known.

    Attributes:
        made: What it returned.
        error: What it raised.
    """

    def __init__(self, call: Callable[[], Any], name: str, others: AwaitedMessages | None = None) -> None:
        self.made: Any = None
        self.error: Exception | None = None
        self._others = others or AwaitedMessages(None, (), ())

        def run() -> None:
            try:
                self.made = call()
            except Exception as error:  # noqa: BLE001 - for the thread that waits
                self.error = error

        self._thread = threading.Thread(target=run, name=f"{threading.current_thread().name}-{name}", daemon=True)
        self._thread.start()

    def advance(self, timeout_s: float) -> bool:
        """Wait a little; whether it is over, its thread included: one still there could outlive the interpreter."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def awaited(self) -> AwaitedMessages:
        """Return the given ranks: the library does not report whom it waits for."""
        return self._others


TURN_S = 0.0002


class BatchWait:
    """A batch under way of which it is not known in what stage it is, as a library's."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def advance(self, timeout_s: float) -> bool:
        """As `Pollable.advance`."""
        return self._batch.wait(timeout_s)

    def awaited(self) -> AwaitedMessages:
        """As `Pollable.awaited`."""
        return AwaitedMessages(None, *self._batch.pending())


class CompositeWait(Batch):
    """Batches started together and awaited together, first the one that publishes progress: others may wait for it."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self.sends = [message for batch in batches for message in batch.sends]
        self.receives = [message for batch in batches for message in batch.receives]

    def start(self) -> None:
        for batch in self._batches:
            batch.start()
            batch.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while True:
            left = [batch for batch in self._batches if not batch.wait(0.0)]
            if not left:
                return True
            if time.monotonic() >= until_s:
                return False
            left[0].wait(min(timeout_s, TURN_S))

    def pending(self) -> tuple[list[Message], list[Message]]:
        pending = [batch.pending() for batch in self._batches]
        return [m for sends, _ in pending for m in sends], [m for _, receives in pending for m in receives]

    def free(self) -> None:
        for batch in self._batches:
            batch.free()
