"""A neighbour exchange around the ring of ranks, prepared once: what ring attention rotates its K/V with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocomm.execute.transports.transport import Message
from topocomm.operators.operator import Buffer

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

SPIN_S = 0.001


class Shift:
    """Send one buffer to rank + 1 while the other is filled by rank - 1; made by `Communicator.prepare_shift`."""

    def __init__(self, comm: Communicator, send: Buffer, receive: Buffer, tag: int) -> None:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self._comm = comm
        self._tag = tag
        self._in = comm.transport.batch(receive, [], [Message(before, ((0, receive.size),))], tag)
        self._out = comm.transport.batch(send, [Message(after, ((0, send.size),))], [], tag)

    def start(self) -> None:
        """Post both; compute while the bytes move, then `wait`."""
        self._comm.enter()
        self._in.start()
        self._out.start()

    def wait(self) -> None:
        """Return when `receive` is filled and `send` may be written again.

        Raises:
            DeadlineError, MismatchError, RankFailedError: As for any call.
        """
        try:
            for batch in (self._in, self._out):
                if not batch.wait(SPIN_S):
                    self._comm.waiting.for_batch(batch, self._tag)
        except BaseException as error:
            self._comm.fail(error)
            raise
        finally:
            self._comm.leave()

    def free(self) -> None:
        """Give back the requests."""
        self._in.free()
        self._out.free()
