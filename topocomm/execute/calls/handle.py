"""A call that was begun and goes on while the program does other things."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from topocomm.errors import DeadlineError, TopocommError
from topocomm.execute.calls.structure import Result
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.execute.liveness.waiting import UnderWay, WaitMonitor

if TYPE_CHECKING:
    from topocomm.execute.session import Session


@skipped_by_dynamo
class Handle(Generic[Result]):
    """A call under way, made by `PreparedCall.start`. On CPUs it moves on inside `test` and `wait` only.

    Attributes:
        done: Whether the call is through.
    """

    def __init__(self, session: Session, call: UnderWay, finish: Callable[[], Any]) -> None:
        self._session, self._call, self._finish = session, call, finish
        self._result: Any = None
        self._look: WaitMonitor | None = None
        self.done = False

    def __repr__(self) -> str:
        return f"<Handle of {self._name}, {'through' if self.done else 'under way'}>"

    @property
    def _name(self) -> str:
        return f"call {self._session.recorder.users_number(self._call.number)}"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("__") or name in ("done", "test", "wait")]

    def test(self) -> bool:
        """Whether the call is through; lets every call under way move on, and does not wait.

        Raises:
            DeadlineError, MismatchError, RankFailedError: As for any call; the time limit counts while it is asked
                again and again.
        """
        if not self.done:
            self._move(self._once)
        return self.done

    def wait(self, timeout_s: float | None = None) -> Result:
        """The result, once the call is through; what the call itself would return.

        Args:
            timeout_s: How long to wait. When it is over DeadlineError is raised and the call stays under way: wait
                again. None takes the communicator's limit, after which it is closed.

        Raises:
            DeadlineError, MismatchError, RankFailedError: As for any call.
        """
        if not self.done:
            limit_s = self._session.settings.timeout_s
            if timeout_s is None or timeout_s >= limit_s:
                self._move(lambda: self._session.waiting.for_call(self._call))
                self.through()
                return self._result
            until_s = time.monotonic() + timeout_s
            while not self.test():
                if time.monotonic() >= until_s:
                    raise DeadlineError(
                        f"rank {self._session.rank}: {self._name} is not through after {timeout_s:g} s; "
                        "it is still under way: wait again"
                    )
                self._session.transport.pause()
        return self._result

    def through(self) -> None:
        """Take the result of a call that is through."""
        if not self.done:
            under_way = self._session.waiting.under_way
            if self._call in under_way:
                under_way.remove(self._call)
            self._result = self._finish()
            self.done = True

    def _once(self) -> None:
        """Let calls move on; now and then look whether this one can still come through."""
        waiting = self._session.waiting
        for call in list(waiting.under_way):
            if call.engine is not None and call.engine.advance(0.0) and call is self._call:
                self.through()
                return
        if self._look is None:
            self._look = WaitMonitor(waiting, self._call, self._session.settings.timeout_s)
        if self._call.engine is not None:
            self._look.at_times(self._call.engine.awaited)

    def _move(self, step: Callable[[], None]) -> None:
        session = self._session
        if session.refusal is not None:
            raise TopocommError(
                f"rank {session.rank}: {self._name} cannot come through: the communicator takes no call now: "
                f"{session.refusal}"
            )
        try:
            step()
        except BaseException as error:
            session.fail_with(error)
            raise
