"""SUM of an array over all ranks by the library that moves the ranks' messages: MPI's or gloo's own all-reduce.

Libraries give no promise that all ranks get the same bits. MPI's is begun and tested, never blocked in, so that the
wait keeps its limit: a persistent collective where MPI 4 has it. Two ranks exchange what they add by messages instead,
in half the time (docs/results/2026-11-28-sums.md), and get the same bits.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topocomm.execute.transports.mpi import CLOCK_EVERY, MpiBatch, MpiTransport, load_mpi
from topocomm.execute.transports.torch_group import TorchGroupTransport
from topocomm.execute.transports.transport import Batch, Message, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from topocomm.native._native import Requests

    Floats = NDArray[np.float32] | NDArray[np.float64]

FIRST_TESTS = 2000
"""Tests before a rank with a core of its own gives it away: about a millisecond, as `waiting.SPIN_S`."""
NAP_S = 20e-6
"""Time between two looks at gloo, whose own threads need the core."""
EAGER_BYTES = 4000
"""Bytes of a piece of an exchange inside a host: Open MPI copies up to 4 KiB, with its header, through shared memory at
once; of more it sends word first, and then takes one and a half times as long up to `MOST_CUT_BYTES`."""
MOST_CUT_BYTES = 192 << 10


class MpiCalls(NamedTuple):
    """A sum by persistent requests of MPI's, as `_native.bind_sum` takes it.

    Attributes:
        requests: What starts and tests it.
        error: Makes an exception of what a function of MPI returned.
        ours: Of an exchange what is added to `theirs`, and `sums` where; else empty.
        theirs: See ours.
        sums: See ours.
    """

    requests: Requests
    error: Callable[[int], BaseException]
    ours: Floats
    theirs: Floats
    sums: Floats


class LibrarySum(Batch):
    """A library's sum of arrays that stay.

    Attributes:
        calls: How it is called from C; None where that cannot be, or it is begun anew each time.
    """

    calls: MpiCalls | None = None


def library_sum(
    transport: Transport, sent: Floats, received: Floats, counts: Sequence[int] | None, tag: int
) -> LibrarySum | None:
    """Return the library's SUM of contiguous arrays, which stay where they are; collective.

    Args:
        transport: What moves the ranks' messages.
        sent: What a rank adds.
        received: Where it gets sums, other memory.
        counts: Of a reduce-scatter the items of every rank; None: an all-reduce.
        tag: Of its messages.

    Returns:
        None where the ranks' messages go by no library, threads of one process, or the library has no such call: a
        reduce-scatter of gloo's takes a block of one length for all.
    """
    if isinstance(transport, MpiTransport):
        if transport.size == 2:
            return MpiExchange(transport, sent, received, counts, tag)
        return MpiSum(transport, sent, received, counts)
    if isinstance(transport, TorchGroupTransport) and counts is None:
        return TorchSum(transport, sent, received)
    return None


def _everyone(transport: Transport, array: Floats) -> list[Message]:
    """Messages from all other ranks, since a library does not say whom it waits for."""
    return [Message(peer, ((0, array.nbytes),)) for peer in range(transport.size) if peer != transport.rank]


class MpiLibrarySum(MpiBatch, LibrarySum):
    """A sum by persistent requests of MPI's."""

    def _called(self, ours: Floats, theirs: Floats, sums: Floats) -> MpiCalls | None:
        """How they are started and tested in C; None where they are not."""
        requests = self.requests()
        return None if requests is None else MpiCalls(requests, load_mpi().Exception, ours, theirs, sums)


class MpiSum(MpiLibrarySum):
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
            self.calls = self._called(sent[:0], sent[:0], sent[:0])
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


class MpiExchange(MpiLibrarySum):
    """Two ranks' sum: each sends the other what that one reads, and adds what it gets to its own."""

    def __init__(
        self, transport: MpiTransport, sent: Floats, received: Floats, counts: Sequence[int] | None, tag: int
    ) -> None:
        self._ours = self._yours = sent
        if counts is not None:
            blocks = sent[: counts[0]], sent[counts[0] :]
            self._ours, self._yours = blocks[transport.rank], blocks[1 - transport.rank]
        self._theirs, self._sums = np.empty_like(received), received
        super().__init__(transport, (sent, self._theirs), (), (), tag)
        if transport.first_tests > 1:
            self._first_tests = FIRST_TESTS
        peer = 1 - transport.rank
        comm, is_local = transport.comm, transport.hosts[peer] == transport.hosts[transport.rank]
        for make, array in ((comm.Recv_init, self._theirs), (comm.Send_init, self._yours)):
            pieces = _pieces(array) if is_local else [array]
            self._requests += [make(piece, peer, tag) for piece in pieces]
        self._everyone = _everyone(transport, sent)
        self.calls = self._called(self._ours, self._theirs, self._sums)

    def wait(self, timeout_s: float) -> bool:
        """As `Batch.wait`; adds up when all is there."""
        through = super().wait(timeout_s)
        if through:
            np.add(self._ours, self._theirs, out=self._sums)
        return through

    def pending(self) -> tuple[list[Message], list[Message]]:
        """As `Batch.pending`: the other rank, until its part is there."""
        return [], [] if super().wait(0.0) else self._everyone


def _pieces(array: Floats) -> list[Floats]:
    """Parts that MPI moves at once inside a host, as long as each other; the same of as long an array elsewhere."""
    count = -(-array.nbytes // EAGER_BYTES) if EAGER_BYTES < array.nbytes <= MOST_CUT_BYTES else 1
    each = -(-array.size // count)
    return [array[first : first + each] for first in range(0, max(1, array.size), max(1, each))]


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
