"""Memories of ranks in one file that all of them map, as the peer kernel takes them."""

import numpy as np
import torch

from tests.execute.fake_device import FakeDevice
from tests.execute.transports.recording_nccl import World
from topocomm.execute.device.peer.peer_memory import FLAG_BYTES, FLAGS_AT_BYTES, PeerMemory, Room

ROOM = Room(1 << 12, 1 << 17)
EACH = ROOM.total_bytes
EPOCH, FINISHED_AT = 0, 32
"""Words of a memory."""


def memory_of(size):
    """Bytes of the file."""
    return size * EACH


class Device(FakeDevice):
    """A device on host memory, without NCCL; its memory holds NaN."""

    def __init__(self, rank, size):
        super().__init__(World(size), rank)

    def memory(self, size_bytes):
        room = torch.full((size_bytes + 256,), 0xFF, dtype=torch.uint8)
        start = -room.data_ptr() % 256
        return room[start : start + size_bytes]


def peer_memory(shared, rank, size, *, programs=3, timeout_s=60.0):
    """A rank's memory; arenas begin poisoned."""
    start = shared.ctypes.data
    device = Device(rank, size)
    made = PeerMemory(
        device,
        rank,
        [start + EACH * other for other in range(size)],
        programs=programs,
        backend="interpreter",
        timeout_s=timeout_s,
        room=ROOM,
    )
    shared[EACH * (rank + 1) - 2 * ROOM.arena_bytes : EACH * (rank + 1)] = 0xFF
    made.shared = shared  # it stays mapped
    return device, made


def words(shared, rank):
    """The words before the flags of a rank's memory, int64."""
    at = EACH * rank
    return shared[at : at + FLAGS_AT_BYTES].view(np.int64)


def flags(shared, rank):
    """The flags of a rank's memory, int64."""
    at = EACH * rank + FLAGS_AT_BYTES
    return shared[at : at + ROOM.flags * FLAG_BYTES].view(np.int64)
