"""SUM of an array over all ranks by the library that moves the ranks' messages: MPI's or gloo's own all-reduce.

Libraries give no promise that all ranks get the same bits. MPI's is begun and tested, never blocked in, so that the
wait keeps its limit: a persistent collective where MPI 4 has it, and that is also the fastest on small values.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from topocomm.execute.transports.mpi import CLOCK_EVERY, MpiBatch, MpiTransport, load_mpi
from topocomm.execute.transports.torch_group import TorchGroupTransport
from topocomm.execute.transports.transport import Batch, Message, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32] | NDArray[np.float64]

FIRST_TESTS = 2000
"""Tests before a rank with a core of its own gives it away: about a millisecond, as `waiting.SPIN_S`."""
NAP_S = 20e-6
"""Time between two looks at gloo, whose own threads need the core."""


class LibrarySum(Batch):
    """A library's sum of arrays that stay.

    Attributes:
        persistent: What starts it, what tests it, and how often before the core is given away; None where it is begun
            anew each time.
    """

    persistent: tuple[Callable[[], None], Callable[[], bool], int] | None = None


def library_sum(
    transport: Transport, sent: Floats, received: Floats, counts: Sequence[int] | None
) -> LibrarySum | None:
    """Return the library's SUM of contiguous arrays, which stay where they are; collective.

    Args:
        transport: What moves the ranks' messages.
        sent: What a rank adds.
        received: Where it gets sums, other memory.
        counts: Of a reduce-scatter the items of every rank; None: an all-reduce.

    Returns:
        None where the ranks' messages go by no library, threads of one process, or the library has no such call: a
        reduce-scatter of gloo's takes a block of one length for all.
    """
    if isinstance(transport, MpiTransport):
        return MpiSum(transport, sent, received, counts)
    if isinstance(transport, TorchGroupTransport) and counts is None:
        return TorchSum(transport, sent, received)
    return None


def _everyone(transport: Transport, array: Floats) -> list[Message]:
    """Messages from all other ranks, since a library does not say whom it waits for."""
    return [Message(peer, ((0, array.nbytes),)) for peer in range(transport.size) if peer != transport.rank]


class MpiSum(MpiBatch, LibrarySum):
    """MPI_Allreduce_init or MPI_Reduce_scatter_init; before MPI 4 what begins with I in their place."""

    def __init__(self, transport: MpiTransport, sent: Floats, received: Floats, counts: Sequence[int] | None) -> None:
        super().__init__(transport, (sent, received), (), (), 0)
        self._everyone = _everyone(transport, sent)
        if transport.first_tests > 1:
            self._first_tests = FIRST_TESTS
        mpi, comm = load_mpi(), transport.comm
        name = "allreduce" if counts is None else "reduce_scatter"
        arguments = (sent, received) if counts is None else (sent, received, list(counts))
        self._begin: Callable[[], Any] | None = None
        try:
            request = getattr(comm, f"{name.capitalize()}_init")(*arguments, mpi.SUM)
            self._requests = [request]
            self.persistent = request.Start, request.Test, self._first_tests
        except (AttributeError, NotImplementedError, mpi.Exception):
            self._begin = partial(getattr(comm, f"I{name}"), *arguments, mpi.SUM)

    def start(self) -> None:
        """As `Batch.start`."""
        if self._begin is not None:
            self._requests = [self._begin()]
        else:
            super().start()

    def wait(self, timeout_s: float) -> bool:
        """As `Batch.wait`. One request is tested without a list, five times a microsecond."""
        test = self._requests[0].Test
        if timeout_s <= 0:
            return bool(test())
        for _ in range(self._first_tests):
            if test():
                return True
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            for _ in range(CLOCK_EVERY):
                if test():
                    return True
                os.sched_yield()
        return False

    def pending(self) -> tuple[list[Message], list[Message]]:
        """As `Batch.pending`: all ranks, until the sum is there."""
        return [], [] if self.wait(0.0) else self._everyone

    def free(self) -> None:
        """As `Batch.free`; what was begun once and is through is MPI's already."""
        if self._begin is not None and self._requests and self.wait(0.0):
            self._requests = []
        super().free()


class TorchSum(LibrarySum):
    """An all-reduce of gloo, on the connections of the transport."""

    def __init__(self, transport: TorchGroupTransport, sent: Floats, received: Floats) -> None:
        self._transport, self._sent, self._received = transport, sent, received
        self._tensor = transport.torch.from_numpy(received)
        self._everyone = _everyone(transport, sent)
        self._work: Any = None
        self._broken = False

    def start(self) -> None:
        """As `Batch.start`; gloo adds up in place."""
        self._received[...] = self._sent
        self._work = self._transport.gloo.allreduce([self._tensor])

    def wait(self, timeout_s: float) -> bool:
        """As `Batch.wait`; never complete where a connection broke: who has failed is found by the notes."""
        if self._work is None:
            return True
        until_s = time.monotonic() + timeout_s
        for _ in range(CLOCK_EVERY):
            if self._through():
                return True
            os.sched_yield()
        while time.monotonic() < until_s:
            if self._through():
                return True
            time.sleep(NAP_S)
        return self._through()

    def pending(self) -> tuple[list[Message], list[Message]]:
        """As `Batch.pending`: all ranks, until the sum is there."""
        return [], [] if self._work is None else self._everyone

    def _through(self) -> bool:
        if self._broken or not self._work.is_completed():
            return False
        try:
            self._work.wait()
        except RuntimeError:
            self._broken = True
            return False
        self._work = None
        return True
