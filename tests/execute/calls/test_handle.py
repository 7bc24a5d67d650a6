"""Handles on threads: polling, short waits, and misuse."""

import threading

import numpy as np
import pytest

from topocomm import SUM, DeadlineError, TopocommError, run_local

X = np.arange(3.0)


def test_a_short_wait_that_is_over_leaves_the_call_under_way():
    late = threading.Event()

    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        if comm.rank:
            late.wait(20)
            return call.start(X).wait().tolist()
        handle = call.start(X)
        with pytest.raises(DeadlineError, match=r"rank 0: call \d+ is not through after 0.02 s; it is still under way"):
            handle.wait(0.02)
        assert not handle.done
        late.set()
        result = handle.wait()
        assert handle.wait() is result and handle.test() and handle.done
        return result.tolist()

    assert run_local(body, ranks=2) == [[0, 2, 4]] * 2


def test_a_call_under_way_is_not_begun_again_and_its_communicator_not_closed():
    late = threading.Event()

    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        if comm.rank:
            late.wait(20)
        handle = call.start(X)
        if comm.rank == 0:
            with pytest.raises(TopocommError, match="under way; wait for its handle before you begin it again"):
                call(X)
            with pytest.raises(TopocommError, match=r"is under way; wait for its handle before close"):
                comm.close()
            late.set()
        handle.wait()
        return call(X).tolist()

    assert run_local(body, ranks=2) == [[0, 2, 4]] * 2
