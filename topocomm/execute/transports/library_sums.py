"""SUM of an array over all ranks by the library that moves the ranks' messages: MPI's or gloo's own all-reduce.

Libraries give no promise that all ranks get the same bits. MPI's is begun and tested, never blocked in, so that the
wait keeps its limit: a persistent collective where MPI 4 has it, and that is also the fastest on small values.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from topocomm.execute.transports.mpi import CLOCK_EVERY, MpiBatch, MpiTransport, load_mpi
from topocomm.execute.transports.torch_group import TorchGroupTransport
from topocomm.execute.transports.transport import Batch, Message, Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32] | NDArray[np.float64]

FIRST_TESTS = 2000
"""Tests before a rank with a core of its own gives it away: about a millisecond, as `waiting.SPIN_S`."""
NAP_S = 20e-6
"""Time between two looks at gloo, whose own threads need the core."""


def library_sum(transport: Transport, array: Floats) -> Batch | None:
    """Return the library's in-place SUM of a contiguous array, which stays where it is; collective.

    None where the ranks' messages go by no library: threads of one process.
    """
    if isinstance(transport, MpiTransport):
        return MpiSum(transport, array)
    return TorchSum(transport, array) if isinstance(transport, TorchGroupTransport) else None


def _everyone(transport: Transport, array: Floats) -> list[Message]:
    """Messages from all other ranks, since a library does not say whom it waits for."""
    return [Message(peer, ((0, array.nbytes),)) for peer in range(transport.size) if peer != transport.rank]


class MpiSum(MpiBatch):
    """MPI_Allreduce_init, or MPI_Iallreduce before MPI 4."""

    def __init__(self, transport: MpiTransport, array: Floats) -> None:
        super().__init__(transport, array, (), (), 0)
        self._everyone = _everyone(transport, array)
        if transport.first_tests > 1:
            self._first_tests = FIRST_TESTS
        mpi = load_mpi()
        arguments = mpi.IN_PLACE, array, mpi.SUM
        self._begin: Callable[[], Any] | None = None
        try:
            self._requests = [transport.comm.Allreduce_init(*arguments)]
        except (AttributeError, NotImplementedError, mpi.Exception):
            self._begin = lambda: transport.comm.Iallreduce(*arguments)

    def start(self) -> None:
        """As `Batch.start`."""
        if self._begin is not None:
            self._requests = [self._begin()]
        else:
            super().start()

    def pending(self) -> tuple[list[Message], list[Message]]:
        """As `Batch.pending`: all ranks, until the sum is there."""
        return [], [] if self.wait(0.0) else self._everyone

    def free(self) -> None:
        """As `Batch.free`; what was begun once and is through is MPI's already."""
        if self._begin is not None and self._requests and self.wait(0.0):
            self._requests = []
        super().free()


class TorchSum(Batch):
    """An all-reduce of gloo, on the connections of the transport."""

    def __init__(self, transport: TorchGroupTransport, array: Floats) -> None:
        self._transport, self._tensor = transport, transport.torch.from_numpy(array)
        self._everyone = _everyone(transport, array)
        self._work: Any = None
        self._broken = False

    def start(self) -> None:
        """As `Batch.start`."""
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
