"""Messages to the next rank and from the one before."""

import numpy as np

from topocomm import (
    run_local,
)


def test_shift_moves_buffers_around_the_ring():
    """The same arrays again, others, and others of other lengths from call to call."""

    def body(comm):
        held = np.full(9, comm.rank, np.uint8)
        other = np.empty_like(held)
        shift = comm.prepare_shift()
        for step in range(comm.size - 1):
            shift.start([held] if step % 2 == 0 else [other], [other] if step % 2 == 0 else [held])
            shift.wait()
        before = (comm.rank - 1) % comm.size
        for length in (3, 3, 5, 0, 4):
            mine, theirs = (np.full(length + rank, length * 7 + rank, np.uint8) for rank in (comm.rank, before))
            came = np.zeros_like(theirs)
            shift.start([mine], [came])
            shift.advance()
            shift.wait()
            np.testing.assert_array_equal(came, theirs)
        return (other if comm.size % 2 == 0 else held)[0]

    for ranks in (2, 3, 5):
        assert run_local(body, ranks=ranks) == [(rank + 1) % ranks for rank in range(ranks)]


def test_shift_makes_requests_for_other_arrays_only():
    def body(comm):
        made = []
        batch = comm.session.transport.batch
        comm.session.transport.batch = lambda *args: made.append(args) or batch(*args)
        shift = comm.prepare_shift(2)
        sends, receives = ([np.zeros(size, np.uint8) for size in (4, 8)] for _ in range(2))
        counts = []
        for pair in ((sends, receives), (sends, receives), (receives, sends), (receives, sends)):
            shift.start(*pair)
            shift.wait()
            counts.append(len(made))
        return counts

    assert run_local(body, ranks=2) == [[4, 4, 8, 8]] * 2
