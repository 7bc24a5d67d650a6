"""Bytes that a call sends, counted at the transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from topocomm import MAX, Communicator
from topocomm.execute.transports.transport import Batch, Message
from topocomm.operators.layout import Buffer


@contextmanager
def by_messages(comm: Communicator) -> Iterator[Communicator]:
    """The same ranks on the same plans, as if each were a host of its own: what they share memory for is sent.

    In shared memory nothing is sent: a rank reads what a plan's transfer names where it lies.
    """
    twin = comm.split(0, comm.rank)
    assert twin is not None, "every rank gave a colour"
    twin.session.transport.hosts = tuple(range(comm.size))
    twin.session.plans = comm.session.plans
    yield twin
    twin.close()


class Counter:
    """Counts what the transport of a communicator sends: messages of batches, and notes.

    Attributes:
        sent_bytes: Payload since the last `of`.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.sent_bytes = 0
        transport: Any = comm.session.transport
        self._batch, self._post = transport.batch, transport.post
        transport.batch, transport.post = self._counting_batch, self._counting_post

    def of(self, call: Callable[[], object]) -> int:
        """Return the bytes of one call on the rank that sends most; collective. The call must have run once before."""
        self.sent_bytes = 0
        call()
        mine = self.sent_bytes
        return int(self._comm.allreduce(np.array([mine]), MAX)[0])

    def _counting_batch(self, buffer: Buffer, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Batch:
        batch: Any = self._batch(buffer, sends, receives, tag)
        start, payload_bytes = batch.start, sum(message.payload_bytes for message in sends)

        def counted() -> None:
            self.sent_bytes += payload_bytes
            start()

        batch.start = counted
        return batch  # type: ignore[no-any-return]

    def _counting_post(self, peer: int, tag: int, data: bytes) -> None:
        self.sent_bytes += len(data)
        self._post(peer, tag, data)


def paper_bytes(ranks: int, heads: int, dim: int) -> float:
    """The paper's volume of tree attention per rank (equation 14, batch 1), in float32: 2 (p - 1) / p (d + 2 n_h).

    That is what a bandwidth-optimal all-reduce of numerator, denominator and maximum makes every rank send.
    """
    return 2 * (ranks - 1) / ranks * (heads * dim + 2 * heads) * 4
