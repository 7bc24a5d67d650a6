"""Ranks on threads whose torch tensors count as device memory, over the recording NCCL."""

from contextlib import contextmanager

import pytest
import torch

from tests.execute.fake_device import devices_of
from tests.execute.transports.recording_nccl import World
from topocomm import run_local
from topocomm.execute.device import device_call
from topocomm.execute.device import device_library as device
from topocomm.execute.transports.device import nccl_library

X = torch.ones(8)


def poisoned(empty):
    """Fresh memory for results holds NaN."""

    def made(values):
        fields = empty(values)
        for tensor in fields.values():
            tensor.view(-1).view(torch.uint8).fill_(255)
        return fields

    return made


@contextmanager
def fake_nccl(size, **options):
    """The world of so many ranks, in the place of the device library and NCCL."""
    world = World(size, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "device_of", devices_of(world))
        patch.setattr(device, "device_here", lambda index: device.device_of(torch.ones(1)))
        patch.setattr(device_call.DeviceValues, "empty", poisoned(device_call.DeviceValues.empty))
        patch.setattr(nccl_library, "load_nccl", lambda: world)
        yield world


def run_on_devices(body, ranks, *, topology=None, **options):
    """What `body(comm)` returns on each rank; fails on any misuse of NCCL."""
    with fake_nccl(ranks, **options) as world:
        return run_in(world, body, topology=topology)


def run_in(world, body, *, topology=None, misuse=False):
    """The same in a world at hand."""

    def ranked(comm):
        try:
            return body(comm)
        finally:
            world.end(comm.rank)

    try:
        return run_local(ranked, ranks=world.size, topology=topology)
    finally:
        if not misuse:
            assert not world.misuse


def call_and_wait(comm, call):
    """Twenty calls, each awaited."""
    for _ in range(20):
        call(X)
        comm.synchronize()
