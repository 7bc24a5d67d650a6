"""Calls of one group in the order in which the program issues them: at once, or on a thread of the group.

Ranks must make the same calls in the same order, one at a time. A call that the program waits for runs where it was
issued, as long as none issued before it is left; one with a handle runs on the group's thread, or where the program
waits for it, whichever comes first: a program that waits at once pays for no change of threads.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from topocomm.errors import TopocommError

LEAVE_S = 1.0
"""Seconds that a thread has to end with the process."""
GRACE_S = 0.001
"""Seconds before the thread makes a short call: most programs wait for it sooner, and then a thread that wakes up only
takes a core away, which ranks that share cores feel for milliseconds."""

_all: WeakSet[IssueOrder] = WeakSet()


class Issued:
    """A call that was issued.

    Attributes:
        error: What it raised; None while it is not done, and where it came through.
    """

    __slots__ = ("_call", "_done", "_guard", "_then", "error", "is_done")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self._guard = threading.Lock()
        self._done: threading.Event | None = None
        self._then: list[Callable[[], None]] = []
        self.error: BaseException | None = None
        self.is_done = False

    def then(self, action: Callable[[], None]) -> None:
        """Do something when the call is done, on the thread that completes it, or now."""
        with self._guard:
            if not self.is_done:
                self._then.append(action)
                return
        action()

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether the call is done within this time; None: in any time."""
        with self._guard:
            if self.is_done:
                return True
            self._done = self._done or threading.Event()
        return self._done.wait(timeout_s)

    def run(self) -> None:
        """Make the call."""
        call, self._call = self._call, None  # what it holds is given back when it is done
        assert call is not None, "a call is made once"
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised where the program waits for the call
            self.error = error

    def complete(self) -> None:
        """Tell those who wait that the call was made."""
        with self._guard:
            self.is_done = True
            actions, self._then = self._then, []
            if self._done is not None:
                self._done.set()
        for action in actions:
            action()


class IssueOrder:
    """The calls of one group that are not made yet, and who makes them.

    Attributes:
        left: Those calls, the next one first.
        turn: Held by the thread that makes a call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.left: deque[Issued] = deque()
        self.turn = threading.Lock()
        self._news = threading.Semaphore(0)
        self._awake = False
        """Whether the thread knows that calls are left."""
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        _all.add(self)

    def run(self, call: Callable[[], Any]) -> None:
        """Make a call and return when it is done; raises what it raises."""
        if not self.left and self.turn.acquire(blocking=False):
            if not self.left:  # else another thread has issued one meanwhile
                try:
                    call()
                finally:
                    self.turn.release()
                return
            self.turn.release()
        issued = self.issue(call)
        self.wait(issued)
        if issued.error is not None:
            raise issued.error

    def issue(self, call: Callable[[], Any], *, is_short: bool = False) -> Issued:
        """Have a call made when its turn comes; a short one after a grace in which the program may wait for it."""
        issued = Issued(call)
        self.left.append(issued)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"topocomm {self._name}", daemon=True)
            self._thread.start()
        if not is_short:
            self._hurry.set()
        if not self._awake:
            self._awake = True
            self._news.release()
        return issued

    def wait(self, issued: Issued, timeout_s: float | None = None) -> bool:
        """Return whether a call is done within this time; without a limit, make it here if nobody else does."""
        while timeout_s is None and not issued.is_done and self.turn.acquire(blocking=False):
            self._make_next()
        return issued.is_done or issued.wait(timeout_s)

    def drain(self) -> None:
        """Return when every call issued so far is done."""
        for issued in list(self.left)[-1:]:
            self.wait(issued)
        with self.turn:
            pass

    def close(self) -> None:
        """End the thread; calls that are left are not made: they end with an error."""
        self._closed = True
        self._hurry.set()
        self._news.release()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LEAVE_S)
        if self.turn.acquire(timeout=0):
            left = list(self.left)
            self.left.clear()
            self.turn.release()
            for issued in left:
                issued.error = TopocommError(f"{self._name}: the group was destroyed before this call was made")
                issued.complete()

    def _serve(self) -> None:
        while not self._closed:
            self._news.acquire()
            self._hurry.wait(GRACE_S)
            self._hurry.clear()
            self._awake = False
            while self.left and not self._closed:
                self.turn.acquire()
                self._make_next()

    def _make_next(self) -> None:
        """Make the next call, with the turn, which is given back before others are told: they may make calls, too."""
        try:
            issued = self.left[0] if self.left else None
            if issued is not None:
                issued.run()
                self.left.popleft()
        finally:
            self.turn.release()
        if issued is not None:
            issued.complete()


@atexit.register
def _close_all() -> None:
    for order in list(_all):
        order.close()
