"""The limit of what cannot be given up. Shrinking itself is tried under mpirun, in test_faults."""

import threading
from types import SimpleNamespace

from topocomm.execute.liveness.shrinking import ending_after


def test_a_process_that_does_not_come_back_ends_and_says_for_whom_it_waited(capfd):
    ended = threading.Event()
    transport = SimpleNamespace(rank=2, end_process=ended.set)
    with ending_after(transport, 0.05, [0, 2, 3]):
        assert ended.wait(10)
    assert capfd.readouterr().err.startswith("rank 2: shrink(): still waiting for rank 0, 3 after 0.05 s (limit: ")


def test_a_process_that_comes_back_goes_on(capfd):
    ended = threading.Event()
    with ending_after(SimpleNamespace(rank=0, end_process=ended.set), 0.05, [0, 1]):
        pass
    assert not ended.wait(0.2)
    assert capfd.readouterr().err == ""
