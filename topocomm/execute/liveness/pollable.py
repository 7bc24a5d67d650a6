"""What a rank can wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from topocomm.execute.transports.transport import Message


class AwaitedMessages(NamedTuple):
    """What a call waits for.

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
    """What a rank can wait for."""

    def advance(self, timeout_s: float) -> bool:
        """Go on, waiting about `timeout_s` at most at each stage; whether it is through."""

    def awaited(self) -> AwaitedMessages:
        """What it waits for."""
