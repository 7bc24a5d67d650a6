"""The recording NCCL fails on what NCCL would hang, crash or corrupt memory on: planted misuses, one a test."""

import threading

import pytest

from tests.execute.fake_device import FakeDevice
from tests.execute.transports.recording_nccl import Misuse, NcclError, Stream, World

UINT8 = World.NCCL_UINT8


class Rank:
    """A rank's communicator, memory of 64 bytes and stream."""

    def __init__(self, world, rank):
        self.world, self.device = world, FakeDevice(world, rank)
        self.memory = self.device.memory(64)
        self.comm = world.NcclCommunicator(world.size, world.ids[0], rank)
        self.stream = self.device.stream()

    def at(self, offset=0):
        return self.memory.data_ptr() + offset

    def send(self, peer, count=16, offset=0):
        self.comm.send(self.at(offset), count, UINT8, peer, self.stream.pointer)

    def receive(self, peer, count=16, offset=32):
        self.comm.recv(self.at(offset), count, UINT8, peer, self.stream.pointer)


def run(body, size=2, **options):
    """Run `body(rank object, number)` on threads; what each raised."""
    world, errors = World(size, **{"patience_s": 5.0, **options}), [None] * size
    world.get_unique_id()

    def work(number):
        try:
            body(Rank(world, number), number)
        except (AssertionError, NcclError, TypeError) as error:
            errors[number] = error
        finally:
            world.end(number)

    threads = [threading.Thread(target=work, args=(number,), name=f"rank{number}") for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return world, errors


def exchange(rank, number):
    rank.world.groupStart()
    rank.send(1 - number)
    rank.receive(1 - number)
    rank.world.groupEnd()


def test_bytes_move_and_are_written_down():
    def body(rank, number):
        rank.memory[:16] = number + 1
        exchange(rank, number)
        assert rank.memory[32:48].tolist() == [2 - number] * 16
        rank.comm.destroy()

    world, errors = run(body)
    assert errors == [None, None]
    assert not world.misuse
    assert world.log.count(("move", 0, 1, 16)) == 1


def test_a_communicator_ends_when_the_graphs_that_recorded_it_are_gone():
    def body(rank, number):
        made = rank.device.graph(lambda: exchange(rank, number))
        ends = threading.Thread(target=rank.comm.destroy if number else rank.comm.abort)
        ends.start()
        ends.join(0.1)
        assert ends.is_alive()
        del made
        ends.join(5)
        assert not ends.is_alive()

    world, errors = run(body)
    assert errors == [None, None]
    assert ("destroy", 1) in world.log and ("aborted", 0) in world.log


def misuse(body, match, **options):
    world, errors = run(body, **options)
    assert world.misuse
    assert any(isinstance(error, Misuse) and match in str(error) for error in errors) or match in world.misuse[0], (
        errors,
        world.misuse,
    )


def test_1_messages_that_are_no_pair():
    def body(rank, number):
        rank.world.groupStart()
        rank.send(1 - number)  # and nobody receives
        rank.world.groupEnd()

    misuse(body, "unmatched")


def test_2_a_group_left_open_by_an_exception():
    def body(rank, number):
        try:
            rank.world.groupStart()
            raise ValueError
        except ValueError:
            pass
        rank.comm.check_async_error()

    misuse(body, "while a group is open")


def test_2_a_group_left_open_at_the_end():
    misuse(lambda rank, number: rank.world.groupStart(), "ends while a group is open")


def test_3_one_peer_twice_with_different_sizes():
    def body(rank, number):
        rank.world.groupStart()
        for at, count in ((0, 8), (32, 16)) if number == 0 else ((0, 16), (32, 8)):
            (rank.send if number == 0 else rank.receive)(1 - number, count, at)
        rank.world.groupEnd()

    misuse(body, "sizes differ")


def test_4_the_stream_of_another_rank():
    def body(rank, number):
        rank.world.groupStart()
        rank.stream = Stream(rank.world, 1 - number)
        try:
            rank.send(1 - number)
        finally:
            rank.world.groupEnd()

    misuse(body, "wrong stream")


def test_4_a_stream_that_is_not_current():
    def body(rank, number):
        rank.stream = rank.device.new_stream()
        rank.world.groupStart()
        try:
            rank.send(1 - number)
        finally:
            rank.world.groupEnd()

    misuse(body, "wrong stream")


def test_5_a_buffer_freed_before_the_stream_is_through():
    def body(rank, number):
        rank.world.groupStart()
        rank.send(1 - number)
        rank.receive(1 - number)
        del rank.memory
        rank.world.groupEnd()

    misuse(body, "was freed")


def test_6_the_group_of_another_thread():
    def body(rank, number):
        rank.world.groupStart()
        caught = []

        def other():
            try:
                rank.send(1 - number)
            except Misuse as error:
                caught.append(error)

        thread = threading.Thread(target=other, name=f"rank{number}-other")
        thread.start()
        thread.join()
        rank.world.groupEnd()
        raise caught[0]

    misuse(body, "outside of a group of its thread")


def test_7_ranks_in_another_order():
    world = World(2, patience_s=1.0)
    world.get_unique_id()
    caught = []

    def work():
        try:
            Rank(world, 1)
        except Misuse as error:
            caught.append(error)

    thread = threading.Thread(target=work, name="rank0")
    thread.start()
    thread.join()
    assert "rank order" in str(caught[0])


@pytest.mark.parametrize("count", [16.0, "16", None])
def test_8_a_count_that_is_no_integer(count):
    def body(rank, number):
        rank.world.groupStart()
        try:
            rank.send(1 - number, count)
        finally:
            rank.world.groupEnd()

    misuse(body, "is no integer")


def test_one_group_that_meets_two():
    """NCCL takes the messages of a group in an order of its own: one may wait behind another that waits for it."""

    def body(rank, number):
        parts = [(0, 1)] if number == 0 else [(0,), (1,)]
        for part in parts:
            rank.world.groupStart()
            for at in part:
                (rank.send if number == 0 else rank.receive)(1 - number, 16, 16 * at)
            rank.world.groupEnd()

    misuse(body, "meets two of rank 1")


def test_receives_that_overlap():
    def body(rank, number):
        rank.world.groupStart()
        rank.send(1 - number, 16, 0)
        rank.receive(1 - number, 16, 8)
        rank.world.groupEnd()

    misuse(body, "overlaps")


def test_an_id_of_another_cupy():
    for signed in (False, True):
        world = World(1, signed_id=signed)
        told = world.get_unique_id()
        other = bytes(128) if signed else tuple(told)
        with pytest.raises(TypeError):
            world.NcclCommunicator(1, other, 0)
