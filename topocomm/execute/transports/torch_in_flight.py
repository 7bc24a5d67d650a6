"""Helper threads that wait for messages of torch.distributed in flight.

A gloo message is complete only inside a `wait` of its own, and a `wait` that reaches its time limit breaks every
connection of the group. So each message is awaited without a limit, by a thread that has nothing else to do, and the
rank itself waits for that thread, as long as it likes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, NamedTuple

from topocomm.execute.transports.transport import Message

NEVER = timedelta(days=365)


class Departure(NamedTuple):
    """A message in flight."""

    message: Message
    work: Any
    """torch.distributed's work handle; the error where the message could not be posted, since its peer is gone."""
    memory: Any
    """Its buffer, kept alive while it is in flight."""


def depart(post: Callable[..., Any], tensor: Any, message: Message, tag: int, memory: Any = None) -> Departure:
    """A message sent or received by `post` of a process group; one that is refused fails when it is awaited.

    `memory` is what else, beside its bytes, must live as long as it is under way.
    """
    try:
        return Departure(message, post([tensor], message.peer, tag), (tensor, memory))
    except RuntimeError as error:
        return Departure(message, error, None)


class InFlightMessages:
    """Messages that were started together.

    Attributes:
        failed: (peer, what torch.distributed said) of the first message that broke, or None.
    """

    def __init__(self, departures: Sequence[Departure]) -> None:
        self.waiting: deque[tuple[int, Departure]] = deque(enumerate(departures))
        self.failed: tuple[int, str] | None = None
        self._left = {index: departure.message for index, departure in enumerate(departures)}
        self._guard = threading.Lock()
        self._landed = threading.Lock()
        self._landed.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Return whether all have arrived, or one has failed, within this time."""
        if not self._landed.acquire(timeout=timeout_s):
            return False
        self._landed.release()
        return True

    def left(self) -> list[int]:
        """Return the indices of messages that have not arrived."""
        with self._guard:
            return list(self._left)

    def await_next(self) -> bool:
        """Wait for a message that no other helper waits for; False if none is left."""
        try:
            index, departure = self.waiting.popleft()
        except IndexError:
            return False
        failed = None
        try:
            if isinstance(departure.work, RuntimeError):
                raise departure.work
            departure.work.wait(NEVER)
        except RuntimeError as error:  # gloo's message, without its source line and advice
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            failed = departure.message.peer, text.split("] ", 1)[-1].split(". ")[0]
        with self._guard:
            over = self.failed is not None
            if failed is None:
                del self._left[index]
            self.failed = self.failed or failed
            if not over and (failed is not None or not self._left):
                self._landed.release()
        return True


class Helpers:
    """Idle threads, and as many more as there are flights at once."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[InFlightMessages | None]] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def send_with(self, flight: InFlightMessages, count: int = 1) -> None:
        """Let this many helpers wait for the messages of a flight."""
        for _ in range(count):
            try:
                orders = self._idle.pop()
            except IndexError:
                orders = SimpleQueue()
                thread = threading.Thread(target=self._serve, args=(orders,), name="topocomm wait", daemon=True)
                self._threads.append(thread)
                thread.start()
            orders.put(flight)

    def close(self, until_s: float) -> bool:
        """End idle helpers, and those that become idle until then (`time.monotonic`); return whether none is left."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self, orders: SimpleQueue[InFlightMessages | None]) -> None:
        while (flight := orders.get()) is not None:
            while flight.await_next():
                pass
            del flight  # its memory must not live until the next order
            self._idle.append(orders)
            if self._closed:
                return
