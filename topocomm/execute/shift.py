"""A neighbour exchange around the ring of ranks, prepared once: what ring attention rotates its K/V with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topocomm.execute.awaited import Awaited
from topocomm.execute.transports.transport import Batch, Message
from topocomm.execute.waiting import UnderWay
from topocomm.operators.operator import Buffer

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator


class _Messages:
    """A batch as something to wait for."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def advance(self, timeout_s: float) -> bool:
        return self._batch.wait(timeout_s)

    def awaited(self) -> Awaited:
        return Awaited(0, *self._batch.pending())


class Shift:
    """Send buffers to rank + 1 while others are filled by rank - 1; made by `Communicator.prepare_shift`."""

    def __init__(
        self, comm: Communicator, sends: Sequence[Buffer], receives: Sequence[Buffer], tags: Sequence[int]
    ) -> None:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        batch = comm.transport.batch
        self._comm = comm
        self._tag = tags[0]
        self._number = 0
        self._batches: list[tuple[Batch, int]] = []  # receives first, so that no message comes unexpected
        for buffer, tag in zip(receives, tags, strict=True):
            self._batches.append((batch(buffer, [], [Message(before, ((0, buffer.size),))], tag), tag))
        for buffer, tag in zip(sends, tags, strict=True):
            self._batches.append((batch(buffer, [Message(after, ((0, buffer.size),))], [], tag), tag))

    def start(self) -> None:
        """Post all; compute while the bytes move, calling `advance` now and then, and `wait`."""
        self._comm.enter()
        self._number = self._comm.recorder.begin(self._tag)
        for batch, _ in self._batches:
            batch.start()

    def advance(self) -> None:
        """Let bytes move: many an MPI moves large messages only inside its calls. Does not wait."""
        for batch, _ in self._batches:
            batch.wait(0.0)

    def wait(self) -> None:
        """Return when what is received is there and what was sent may be written again.

        Raises:
            DeadlineError, MismatchError, RankFailedError: As for any call.
        """
        try:
            for batch, _ in self._batches:
                self._comm.waiting.for_call(UnderWay(_Messages(batch), self._tag, self._number))
        except BaseException as error:
            self._comm.fail_with(error)
            raise
        finally:
            self._comm.leave()

    def free(self) -> None:
        """Give back the requests."""
        for batch, _ in self._batches:
            batch.free()
