"""Messages and notes between the ranks of a torch process group, and reports of gone ranks.

A gloo message is complete only inside a `wait` of its own, and a `wait` that reaches its time limit breaks every
connection of the group. So each message is awaited without a limit, by a thread that has nothing else to do, and the
rank itself waits for that thread, as long as it likes.

torch.distributed cannot be asked whether a message has come. So a thread of every rank always holds a receive open,
from any rank, and puts what comes into an inbox; another one holds a receive open from the next rank that only that
rank's end completes: with a byte where it leaves in order, with an error where its connection breaks. It tells all
others, so that everyone hears of a death, whatever it waits for.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

import numpy as np

from topocomm.execute.transports.transport import FAILURE_TAG, Message

NEVER = timedelta(days=365)
CLOSED_TAG = -1
NOTES_TAG = 2**31 - 1
"""Tag of all notes in torch.distributed."""
LIFE_TAG = 2**31 - 2
HEAD = struct.Struct("<iiq")
"""Sending rank, the note's own tag, bytes of the whole note."""
PART_BYTES = 65536 - HEAD.size
"""Bytes above which a note is sent in parts."""
BREAK_TAG = 2**31 - 3
"""Tag that nobody sends under."""
LEAVE_S = 1.0
"""How long a rank that leaves waits for its last words to be taken, and then for its threads to end."""
WORD_S = 0.1
"""Seconds in which a failure note may follow a broken connection."""
GOODBYE_S = 0.05
"""Least seconds for the last notes."""
LISTEN, WATCH = 0, 1
LISTEN_S = 0.05
"""A note that came just before the connections broke is read in this time; then its thread waits for ever."""
AT_ONCE = timedelta(milliseconds=1)

_all: WeakSet[Notes] = WeakSet()


Departure = tuple[Message, Any, Any]
"""A message in flight; torch's work handle, or the error where its peer is gone; its buffer, kept alive meanwhile."""


def depart(post: Callable[..., Any], tensor: Any, message: Message, tag: int, memory: Any = None) -> Departure:
    """A message sent or received by `post` of a process group; one that is refused fails when it is awaited.

    `memory` is what else, beside its bytes, must live as long as it is under way.
    """
    try:
        return message, post([tensor], message.peer, tag), (tensor, memory)
    except RuntimeError as error:
        return message, error, None


class InFlightMessages:
    """Messages that were started together; `failed` is (peer, torch's words) of the first that broke, or None."""

    def __init__(self, departures: Sequence[Departure]) -> None:
        self.waiting: deque[tuple[int, Departure]] = deque(enumerate(departures))
        self.failed: tuple[int, str] | None = None
        self._left = set(range(len(departures)))
        self._guard = threading.Lock()
        self._landed = threading.Lock()
        if self._left:  # a rank alone has none to wait for
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
            return sorted(self._left)

    def await_next(self) -> bool:
        """Wait for a message that no other helper waits for; False if none is left."""
        try:
            index, (message, work, _memory) = self.waiting.popleft()
        except IndexError:
            return False
        failed = None
        try:
            if isinstance(work, RuntimeError):
                raise work
            work.wait(NEVER)
        except RuntimeError as error:  # gloo's message, without its source line and advice
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            failed = message.peer, text.split("] ", 1)[-1].split(". ")[0]
        with self._guard:
            over = self.failed is not None
            if failed is None:
                self._left.remove(index)
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


class Inbox:
    """Received notes by sender; filled by threads."""

    def __init__(self, size: int) -> None:
        self._lines: list[deque[tuple[int, bytes]]] = [deque() for _ in range(size)]
        self._news = threading.Condition()
        self._failed: set[int] = set()
        """Ranks that have reported their failure."""

    def put(self, peer: int, tag: int, data: bytes) -> None:
        """Add a note from `peer`."""
        with self._news:
            self._lines[peer].append((tag, data))
            if tag == FAILURE_TAG:
                self._failed.add(peer)
            self._news.notify_all()

    def take(self, peer: int, tag: int) -> bytes | None:
        """Return the oldest note from `peer` with this tag."""
        with self._news:
            line = self._lines[peer]
            note = next((note for note in line if note[0] == tag), None)
            if note is None:
                return None
            line.remove(note)
            return note[1]

    def pause(self, timeout_s: float) -> None:
        """Wait until a note comes, or for this time."""
        with self._news:
            self._news.wait(timeout_s)

    def told_failure(self, peer: int, timeout_s: float) -> bool:
        """Return whether `peer` reports its failure within this time."""
        with self._news:
            return self._news.wait_for(lambda: peer in self._failed, timeout_s)


class Notes:
    """One rank's side of the notes, on a gloo group of our own; helpers wait for what is sent."""

    def __init__(self, torch: Any, gloo: Any, helpers: Helpers) -> None:
        self.inbox = Inbox(gloo.size())
        self._torch, self._helpers = torch, helpers
        self._rank, self._size = gloo.rank(), gloo.size()
        self._gloo: Any = gloo if self._size > 1 else None
        self._next, self._previous = (self._rank + 1) % self._size, (self._rank - 1) % self._size
        self._posting = threading.Lock()
        self._posted: list[InFlightMessages] = []
        self._left = False
        self._threads = [
            threading.Thread(target=work, args=(gloo,), name=f"topocomm {name}", daemon=True)
            for name, work in (("notes", self._listen), ("life", self._watch))
            if self._size > 1  # else nobody writes, and nobody would end them
        ]
        for thread in self._threads:
            thread.start()
        _all.add(self)

    def post(self, peer: int, tag: int, data: bytes) -> None:
        """Send a note; does not wait, and does not fail where the peer is gone or this side is closed."""
        if self._gloo is None or (self._left and tag != CLOSED_TAG):
            return
        departures = []
        with self._posting:
            for start in range(0, max(len(data), 1), PART_BYTES):
                part = HEAD.pack(self._rank, tag, len(data)) + data[start : start + PART_BYTES]
                memory = self._torch.from_numpy(np.frombuffer(bytearray(part), np.uint8))
                departures.append(depart(self._gloo.send, memory, Message(peer, ()), NOTES_TAG))
            flight = InFlightMessages(departures)
            self._posted = [other for other in self._posted if not other.wait(0)] + [flight]
        self._helpers.send_with(flight)

    def lose(self, peer: int, text: str) -> bool:
        """The connection to `peer` broke: a failure for whoever waits, unless `peer` itself has said why.

        Returns:
            Whether it is news.
        """
        if self.inbox.told_failure(peer, WORD_S):
            return False
        self.inbox.put(peer, FAILURE_TAG, _obituary(peer, text))
        return True

    def close(self) -> None:
        """Release everything; collective."""
        if self._left or self._gloo is None:
            return
        self._left = True
        self._tell_all(CLOSED_TAG, b"")
        until_s = time.monotonic() + LEAVE_S
        self._say_goodbye(until_s)
        for thread in self._threads:  # each ends when the others have closed as well
            thread.join(max(0.0, until_s - time.monotonic()))
        if self._helpers.close(until_s) and not any(thread.is_alive() for thread in self._threads):
            self._gloo = None

    def leave(self, until_s: float) -> None:
        """End with the process: let the last words be taken, then break all connections, so that no thread stays.

        A thread that came back from torch while the interpreter ends would abort the process.
        """
        if self._gloo is None:
            return
        if not self._left:
            self._left = True
            self._say_goodbye(until_s)
        for distance in range(1, self._size):  # one that is still there is enough: its wait runs out
            with contextlib.suppress(RuntimeError):
                self._gloo.recv([self._byte()], (self._rank + distance) % self._size, BREAK_TAG).wait(AT_ONCE)
        until_s = time.monotonic() + LEAVE_S
        self._threads[WATCH].join(LEAVE_S)
        self._helpers.close(until_s)
        self._threads[LISTEN].join(LISTEN_S)

    def _say_goodbye(self, until_s: float) -> None:
        for flight in self._posted:
            flight.wait(max(0.0, until_s - time.monotonic()))
        flight = InFlightMessages([depart(self._gloo.send, self._byte(), Message(self._previous, ()), LIFE_TAG)])
        self._helpers.send_with(flight)
        flight.wait(max(GOODBYE_S, until_s - time.monotonic()))

    def _listen(self, gloo: Any) -> None:
        buffer = np.empty(HEAD.size + PART_BYTES, np.uint8)
        memory = [self._torch.from_numpy(buffer)]
        begun: dict[int, bytearray] = {}
        closed = 0
        while True:
            try:
                gloo.recv_anysource(memory, NOTES_TAG).wait(NEVER)
            except RuntimeError:  # the group is gone
                return
            sender, tag, whole = HEAD.unpack_from(buffer.data)
            if tag == CLOSED_TAG:  # the last note of that rank
                closed += 1
                if closed == self._size - 1:
                    return
                continue
            note = begun.setdefault(sender, bytearray())
            note += buffer[HEAD.size : HEAD.size + min(whole - len(note), PART_BYTES)].tobytes()
            if len(note) == whole:
                self.inbox.put(sender, tag, bytes(begun.pop(sender)))

    def _watch(self, gloo: Any) -> None:
        end = InFlightMessages([depart(gloo.recv, self._byte(), Message(self._next, ()), LIFE_TAG)])
        end.await_next()
        if end.failed is None or self._left or not self.lose(*end.failed):
            return
        self._tell_all(FAILURE_TAG, _obituary(*end.failed))

    def _byte(self) -> Any:
        return self._torch.zeros(1, dtype=self._torch.uint8)

    def _tell_all(self, tag: int, data: bytes) -> None:
        for distance in range(1, self._size):
            self.post((self._rank + distance) % self._size, tag, data)


def _obituary(peer: int, text: str) -> bytes:
    """Return the failure note that `peer` could no longer send."""
    report = {"rank": peer, "kind": "RankFailedError", "text": f"rank {peer}: it ended without a word ({text})"}
    return json.dumps(report).encode()


@atexit.register
def _leave_in_order() -> None:
    """A rank whose program ends has not died: those who watch it are told."""
    until_s = time.monotonic() + LEAVE_S
    for notes in list(_all):
        notes.leave(until_s)
