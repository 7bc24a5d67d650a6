"""Waiting for what a device does: asked again and again, since no wait of a device's library has a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from topocomm.errors import DeadlineError
from topocomm.execute.device.device_library import Device

POLL_S = 0.0001
"""Between two questions, beside which something else may happen."""
SOON_S = 0.00002
"""The same where the host has nothing else to do."""


def reached(event: Any, timeout_s: float, check: Callable[[], None]) -> bool:
    """Whether a stream has come to an event, or does so within about `timeout_s`; `check` raises where it cannot."""
    until_s = time.monotonic() + timeout_s
    while not event.query():
        check()
        if time.monotonic() >= until_s:
            return False
        time.sleep(POLL_S)
    return True


def await_event(event: Any, timeout_s: float, device: Device, rank: int, what: str) -> None:
    """Wait until a stream has come to an event.

    Args:
        event: That event.
        timeout_s: How long, in seconds.
        device: Whose stream.
        rank: This one.
        what: What comes after the event: "this call".

    Raises:
        DeadlineError: It has not by then.
    """
    until_s = time.monotonic() + timeout_s
    while not event.query():
        if time.monotonic() > until_s:
            raise DeadlineError(
                f"rank {rank}: {device.place} is not through with what was put on its stream before {what} after "
                f"{timeout_s:g} s (limit: TOPOCOMM_TIMEOUT_S)"
            )
        time.sleep(SOON_S)
