"""Device memory by a torch process group: NCCL, or RCCL on AMD's GPUs, as torch has it, without CuPy.

The group is one of our own, between the same ranks as the communicator's. Its errors and time limits are torch's: its
watchdog ends the process where a peer is gone, unless the calls here find it out before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from topocomm.errors import TopocommError
from topocomm.execute.device.device_library import Device
from topocomm.execute.transports.device.nccl import end_aside
from topocomm.execute.transports.torch_group import load_torch
from topocomm.execute.transports.transport import DeviceTransport, Message, NativeCall
from topocomm.planning import native

DTYPES = tuple(dtype for dtype in native.DTYPES if dtype not in ("uint32", "uint64"))
REDUCE_OPS = {"sum": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN"}


def device_backend(group: Any) -> str | None:
    """The backend that a process group has for CUDA's memory, ROCm's too, if that is nccl; else None."""
    if group is None:
        return None
    config = str(load_torch().distributed.get_backend_config(group))
    backends = dict(part.split(":", 1) for part in config.split(",") if ":" in part)
    return backends.get("cuda") if backends.get("cuda") == "nccl" else None


class TorchDeviceTransport(DeviceTransport):
    """One rank's end of a group of its own, with the ranks of another one; collective.

    `timeout_s` is the limit of the set-up, and of every message as torch watches it.

    Raises:
        TopocommError: torch cannot make the group.
    """

    name = "torch"

    def __init__(self, group: Any, device: Device, timeout_s: float) -> None:
        self._dist: Any = load_torch().distributed
        self._rank, self._timeout_s = group.rank(), timeout_s
        self._ranks = self._dist.get_process_group_ranks(group)
        try:
            self._group = self._dist.new_group(
                self._ranks,
                timeout=timedelta(seconds=timeout_s),
                backend=device_backend(group),
                use_local_synchronization=True,
            )
            with device.current():  # before messages of some ranks, all ranks of a group must have met
                self._dist.all_reduce(device.memory(1), group=self._group)
        except RuntimeError as error:
            raise TopocommError(
                f"rank {self._rank}: torch makes no process group for {device.place}: {str(error).splitlines()[0]}"
            ) from error
        self._open = True

    def group(self, arena: Any, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[Any], None]:
        """As `DeviceTransport.group`; the stream is the current one."""
        dist = self._dist
        operations = [
            dist.P2POp(function, arena[at : at + length], self._ranks[message.peer], self._group)
            for function, messages in ((dist.isend, sends), (dist.irecv, receives))
            for message in messages
            for at, length in message.ranges
            if length
        ]
        if not operations:
            return lambda stream: None

        def run(stream: Any) -> None:
            del stream
            for work in dist.batch_isend_irecv(operations):
                work.wait()  # of the stream, not of the host

        return run

    def native(self, collective: str, dtype: str, operator: str) -> NativeCall | None:
        """As `DeviceTransport.native`; the stream is the current one. Torch has NCCL reduce no uint32 and no uint64."""
        dist, group = self._dist, self._group
        if collective == "allgather":
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13
            return lambda send, receive, stream: gather(_raw(receive), _raw(send), group=group)
        if dtype not in DTYPES or operator not in REDUCE_OPS or collective not in native.CALLS:
            return None
        how = getattr(dist.ReduceOp, REDUCE_OPS[operator])
        if collective == "reduce_scatter":
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            return lambda send, receive, stream: scatter(receive.view(-1), send.view(-1), op=how, group=group)

        def reduce(send: Any, receive: Any, stream: Any) -> None:
            del stream
            if send.data_ptr() != receive.data_ptr():
                receive.copy_(send)
            dist.all_reduce(receive, op=how, group=group)

        return reduce

    def abort(self) -> None:
        """As `DeviceTransport.abort`, where this torch can."""
        if self._open:
            self._open = False
            with suppress(AttributeError):
                end_aside(self._group.abort, self._rank, self._timeout_s)

    def close(self) -> None:
        if self._open:
            self._open = False
            end_aside(lambda: self._dist.destroy_process_group(self._group), self._rank, self._timeout_s)


def _raw(tensor: Any) -> Any:
    return tensor.view(-1).view(load_torch().uint8)
