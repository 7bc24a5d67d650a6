"""What a rank waits for beside calls: libraries on threads of their own, and batches together."""

import threading

from topocomm.execute.liveness.pollable import AwaitedMessages, BackgroundCall, BatchWait, CompositeWait
from topocomm.execute.transports.transport import Message


def test_a_call_on_a_thread_gives_its_result_or_its_error():
    call = BackgroundCall(lambda: 7, "seven")
    assert call.advance(10) and (call.made, call.error) == (7, None)
    failed = BackgroundCall(lambda: {}["missing"], "missing")
    assert failed.advance(10) and isinstance(failed.error, KeyError)
    assert call.awaited() == AwaitedMessages(None, (), ())


def test_a_call_that_does_not_come_back_is_not_awaited_for_ever():
    over = threading.Event()
    others = AwaitedMessages(0, (), (Message(2, ()),))
    call = BackgroundCall(over.wait, "late", others)
    assert not call.advance(0.01)
    assert call.awaited() is others
    over.set()
    assert call.advance(10)


class Batch:
    """Messages that are complete after so many looks."""

    def __init__(self, peer, looks):
        self.sends, self.receives = [Message(peer, ((0, 8),))], [Message(peer, ((8, 4),))]
        self.looks, self.log = looks, []

    def start(self):
        self.log.append("start")

    def wait(self, timeout_s):
        self.looks -= 1
        return self.looks <= 0

    def pending(self):
        return ([], self.receives) if self.looks > 0 else ([], [])

    def free(self):
        self.log.append("free")


def test_batches_are_through_together():
    batches = [Batch(1, 2), Batch(2, 5)]
    both = CompositeWait(batches)
    assert both.sends == [batches[0].sends[0], batches[1].sends[0]]
    both.start()
    assert [batch.looks for batch in batches] == [1, 4]  # each is asked once: it may publish progress
    assert not both.wait(0.0)
    assert both.pending() == ([], batches[1].receives)
    assert both.wait(10)
    both.free()
    assert [batch.log for batch in batches] == [["start", "free"]] * 2


def test_a_batch_is_awaited_by_its_messages():
    batch = Batch(3, 2)
    wait = BatchWait(batch)
    assert not wait.advance(0.0) and wait.awaited() == AwaitedMessages(None, *batch.pending())
    assert wait.advance(0.0)
