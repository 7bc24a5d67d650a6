"""Credits between ranks on threads."""

from types import SimpleNamespace

from topocomm import run_local
from topocomm.execute.host.credits import CALLS_AHEAD, Credits
from topocomm.execute.transports.transport import Message


def test_a_sender_is_two_calls_ahead_at_most():
    def body(comm):
        sends = comm.rank == 0
        credits_ = Credits(comm.session.transport, [1] if sends else [], [] if sends else [0], comm.session.next_tag())
        ahead = []
        if sends:
            ahead = [credits_.take(0.0) for _ in range(CALLS_AHEAD + 1)]
        comm.barrier()
        if not sends:
            assert credits_.take(1.0)
            credits_.give()
        comm.barrier()
        if sends:
            ahead.append(credits_.take(10.0))  # the word that one call is through has come
            ahead.append(credits_.take(0.0))
        comm.barrier()
        return ahead

    assert run_local(body, ranks=2)[0] == [True, True, False, True, False]


class Untaken:
    """A batch whose messages never move."""

    in_c = True

    def __init__(self, sends, receives):
        self.sends, self.receives = sends, receives

    def start(self):
        pass

    def wait(self, timeout_s):
        return False

    def pending(self):
        return list(self.sends), list(self.receives)

    def requests(self):
        return self if self.in_c else None

    def check(self):
        checked.append(self)


checked = []


def test_both_directions_are_awaited():
    """A rank that only receives waits until its word about the call before the last was taken, and says for whom."""
    transport = SimpleNamespace(batch=lambda buffer, sends, receives, tag: Untaken(sends, receives))
    for receivers, senders in (([], [0, 3]), ([2], []), ([2], [0])):
        credits_ = Credits(transport, receivers, senders, 8)
        for _ in range(CALLS_AHEAD):
            assert credits_.pending() == ([], [])
            assert credits_.take(0.0)
            credits_.give()
        assert not credits_.take(0.0)
        sends, receives = credits_.pending()
        assert [m.peer for m in sends] == senders
        assert [m.peer for m in receives] == receivers
        assert all(isinstance(m, Message) and m.payload_bytes == 1 for m in (*sends, *receives))


def test_compiled_code_takes_them_by_turn_and_direction(monkeypatch):
    transport = SimpleNamespace(batch=lambda buffer, sends, receives, tag: Untaken(sends, receives))

    def directions(receivers, senders):
        made = Credits(transport, receivers, senders, 8).requests()
        return [None if some is None else (len(some.receives), len(some.sends)) for some in made]

    assert directions([1, 2], [3]) == [(2, 0), (0, 1)] * CALLS_AHEAD
    assert directions([], [3]) == [None, (0, 1)] * CALLS_AHEAD
    assert directions([1], []) == [(1, 0), None] * CALLS_AHEAD
    both = Credits(transport, [1], [3], 8)
    checked.clear()
    both.check()
    assert len(checked) == 2 * CALLS_AHEAD and {*checked} == {*both.requests()}
    monkeypatch.setattr(Untaken, "in_c", False)
    assert both.requests() is None
