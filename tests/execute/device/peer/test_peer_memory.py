"""The memory that ranks of a host map: waits that took their time, and what is given back when."""

import pytest

from tests.execute.fake_device import FakeDevice
from tests.execute.transports.recording_nccl import World
from topocomm import DeadlineError
from topocomm.execute.device.peer.peer_memory import FLAGS_AT_BYTES, PeerMemory, Room


class Mapping:
    """A mapping that says what it is asked for."""

    def __init__(self):
        self.log = []

    def leave(self):
        self.log.append("leave")

    def free(self):
        self.log.append("free")


def memory(mapping=None, timeout_s=2.0):
    device = FakeDevice(World(3), 1)
    return PeerMemory(device, 1, [64, 128, 192], programs=4, backend="hip", timeout_s=timeout_s, mapping=mapping)


def test_a_wait_that_took_its_time_names_the_ranks_awaited():
    peer = memory()
    peer.check()
    peer._control[1:4] = [1, 0, 1]
    with pytest.raises(DeadlineError, match=r"rank 1: its GPU still waits for ranks 0, 2 after 2 s, inside the host"):
        peer.check()
    peer.abort()
    peer.check()  # an abort ends waits, which is no deadline
    assert peer._control[0] == 1


def test_kernels_get_addresses_and_a_limit_before_that_of_the_host():
    peer = memory(timeout_s=8.0)
    assert peer.table.tolist() == [64, 128, 192] and (peer.own, peer.size) == (128, 3)
    assert peer.limit == 7 * 10**8  # of 10 ns
    assert peer.control == peer._control.ctypes.data


def test_memory_is_given_back_once():
    mapping = Mapping()
    peer = memory(mapping)
    peer.leave()
    peer.close()
    peer.close()
    assert mapping.log == ["leave", "free"]


def test_arenas_lie_behind_the_flags():
    room = Room(flags=10, arena_bytes=1000)
    assert (room.arenas_at, room.total_bytes) == (FLAGS_AT_BYTES + 80, FLAGS_AT_BYTES + 80 + 2000)
