"""What ranks tell each other of their parts before a call."""

import numpy as np
import pytest

from topocomm import MismatchError, run_local
from topocomm.execute.calls.ranges import gather_rows, gather_shards


def test_rows_are_told_anew_in_every_call():
    def body(comm):
        values = [np.zeros((comm.rank + step, 2)) for step in range(3)]
        return [gather_rows(comm._calls, comm.session, x) for x in (*values, "no array")]

    for told in run_local(body, ranks=3):
        assert told == [(0, 1, 2), (1, 2, 3), (2, 3, 4), (-1, -1, -1)]


def test_shards_are_joined():
    def body(comm):
        given = gather_shards(comm._calls, comm.session, (2 * comm.rank, 2 * comm.rank + 2))
        return given, gather_shards(comm._calls, comm.session, None)

    assert run_local(body, ranks=3) == [((0, 2, 4, 6), None)] * 3


def test_shards_that_do_not_follow_each_other_are_an_error_on_every_rank():
    def body(comm):
        with pytest.raises(MismatchError, match=f"rank {comm.rank}: virtual shards of the ranks are"):
            gather_shards(comm._calls, comm.session, (0, 2))
        return True

    assert run_local(body, ranks=2) == [True, True]
