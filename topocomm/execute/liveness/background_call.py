"""A call into a library that may never come back, on a thread of its own: the rank waits as long as it likes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from topocomm.execute.liveness.pollable import AwaitedMessages


class BackgroundCall:
    """Such a call, as something to wait for; begun at once.

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
        name = f"{threading.current_thread().name}-{name}"
        self._thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)
        self._thread.start()

    def advance(self, timeout_s: float) -> bool:
        """Wait a little; whether it is over, its thread included: one still there could outlive the interpreter."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def awaited(self) -> AwaitedMessages:
        """As told: the library does not say whom it waits for."""
        return self._others

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.made = call()
        except Exception as error:  # noqa: BLE001 - for the thread that waits
            self.error = error
