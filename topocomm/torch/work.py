"""Handles of a group's calls, as torch.distributed gives them out: `torch.distributed.Work`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from topocomm.errors import DeadlineError, RankFailedError
from topocomm.torch.issue_order import Issued, IssueOrder

NO_LIMIT = timedelta(0)
"""What torch passes to `wait` for no limit of its own: the group's counts."""


class CallWork(Work):
    """A collective call. `wait`, and the future's, raise what the call raised."""

    def __init__(self, order: IssueOrder, issued: Issued, outputs: Sequence[Any], what: str) -> None:
        super().__init__()
        self._order, self._issued, self._outputs, self._what = order, issued, list(outputs), what
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Return when the call is done.

        Raises:
            DeadlineError: It is not within `timeout`, and goes on; or the group's limit is over.
            MismatchError, RankFailedError: As for any call.
        """
        limit_s = timeout.total_seconds()
        if not self._order.wait(self._issued, limit_s if limit_s > 0 else None):
            raise DeadlineError(f"{self._what} is not through after {limit_s:g} s; it is still under way: wait again")
        if self._issued.error is not None:
            raise self._issued.error
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the call is done."""
        return self._issued.is_done

    def is_success(self) -> bool:
        """Return whether the call is done and came through."""
        return self._issued.is_done and self._issued.error is None

    def exception(self) -> BaseException | None:
        """Return what the call raised."""
        return self._issued.error

    def result(self) -> list[Any]:
        """Return the tensors that the call writes."""
        return self._outputs

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors that the call writes."""
        if self._future is None:
            future: torch.futures.Future[Any] = torch.futures.Future()
            self._future = future
            self._issued.then(lambda: settle(future, self._issued, self._outputs))
        return self._future


def settle(future: torch.futures.Future[Any], issued: Issued, result: Any) -> None:
    """Set a future to a result, or to what the call that is done raised."""
    error: Any = issued.error
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))


class DoneWork(Work):
    """A call that was done when its method returned."""

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Return at once."""
        del timeout
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> None:
        """Return None."""

    def result(self) -> list[Any]:
        """Return an empty list: the tensors are the caller's."""
        return []

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is done."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([])
        return future


class MessageWork(Work):
    """A message of `send` or `recv`, under way in gloo; its errors name the other rank."""

    def __init__(self, work: Any, what: str, limit_s: float, tensor: torch.Tensor, target: torch.Tensor | None) -> None:
        super().__init__()
        self._work, self._what, self._limit_s = work, what, limit_s
        self._tensor, self._target = tensor, target
        self._error: BaseException | None = None
        self._is_done = False

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Return when the message is through.

        Raises:
            DeadlineError: It is not in time.
            RankFailedError: The other rank is gone.
        """
        if self._is_done:
            return True
        try:
            self._work.wait(timeout) if timeout > NO_LIMIT else self._work.wait()
        except RuntimeError as error:
            words = str(error).strip().splitlines()[0].split("] ", 1)[-1].split(". ")[0]
            late = "timed out" in words.lower()
            limit_s = timeout.total_seconds() or self._limit_s
            self._error = (
                DeadlineError(f"{self._what}: still waiting after {limit_s:g} s (limit: the group's timeout)")
                if late
                else RankFailedError(f"{self._what}: that rank does not take part any more ({words})")
            )
            raise self._error from error
        if self._target is not None:
            self._target.copy_(self._tensor.view(self._target.shape))
        self._is_done = True
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the message is known to be through."""
        return self._is_done or (self._target is None and self._error is None and bool(self._work.is_completed()))

    def is_success(self) -> bool:
        """Return whether the message is known to be through, without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return what `wait` raised."""
        return self._error

    def result(self) -> list[Any]:
        """Return the tensor that was sent or is received."""
        return [self._tensor if self._target is None else self._target]

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    def source_rank(self) -> int:
        """Return the rank that the message came from."""
        return self._source_rank()


DONE = DoneWork()
