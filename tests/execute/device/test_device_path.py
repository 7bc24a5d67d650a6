"""Calls in flight on a device: what hangs is told from what is busy, and what ends first."""

import gc
import threading
import time
import weakref

import pytest
import torch

from tests.execute.device_jobs import X, fake_nccl, run_in
from tests.execute.fake_device import FakeDevice
from tests.execute.transports.recording_nccl import World as NcclWorld
from topocomm import (
    SUM,
    DeadlineError,
    run_local,
)
from topocomm.execute.device.device_path import DevicePath, InFlightCalls
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.liveness.recorder import Recorder
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.threads import World
from topocomm.execute.transports.transport import Message, NoDeviceTransport

LIMIT_S = 0.2


class CallEngine:
    """An engine on a device that is so many calls behind."""

    ranks = (1,)

    def __init__(self, behind):
        self.begun, self.behind, self.marked = 0, behind, None

    def mark(self):
        self.marked = self.begun

    def advance(self, timeout_s):
        return self.marked <= self.begun - self.behind

    def awaited(self):
        return AwaitedMessages(None, (), (Message(1, ((0, 8),)),))


def flights():
    transport = World(2).transports()[0]
    return InFlightCalls(
        Waiting(transport, LIMIT_S, lambda tag: "a call", Recorder()), FakeDevice(NcclWorld(2), 0), NoDeviceTransport()
    )


def go_on(flights, engines, times_s):
    until_s, number = time.monotonic() + times_s, 0
    while time.monotonic() < until_s:
        for engine in engines:
            flights.look()
            engine.begun += 1
            number += 1
            flights.add(engine, 16, number)
        time.sleep(0.001)


@pytest.mark.alone
def test_a_device_that_is_always_behind_does_not_hang():
    held, engines = flights(), [CallEngine(3), CallEngine(5)]
    go_on(held, engines, 4 * LIMIT_S)
    assert len(held._out) <= len(engines)


@pytest.mark.alone
def test_one_that_stands_still_does():
    with pytest.raises(
        DeadlineError, match=r"call 1 \(a call\): still waiting for rank 1 \(8 bytes from it\) after 0.2 s"
    ):
        go_on(flights(), [CallEngine(10**9)], 4 * LIMIT_S)


class Event:
    """Of a stream that is not through before it was asked so often."""

    def __init__(self, device, asked):
        self.device, self.left = device, asked

    def record(self, stream):
        assert stream is self.device.stream()

    def query(self):
        self.left -= 1
        return self.left < 0


def test_waiting_covers_what_is_on_the_current_stream_beside_calls():
    held, events = flights(), []
    device = held._device
    device.event = lambda: events.append(Event(device, 3)) or events[-1]
    held.wait()
    assert [event.left for event in events] == [-1]
    device.event = lambda: Event(device, 10**9)
    with pytest.raises(DeadlineError, match=r"what is on the stream of cpu: still waiting for .* after 0.2 s"):
        held.wait()


@pytest.mark.parametrize("behind", [0, 1])
def test_calls_that_are_through_are_not_kept(behind):
    held, engine = flights(), CallEngine(behind)
    alive = weakref.ref(engine)
    for number in range(3):  # the last was begun while an event of the first was out
        engine.begun += 1
        held.add(engine, 16, number)
    engine.begun += behind
    held.look()
    del engine
    gc.collect()
    assert alive() is None or behind
    if behind:
        alive().begun += 1
        held.look()
        gc.collect()
        assert alive() is None


def test_what_a_graph_has_recorded_is_kept_until_the_end():
    held, engine = flights(), CallEngine(0)
    alive = weakref.ref(engine)
    held.keep(engine)
    del engine
    held.wait()
    gc.collect()
    assert alive() is not None
    held.forget()
    gc.collect()
    assert alive() is None


def test_waits_of_kernels_are_ended_before_nccl():
    """NCCL waits for what comes before its own on a stream, and that may be such a kernel."""
    ended = []

    class Means:
        def __init__(self, name):
            self.abort = lambda: ended.append(name)

    def body(comm):
        DevicePath(comm.session.waiting, None, Means("wire"), "", Means("peer")).abort()

    run_local(body, ranks=1)
    assert ended == ["peer", "wire"]


def test_memory_that_a_graph_has_recorded_outlives_its_call():
    """A function may prepare a call, record it, and give back the graph only."""

    def record(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        here.wait()
        world.capturing = True
        call(X, out=torch.empty(8))
        here.wait()
        world.capturing = False
        return weakref.ref(call._engine.memory.untyped_storage())

    def body(comm):
        arena = record(comm)
        comm.synchronize()
        gc.collect()
        kept = arena() is not None
        comm.close()
        gc.collect()
        return kept, arena() is None

    here = threading.Barrier(2)
    with fake_nccl(2) as world:
        assert run_in(world, body) == [(True, True)] * 2
