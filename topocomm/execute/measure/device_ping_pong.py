"""Ping-pong between two ranks in device memory: by groups of messages on a stream, or staged through host memory.

Groups follow each other on the stream of either rank, and the host waits for the last one only. A round trip has a
message and the launch of its group each way. Groups in one direction only give the launch alone, as the gap of LogP is
measured: nobody waits for an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from topocomm.errors import TopologyError
from topocomm.execute.calls.binding import settle
from topocomm.execute.device import device_library as devices
from topocomm.execute.device.device_library import Device, StreamEnd
from topocomm.execute.device.device_path import DevicePath
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.transports.transport import GATHER_TAG, DeviceTransport, Message

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

WHAT = "a ping-pong between devices"
"""Name of the call in reports and errors."""
STAGED = "staged"
"""Name of the device path that goes through host memory."""


def own_device(comm: Communicator) -> Device | None:
    """Return this rank's device; None, on all ranks, where no rank sits on a GPU. Collective.

    Raises:
        TopologyError: Some rank cannot use its GPU.
    """
    gpus = list(dict.fromkeys(place for place in comm.places if comm.topology.by_id[place].kind == "gpu"))
    if not gpus:
        return None
    device = devices.device_here(comm.gpu)
    records = comm.allgather_bytes(np.array([device is not None], np.uint8))
    without = [str(rank) for rank, has_device in enumerate(records) if not has_device[0]]
    if without:
        raise TopologyError(
            f"ranks sit on GPUs ({', '.join(gpus[:8])}), and torch sees none on rank {', '.join(without[:8])}: install "
            "torch with CUDA or ROCm to measure between GPUs, or hide them (CUDA_VISIBLE_DEVICES= or "
            "ROCR_VISIBLE_DEVICES=) to measure between cores"
        )
    return device


def device_path_name(comm: Communicator, device: Device) -> str:
    """Return how values on devices travel between all ranks, and so between any two. Collective."""
    everyone = comm.split(0)
    assert everyone is not None
    with everyone:
        settle(everyone.session, device)
        assert everyone.session.device_path is not None
        return STAGED if everyone.session.device_path.transport is None else everyone.session.device_path.transport.name


def broadcasts(two: Communicator, value: Any) -> Callable[[int], float]:
    """Return a function that sends a value there and back so many times, and returns the time of one way in us."""
    there, back = (two.prepare("broadcast", like=value, root=root) for root in (0, 1))

    def play(count: int) -> float:
        began_ns = time.perf_counter_ns()
        for _ in range(count):
            there(value, out=value)
            back(value, out=value)
        return (time.perf_counter_ns() - began_ns) / count / 2e3

    return play


class DevicePair:
    """Two ranks in device memory; `path` is what `device_path_name` says, `size_bytes` of the longest message."""

    def __init__(self, two: Communicator, device: Device, path: str, size_bytes: int) -> None:
        self._two, self._device = two, device
        if path == STAGED:
            two.session.device_path = DevicePath(two.session.waiting, device, None, "")
        else:
            settle(two.session, device)
        assert two.session.device_path is not None
        self._transport = two.session.device_path.transport
        self._memory = device.memory(size_bytes)

    def trips(self, size_bytes: int) -> Callable[[int], float]:
        """Return a function that makes so many round trips, and returns the time of one way in us."""
        if self._transport is None:
            return broadcasts(self._two, self._memory[:size_bytes])
        there, back = (self._group(self._transport, size_bytes, sender) for sender in (0, 1))
        return lambda count: self._timed([there, back], count) / 2

    def launches(self, size_bytes: int) -> Callable[[int], float] | None:
        """Return a function that sends so many groups one way, and returns the time of one in us; None if staged."""
        if self._transport is None:
            return None
        group = self._group(self._transport, size_bytes, 0)
        return lambda count: self._timed([group], count)

    def _group(self, transport: DeviceTransport, size_bytes: int, sender: int) -> Callable[[Any], None]:
        message = [Message(1 - self._two.rank, ((0, size_bytes),))]
        sends = self._two.rank == sender
        return transport.group(self._memory, message if sends else [], [] if sends else message)

    def _timed(self, groups: list[Callable[[Any], None]], count: int) -> float:
        two, transport = self._two.session, self._transport
        assert transport is not None, "groups are its own"
        with two.call(GATHER_TAG) as number:
            with self._device.current():
                stream = self._device.stream()
                began_ns = time.perf_counter_ns()
                for _ in range(count):
                    for group in groups:
                        group(stream)
                other = 1 - two.rank
                end = StreamEnd(self._device, lambda: transport.check([other]), [Message(other, ())])
            two.waiting.for_call(UnderWay(end, GATHER_TAG, number, WHAT))
        return (time.perf_counter_ns() - began_ns) / count / 1e3
