"""Ranks on threads whose torch tensors count as device memory, over the recording NCCL."""

from contextlib import contextmanager

import pytest

from tests.execute.transports.recording_nccl import World, devices_of
from topocomm import run_local
from topocomm.execute import device
from topocomm.execute.transports import nccl_library


@contextmanager
def fake_nccl(size, **options):
    """The world of so many ranks, in the place of the device library and NCCL."""
    world = World(size, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "device_of", devices_of(world))
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
