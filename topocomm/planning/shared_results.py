"""A bounded cache whose results are made once: threads that ask for a result in the making wait for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Event, Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class _Pending(Generic[Result]):
    """A result in the making: at the end a result or an error, or neither if its thread was interrupted."""

    def __init__(self) -> None:
        self.done = Event()
        self.result: Result | None = None
        self.error: Exception | None = None


class SharedResults(Generic[Key, Result]):
    """Results by key, of which the `most` used last are kept. No lock is held while a result is made."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._kept: OrderedDict[Key, Result] = OrderedDict()
        self._pending: dict[Key, _Pending[Result]] = {}

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
                    own = self._pending[key] = _Pending[Result]()
                    break
            pending.done.wait()
            if pending.error is not None:
                raise pending.error
            if pending.result is not None:
                return pending.result
        try:
            own.result = result = make()
        except Exception as error:
            own.error = error
            raise
        finally:
            with self._lock:
                del self._pending[key]
                if own.result is not None:
                    self._kept[key] = own.result
                    if len(self._kept) > self._most:
                        self._kept.popitem(last=False)
            own.done.set()
        return result
