"""What is asked of the device library: streams, events, memory. torch.cuda answers, which is HIP on AMD's GPUs.

Everything else takes a `Device`, so that tests run the same code on host memory. Streams are used as torch's are:
`stream.wait_event(event)`, `event.record(stream)`, `event.query()`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from topocomm.errors import DeadlineError
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.transport import Message
from topocomm.topology.discovery.pci_sysfs import short_bus_id

ALIGNMENT_BYTES = 256
"""Pieces in a device's memory start where the widest loads of a warp may."""


class Device:
    """One GPU as this process numbers it, asked through torch."""

    def __init__(self, index: int) -> None:
        import torch

        self._torch: Any = torch
        self.index = index

    @property
    def place(self) -> Any:
        """What tensors are made on."""
        return self._torch.device("cuda", self.index)

    @property
    def bus_id(self) -> str | None:
        """The PCI address with domain; None where torch does not say it."""
        properties = self._torch.cuda.get_device_properties(self.index)
        numbers: list[Any] = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        return None if None in numbers else short_bus_id("{:08x}:{:02x}:{:02x}.0".format(*numbers))

    @property
    def uuid(self) -> str | None:
        """Unique id of the GPU or MIG slice; None where torch does not say it."""
        uuid = getattr(self._torch.cuda.get_device_properties(self.index), "uuid", None)
        return None if uuid is None else str(uuid)

    def memory(self, size_bytes: int) -> Any:
        """Bytes on the device that hold anything, uint8 [size_bytes]; of the current stream, others wait for it."""
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, device=self.place)

    def pinned(self, size_bytes: int) -> Any:
        """Host memory that the device copies from and to by itself, uint8 [size_bytes]."""
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, pin_memory=True)

    def current(self) -> AbstractContextManager[Any]:
        """Make it the current device of this thread."""
        context: AbstractContextManager[Any] = self._torch.cuda.device(self.index)
        return context

    def stream(self) -> Any:
        """The current stream."""
        return self._torch.cuda.current_stream(self.index)

    def new_stream(self) -> Any:
        """A stream of one's own."""
        return self._torch.cuda.Stream(self.index)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one."""
        context: AbstractContextManager[Any] = self._torch.cuda.stream(stream)
        return context

    def event(self) -> Any:
        """An event that takes no times."""
        return self._torch.cuda.Event()

    def pointer(self, stream: Any) -> int:
        """The address of a stream, as libraries take it."""
        return int(stream.cuda_stream)

    def keep(self, tensor: Any, stream: Any) -> None:
        """Have the memory of a tensor kept until a stream is through with what it was given so far."""
        tensor.record_stream(stream)

    def graph(self, run: Callable[[], object]) -> Callable[[], object]:
        """Record what a function puts on the current stream; returns what puts all of it there again.

        Ranks may be threads of one process: in CUDA's "global" mode what another thread asks of the driver meanwhile,
        memory say, would make the graph invalid, and torch's own stream for captures is one for all threads.
        """
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self.new_stream(), capture_error_mode="thread_local"):
            run()
        replay: Callable[[], object] = graph.replay
        return replay

    def capturing(self) -> bool:
        """Whether the current stream records a graph: nothing may be asked of the device then."""
        return bool(self._torch.cuda.is_current_stream_capturing())


_device = cache(Device)


def device_of(part: Any) -> Device | None:
    """The device that a torch tensor or CuPy array lies on; None for anything else."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")  # there are none where they were not imported
    if torch is not None and isinstance(part, torch.Tensor):
        return _device(part.device.index) if part.device.type == "cuda" else None
    if cupy is not None and isinstance(part, cupy.ndarray):
        return _device(int(part.device.id))
    return None


def device_here(index: int | None) -> Device | None:
    """The device of a number in this process, the current one if None; None without torch or without a device."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    return _device(torch.cuda.current_device() if index is None else index)


def visible_devices() -> list[Device]:
    """All that this process may use, in its own order; empty without torch or without one."""
    try:
        import torch
    except ImportError:
        return []
    return [_device(index) for index in range(torch.cuda.device_count())]


def load_copies(device: Device, dtypes: Iterable[Any]) -> None:
    """Load what copies tensors of torch dtypes that are not dense; dense ones are copied without a kernel."""
    import torch

    for dtype in dict.fromkeys(dtypes):
        dense, turned = (torch.empty((2, 3), dtype=dtype, device=device.place) for _ in range(2))
        dense.view(3, 2).copy_(turned.t())


POLL_S = 0.0001
"""Between two questions, beside which something else may happen."""
SOON_S = 0.00002
"""The same where the host has nothing else to do."""


def reached(event: Any, timeout_s: float, check: Callable[[], None], poll_s: float = POLL_S) -> bool:
    """Whether a stream has come to an event, or does so within about `timeout_s`; `check` raises where it cannot.

    It has come to an event that was not recorded yet.
    """
    until_s = time.monotonic() + timeout_s
    while not event.query():
        check()
        if time.monotonic() >= until_s:
            return False
        time.sleep(poll_s)
    return True


class StreamEnd:
    """What is on a device's current stream now, as something to wait for.

    `check` raises where it does not come to its end; `peers` are messages of the ranks that it waits for, if known.
    """

    def __init__(self, device: Device, check: Callable[[], None], peers: Sequence[Message] = ()) -> None:
        self._check, self._peers, self._event = check, peers, device.event()
        self._event.record(device.stream())

    def advance(self, timeout_s: float) -> bool:
        return reached(self._event, timeout_s, self._check)

    def awaited(self) -> AwaitedMessages:
        return AwaitedMessages(None, self._peers, self._peers)


def await_event(event: Any, waiting: Waiting, device: Device, what: str) -> None:
    """Wait until a stream has come to an event; DeadlineError, which names `what` comes after it, if it does not."""
    if not reached(event, waiting.timeout_s, lambda: None, SOON_S):
        raise DeadlineError(
            f"rank {waiting.transport.rank}: {device.place} is not through with what was put on its stream before "
            f"{what} after {waiting.timeout_s:g} s (limit: TOPOCOMM_TIMEOUT_S)"
        )


MODULE_LOADING = "CUDA_MODULE_LOADING"
"""LAZY, the default since CUDA 12.2: a kernel of a library is loaded when it is first launched, which may wait until
the GPU is through with everything, also with a kernel that waits for another rank. EAGER: when CUDA starts, for seconds
and some hundred MB a process (CUDA Programming Guide, "Lazy Loading")."""
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Queues from a process to a GPU. Streams beyond them share queues: there a kernel waits for the one before it, also if
that is of another stream and waits for another rank (CUDA Programming Guide, "CUDA Environment Variables")."""
FEWEST_CONNECTIONS, DEFAULT_CONNECTIONS, MOST_CONNECTIONS = 1, 8, 32
"""What CUDA takes there; the default is that without MPS (CUDA Programming Guide, 5.2.3.2, of December 2025)."""
FOR_THREADS = {MODULE_LOADING: "EAGER", CONNECTIONS: str(MOST_CONNECTIONS)}


def prepare_for_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what is not set, for ranks that are threads of this process; to be called before CUDA starts in it."""
    for name, value in FOR_THREADS.items():
        environment.setdefault(name, value)
