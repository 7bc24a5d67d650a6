"""A neighbour exchange around the ring of ranks, agreed upon once: what ring attention rotates its K/V with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topocomm.errors import TopocommError
from topocomm.execute.awaited import Awaited
from topocomm.execute.transports.transport import Batch, Message
from topocomm.execute.waiting import UnderWay
from topocomm.operators.operator import Buffer

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator


Place = tuple[int, int]
"""Address and bytes of an array."""


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

    def __init__(self, comm: Communicator, tags: Sequence[int]) -> None:
        self._comm = comm
        self._tags = tags
        self._number = 0
        self._buffers: tuple[Place, ...] = ()
        """What the batches were made for."""
        self._batches: list[Batch] = []

    def start(self, sends: Sequence[Buffer], receives: Sequence[Buffer]) -> None:
        """Post all; compute while the bytes move, calling `advance` now and then, and `wait`.

        Args:
            sends: The messages, one uint8 array each; a neighbour may send others, of other lengths.
            receives: Where those of rank - 1 go; as long as they, or longer. Other memory than `sends`; both stay as
                they are until `wait` returns. Requests are kept for a call with the same arrays.
        """
        if not len(sends) == len(receives) == len(self._tags):
            raise TopocommError(
                f"rank {self._comm.rank}: this shift was prepared for {len(self._tags)} messages each way, got "
                f"{len(sends)} to send and {len(receives)} to receive"
            )
        self._comm.enter()
        self._number = self._comm.recorder.begin(self._tags[0])
        try:
            self._make_batches(sends, receives)
            for batch in self._batches:
                batch.start()
        except BaseException as error:
            self._comm.fail_with(error)
            raise

    def advance(self) -> None:
        """Let bytes move: many an MPI moves large messages only inside its calls. Does not wait."""
        for batch in self._batches:
            batch.wait(0.0)

    def wait(self) -> None:
        """Return when what is received is there and what was sent may be written again.

        Raises:
            DeadlineError, MismatchError, RankFailedError: As for any call.
        """
        try:
            for batch in self._batches:
                self._comm.waiting.for_call(UnderWay(_Messages(batch), self._tags[0], self._number))
        except BaseException as error:
            self._comm.fail_with(error)
            raise
        finally:
            self._comm.leave()

    def free(self) -> None:
        """Give back the requests."""
        for batch in self._batches:
            batch.free()
        self._buffers, self._batches = (), []

    def _make_batches(self, sends: Sequence[Buffer], receives: Sequence[Buffer]) -> None:
        """Requests for these arrays, unless those of the call before are."""
        buffers = tuple((buffer.ctypes.data, buffer.size) for buffer in (*sends, *receives))
        if self._batches and buffers == self._buffers:
            return
        self.free()
        comm = self._comm
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        batch = comm.transport.batch
        self._batches = [  # receives first, so that no message comes unexpected
            batch(buffer, [], [Message(before, ((0, buffer.size),))], tag)
            for buffer, tag in zip(receives, self._tags, strict=True)
        ] + [
            batch(buffer, [Message(after, ((0, buffer.size),))], [], tag)
            for buffer, tag in zip(sends, self._tags, strict=True)
        ]
        self._buffers = buffers
