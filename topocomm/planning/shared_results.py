"""A bounded cache whose results are made once: threads that ask for a result in the making wait for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SharedResults(Generic[Key, Result]):
    """Results by key, of which the `most` used last are kept. No lock is held while a result is made."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._kept: OrderedDict[Key, Result] = OrderedDict()
        self._pending: dict[Key, Future[Result]] = {}

    def get(self, key: Key, make: Callable[[], Result]) -> Result:
        """Return the result of a key: kept, made by another thread meanwhile, or made here.

        Args:
            key: All that the result depends on.
            make: Makes the result, never None; it must not ask for the same key.

        Raises:
            Exception: The error of `make`, in every thread that waited for it; it is not kept. If the thread that
                makes the result is interrupted (`KeyboardInterrupt`), a waiting thread makes it instead.
        """
        while True:
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
                pending = self._pending.get(key)
                if pending is None:
                    own = self._pending[key] = Future[Result]()
                    break
            with suppress(CancelledError):  # its thread was interrupted
                return pending.result()
        try:
            result = make()
            with self._lock:
                self._kept[key] = result
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
            own.set_result(result)
        except Exception as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._pending[key]
            own.cancel()  # in vain where it is done
        return result
