"""The neighbour exchange on host memory: persistent messages by the transport, made again for other arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.transports.transport import Batch, Message
from topocomm.operators.layout import Buffer

if TYPE_CHECKING:
    from topocomm.execute.session import Session


class HostShift:
    """One rank's exchange; `tags` has one for each message."""

    def __init__(self, session: Session, tags: Sequence[int]) -> None:
        self._session, self._tags = session, tags
        self._number = 0
        self._buffers: tuple[tuple[int, int], ...] = ()
        """Address and bytes of the arrays that the batches were made for."""
        self._batches: list[Batch] = []

    def start(self, sends: Sequence[Buffer], receives: Sequence[Buffer], number: int) -> None:
        """Post all messages; `number` is the call's."""
        self._number = number
        buffers = tuple((buffer.ctypes.data, buffer.size) for buffer in (*sends, *receives))
        if not self._batches or buffers != self._buffers:
            self.free()
            rank, size = self._session.rank, self._session.size
            batch_of = self._session.transport.batch
            following, preceding = (rank + 1) % size, (rank - 1) % size
            # receives first, so that no message comes unexpected
            for buffer, tag in zip(receives, self._tags, strict=True):
                self._batches.append(batch_of(buffer, [], [Message(preceding, ((0, buffer.size),))], tag))
            for buffer, tag in zip(sends, self._tags, strict=True):
                self._batches.append(batch_of(buffer, [Message(following, ((0, buffer.size),))], [], tag))
            self._buffers = buffers
        for batch in self._batches:
            batch.start()

    def progress(self) -> None:
        """Let bytes move, without waiting."""
        for batch in self._batches:
            batch.wait(0.0)

    def wait(self) -> None:
        """Return when all messages are through."""
        for batch in self._batches:
            self._session.waiting.for_call(UnderWay(_Messages(batch), self._tags[0], self._number))

    def free(self) -> None:
        """Release the requests."""
        for batch in self._batches:
            batch.free()
        self._buffers, self._batches = (), []


class _Messages:
    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def advance(self, timeout_s: float) -> bool:
        return self._batch.wait(timeout_s)

    def awaited(self) -> AwaitedMessages:
        return AwaitedMessages(0, *self._batch.pending())
