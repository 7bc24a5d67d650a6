"""Messages between two ranks, both in this process."""

import threading
from datetime import timedelta

import pytest

from topocomm import DeadlineError, OperatorError
from topocomm.execute.liveness.recorder import Recorder
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.threads import World

dist = pytest.importorskip("torch.distributed")

import torch  # noqa: E402 - where there is torch

from topocomm.torch.point_to_point import Messages  # noqa: E402


@pytest.fixture
def ends():
    """The ends of a group of two ranks."""
    store, made = dist.HashStore(), {}

    def make(rank):
        waiting = Waiting(World(1).transports()[0], 5.0, str, Recorder(), limit="the group's timeout")
        made[rank] = Messages(store, rank, 2, waiting)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made[0], made[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int16])
def test_a_message_of_any_dtype_and_memory(ends, dtype):
    first, second = ends
    given = torch.arange(6).reshape(2, 3).to(dtype).t()
    got = torch.zeros(3, 4, dtype=dtype)[:, ::2]
    sent, received = first.send_tensor(given, 1, 9), second.receive_tensor(got, 0, 9)
    assert received.wait() and sent.wait() and torch.equal(got, given)


def test_tags_tell_messages_apart_and_any_rank_is_named(ends):
    first, second = ends
    got = [torch.empty(1), torch.empty(1)]
    works = [first.send_tensor(torch.ones(1) * tag, 1, tag) for tag in (1, 2)]
    works.append(second.receive_tensor(got[0], None, 2))
    works.append(second.receive_tensor(got[1], 0, 1))
    assert all(work.wait() for work in works)
    assert [x.item() for x in got] == [2, 1] and works[2].source_rank() == 0


def test_a_message_that_does_not_come_names_its_rank(ends):
    work = ends[0].receive_tensor(torch.empty(1), 1, 0)
    with pytest.raises(DeadlineError, match=r"rank 0: receive from rank 1, tag 0: still waiting after 0.1 s"):
        work.wait(timedelta(milliseconds=100))


def test_peers_are_other_ranks_of_the_group(ends):
    for peer in (0, 2, -1):
        with pytest.raises(OperatorError, match=f"send to rank {peer}.*expected another rank of the group, 0 to 1"):
            ends[0].send_tensor(torch.ones(1), peer, 0)


def test_a_new_limit_is_that_of_collectives_too(ends):
    ends[0]._set_default_timeout(timedelta(seconds=77))
    assert ends[0]._waiting.timeout_s == 77
