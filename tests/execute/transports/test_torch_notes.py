"""Notes over torch process groups: a death is told to all, and closed groups leave no thread."""

import threading
from pathlib import Path

import pytest

from tests.torch_jobs import by_hand
from topocomm.execute.transports.torch_group import TorchGroupTransport
from topocomm.execute.transports.transport import FAILURE_TAG

torch = pytest.importorskip("torch")
PROGRAMS = Path(__file__).parents[1] / "torch_programs"
pytestmark = pytest.mark.alone


def faults(*args):
    """What each rank was told, by (rank, what it did), and the exit statuses."""
    jobs = by_hand(3, [PROGRAMS / "faults.py", *args])
    told = {}
    for rank, (stdout, stderr, _) in enumerate(jobs):
        assert "terminate called" not in stderr  # a thread that outlived the interpreter
        for line in stdout.splitlines():
            told.setdefault(rank, []).append(line.removeprefix(f"[{rank}] "))
    return told, [status for _, _, status in jobs]


@pytest.mark.parametrize(("how", "lost"), [("shared", 1), pytest.param("messages", 0, marks=pytest.mark.long)])
def test_a_killed_rank_is_named_whatever_a_rank_waits_for(how, lost):
    """Also if it was the host of the key-value store (rank 0)."""
    told, statuses = faults("kill", how, lost)
    assert statuses[lost] == -9
    for rank in {0, 1, 2} - {lost}:
        assert statuses[rank] == 0
        for line, what in zip(told[rank], ("call", "notes", "idle"), strict=False):
            by_word = f"{what} RankFailedError: rank {rank}: stopped, since rank {lost}: it ended"
            by_watch = f"{what} RankFailedError: rank {rank}: rank {lost} has ended"
            assert line.startswith((by_word, by_watch)), line
            assert "Connection closed by peer" in line or line.startswith(by_watch)
        assert float(told[rank][3].split()[1]) < 15  # the deadline is 20 s for each


@pytest.mark.parametrize("size", [1, 2, 3])
def test_closed_groups_leave_no_thread(size):
    """One that torch gives back to Python while the interpreter ends would abort the process."""
    before = set(threading.enumerate())

    def work(rank, store):
        transport = TorchGroupTransport(store, rank, size, 20.0)
        if size > 1:
            transport.post((rank + 1) % size, 7, b"note")
        transport.close(20.0)
        assert transport.take(rank, FAILURE_TAG) is None  # nobody is missed in a group of one

    for _ in range(5):
        store = torch.distributed.HashStore()
        threads = [threading.Thread(target=work, args=(rank, store)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(threading.enumerate()) <= before
