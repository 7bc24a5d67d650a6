"""Device memory over MPI, if the library takes device pointers.

MPI knows no streams. So the host waits for the stream before messages start, and for the messages before it puts what
follows on the stream, with the time limits of every wait; no graph can hold that.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from topocomm.errors import DeadlineError, TopocommError
from topocomm.execute.calls.agreement import gather_texts
from topocomm.execute.device.device_library import SOON_S, Device, reached
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.liveness.waiting import UnderWay, Waiting
from topocomm.execute.transports.mpi import MpiBatch, MpiTransport, library_name, load_mpi
from topocomm.execute.transports.transport import DEVICE_TAG, DeviceTransport, Message

PROOF_BYTES = (8, 1 << 16)
"""Bytes of the trial messages: one sent eagerly, one by rendezvous."""
PROOF_S = 10.0
"""Seconds for the trial, between ranks that have just agreed."""
WHAT = "the proof that MPI takes device memory"


class MpiDeviceTransport(DeviceTransport):
    """One rank's transport."""

    name = "mpi"
    in_graphs = False

    def __init__(self, transport: MpiTransport, device: Device, waiting: Waiting) -> None:
        self._transport, self._device, self._waiting = transport, device, waiting
        self._batches: WeakSet[MpiBatch] = WeakSet()
        self._closed = ""
        self.limit_s: float | None = None

    def group(self, arena: Any, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[Any], None]:
        """As `DeviceTransport.group`; returns when the messages are through."""
        sends, receives = (
            [Message(message.peer, (part,)) for message in messages for part in message.ranges if part[1]]
            for messages in (sends, receives)
        )
        if not sends and not receives:
            return lambda stream: None
        batch = MpiBatch(self._transport, _Memory(arena), sends, receives, DEVICE_TAG)
        self._batches.add(batch)
        event, waiting = self._device.event(), self._waiting

        def run(stream: Any) -> None:
            if self._closed:
                raise TopocommError(f"rank {self._transport.rank}: MPI takes no device memory now: {self._closed}")
            event.record(stream)
            number = waiting.recorder.calls
            waiting.for_call(UnderWay(_Stage(event, batch), waiting.recorder.tag(number), number), self.limit_s)

        return run

    def abort(self) -> None:
        """As `DeviceTransport.abort`; nobody waits any more, and MPI cannot be told to end messages."""
        self._closed = self._closed or "it was aborted"

    def close(self) -> None:
        self._closed = self._closed or "it was closed"
        for batch in list(self._batches):
            batch.free()


def prove(waiting: Waiting, device: Device, wire: MpiDeviceTransport) -> str:
    """Send device memory round all ranks and look what came; why it does not do, empty if it does; collective.

    Raises:
        DeadlineError, RankFailedError: A rank is gone, or does not say what it found.
    """
    try:
        fault = _try(waiting, device, wire)
    except (DeadlineError, load_mpi().Exception) as error:
        fault = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    faults = gather_texts(waiting, fault.encode(), what=WHAT)
    return "; ".join(f"rank {rank}: {text.decode()}" for rank, text in enumerate(faults) if text)


def _try(waiting: Waiting, device: Device, wire: MpiDeviceTransport) -> str:
    """Return the fault of the bytes received from the previous rank; empty if none."""
    import torch

    rank, size = waiting.transport.rank, waiting.transport.size
    wire.limit_s = min(PROOF_S, waiting.timeout_s)
    try:
        for size_bytes in PROOF_BYTES:
            pattern = (torch.arange(size_bytes) * 31 % 251).to(torch.uint8)
            with device.current():
                memory = device.memory(2 * size_bytes)
                memory[:size_bytes].copy_(pattern + rank % 4)
                memory[size_bytes:].fill_(255)
                following, preceding = (rank + 1) % size, (rank - 1) % size
                receives = [Message(preceding, ((size_bytes, size_bytes),))]
                wire.group(memory, [Message(following, ((0, size_bytes),))], receives)(device.stream())
                if not torch.equal(memory[size_bytes:].cpu(), pattern + preceding % 4):
                    return f"of {size_bytes} bytes of device memory others came than rank {preceding} sent"
    finally:
        wire.limit_s = None
    return ""


class _Memory:
    """Device bytes by address, as mpi4py takes them; keeps their owner alive."""

    def __init__(self, arena: Any) -> None:
        self._arena, self._base, self._buffer = arena, int(arena.data_ptr()), load_mpi().buffer

    def __getitem__(self, part: slice) -> Any:
        return self._buffer.fromaddress(self._base + part.start, part.stop - part.start)


class _Stage:
    """A group in flight: first the earlier work of the stream, then its messages."""

    def __init__(self, event: Any, batch: MpiBatch) -> None:
        self._event, self._batch, self._started = event, batch, False

    def advance(self, timeout_s: float) -> bool:
        """Wait briefly; return whether it is over."""
        until_s = time.monotonic() + timeout_s
        if not self._started:
            if not reached(self._event, timeout_s, lambda: None, SOON_S):
                return False
            self._batch.start()
            self._started = True
        return self._batch.wait(max(0.0, until_s - time.monotonic()))

    def awaited(self) -> AwaitedMessages:
        """Return the pending messages; none until the stream arrives."""
        return AwaitedMessages(None, *(self._batch.pending() if self._started else ((), ())))


QUERIES = {"cuda": ("MPIX_Query_cuda_support",), "rocm": ("MPIX_Query_rocm_support", "MPIX_Query_hip_support")}
"""Functions without arguments of Open MPI, MPICH and those made of them; 1 is yes, also of how they run now."""
KINDS_KEY = "mpi_memory_alloc_kinds"
"""What a communicator's info says since MPI 4.1: kinds of memory by name, some with `:restrictions`."""


def refusal(mpi: Any) -> str:
    """Why the library, an initialised `mpi4py.MPI`, gets no device memory; empty where it says that it takes it."""
    import torch

    kind = "cuda" if getattr(torch.version, "hip", None) is None else "rocm"
    info = mpi.COMM_WORLD.Get_info()
    try:
        kinds = info.Get(KINDS_KEY) or ""
    finally:
        info.Free()
    if kind in [listed.split(":")[0].strip() for listed in kinds.split(",")]:
        return ""
    answers = {name: _answer(mpi, name) for name in QUERIES[kind]}
    if 1 in answers.values():
        return ""
    said = [f"{name} says {answer}" for name, answer in answers.items() if answer is not None]
    return f"{library_name(mpi)} does not say that it takes {kind} memory" + f" ({', '.join(said)})" * bool(said)


def _answer(mpi: Any, name: str) -> int | None:
    """Call a query function of the loaded library; None if it has no such function."""
    for path in _libraries(mpi):
        try:
            function = getattr(ctypes.CDLL(path), name)
        except (OSError, AttributeError):
            continue
        function.restype, function.argtypes = ctypes.c_int, ()
        return int(function())
    return None


def _libraries(mpi: Any) -> list[str]:
    """Return files that may have the library's functions: mapped MPI libraries, and mpi4py's own."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        maps = ""
    mapped = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    return [*sorted(path for path in mapped if Path(path).name.startswith("libmpi")), str(mpi.__file__)]
