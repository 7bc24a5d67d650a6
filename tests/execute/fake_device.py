"""A double of `topocomm.execute.device.device_library`: the device of a rank that is a thread, on host memory."""

import threading
import time
import weakref
from contextlib import contextmanager

import torch

from tests.execute.transports.recording_nccl import Graph, Stream


class Event:
    """Tells whether what was on a stream is through."""

    def __init__(self, world):
        self.world, self.groups, self.stream, self.asked = world, [], None, 0

    def record(self, stream):
        assert not self.world.capturing, "an event in a graph tells nothing"
        self.stream, self.groups = stream, list(stream.stuck)

    def query(self):
        if self.world.capturing:
            raise self.world.wrong("the device is asked while a graph is captured")
        self.asked += 1
        return all(group.over for group in self.groups)


class FakeDevice:
    """The device of one rank, in the place of `topocomm.execute.device.device_library.Device`."""

    place = torch.device("cpu")

    def __init__(self, world, rank):
        self.world, self.rank, self.index = world, rank, world.gpus[rank]
        self.default = Stream(world, rank)
        self.allocated = 0

    @property
    def uuid(self):
        return f"GPU-{self.index}"

    @property
    def bus_id(self):
        return f"0000:{self.index + 1:02x}:00.0"

    def memory(self, size_bytes):
        assert not self.world.capturing, "memory of a graph would be its own"
        self.allocated += size_bytes
        return self.world.allocate(self.rank, size_bytes)

    def pinned(self, size_bytes):
        return torch.full((size_bytes,), 255, dtype=torch.uint8)

    @contextmanager
    def current(self):
        yield

    def stream(self):
        return self.world.current.setdefault(threading.get_ident(), self.default)

    def new_stream(self):
        return Stream(self.world, self.rank)

    @contextmanager
    def on(self, stream):
        before = self.stream()
        self.world.current[threading.get_ident()] = stream
        try:
            yield
        finally:
            self.world.current[threading.get_ident()] = before

    def event(self):
        return Event(self.world)

    def pointer(self, stream):
        return stream.pointer

    def keep(self, tensor, stream):
        self.world.log.append(("keep", self.rank, stream))

    def graph(self, run):
        made = Graph(run)  # one of ours runs what it records
        self.world.graphs[threading.get_ident()] = weakref.ref(made)
        try:
            run()
        finally:
            del self.world.graphs[threading.get_ident()]
        return made

    def capturing(self):
        return self.world.capturing


def devices_of(world):
    """A double of `device_library.device_of`: every torch tensor is on the device of the thread's rank."""
    devices = [FakeDevice(world, rank) for rank in range(world.size)]

    def device_of(part):
        return devices[world.rank_here()] if isinstance(part, torch.Tensor) else None

    device_of.devices = devices
    return device_of


def wait_until(condition, limit_s=10.0):
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s, "it does not come"
        time.sleep(0.001)
