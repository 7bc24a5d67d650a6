"""Credits between ranks on threads."""

from topocomm import run_local
from topocomm.execute.credits import CALLS_AHEAD, Credits


def test_a_sender_is_two_calls_ahead_at_most():
    def body(comm):
        sends = comm.rank == 0
        credits_ = Credits(comm.transport, [1] if sends else [], [] if sends else [0], comm.next_tag())
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
