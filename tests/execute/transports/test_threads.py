"""Messages and notes between ranks that are threads."""

import numpy as np

from topocomm.execute.transports.threads import World
from topocomm.execute.transports.transport import Message


def pair():
    return World(2).transports()


def test_messages_of_a_pair_arrive_in_order_and_by_tag():
    first, second = pair()
    source, target = np.arange(12, dtype=np.uint8), np.zeros(12, np.uint8)
    sends = [first.batch(source, [Message(1, ((at, 4),))], [], tag) for at, tag in ((0, 16), (4, 18), (8, 16))]
    for batch in sends:
        batch.start()
    receives = [second.batch(target, [], [Message(0, ((at, 4),))], tag) for at, tag in ((4, 18), (0, 16), (8, 16))]
    for number, batch in enumerate(receives):
        batch.start()
        assert batch.wait(0.0), number
    np.testing.assert_array_equal(target, source)
    assert all(batch.wait(0.0) for batch in sends)


def test_a_message_that_nobody_takes_is_pending_until_it_is_freed():
    first, second = pair()
    memory = np.zeros(8, np.uint8)
    batch = first.batch(memory, [Message(1, ((0, 8),))], [], 16)
    batch.start()
    assert not batch.wait(0.01)
    assert batch.pending() == ([Message(1, ((0, 8),))], [])
    batch.free()
    late = second.batch(memory, [], [Message(0, ((0, 8),))], 16)
    late.start()
    assert not late.wait(0.0)


def test_ranges_are_joined_and_cut_anew_on_the_other_side():
    first, second = pair()
    source, target = np.arange(10, dtype=np.uint8), np.zeros(10, np.uint8)
    first.batch(source, [Message(1, ((0, 2), (6, 4)))], [], 16).start()
    batch = second.batch(target, [], [Message(0, ((4, 5), (0, 1)))], 16)
    batch.start()
    assert batch.wait(0.0)
    assert target.tolist() == [9, 0, 0, 0, 0, 1, 6, 7, 8, 0]


def test_notes_are_taken_by_tag_oldest_first():
    first, second = pair()
    for tag, data in ((1, b"a"), (2, b"b"), (1, b"c")):
        first.post(1, tag, data)
    assert [second.take(0, tag) for tag in (1, 2, 1, 1)] == [b"a", b"b", b"c", None]


def test_a_rank_whose_thread_has_ended_is_told_in_smaller_groups_too():
    world = World(3)
    transports = world.transports()
    inner = transports[0].subset([2, 0], 0)
    assert (inner.rank, inner.size) == (1, 2) and transports[1].subset([], 0) is None
    world.leave(2)
    assert transports[0].failed() == {2: "has ended"} and inner.failed() == {0: "has ended"}
    assert transports[0].shrink([0, 1], 1).failed() == {}
