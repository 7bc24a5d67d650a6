"""Faults and misuse over torch process groups: real processes, gloo."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.torch_jobs import FAULTS, by_hand, environment, faults
from topocomm import DeadlineError
from topocomm.execute.transports.torch_group import TorchGroupTransport

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed")


pytestmark = pytest.mark.alone


@pytest.mark.long
def test_disagreement_is_an_error_on_every_rank():
    """In shared memory, and between hosts, where ranks find out by what they tell each other."""
    told, statuses = faults("disagree", "shared")
    assert statuses == [0, 0, 0]
    for rank in range(3):
        for shape, disorder, barrier in (told[rank][:3], told[rank][3:]):
            assert shape.startswith(f"shape MismatchError: rank {rank}: ranks disagree"), shape
            assert "rank 1: float64 [7]" in shape
            assert "disorder MismatchError" in disorder, disorder
            assert "call 3 (allreduce sum) is another one on rank" in disorder
            assert "rank 1: float64 [4]" in disorder and ": float64 [5]" in disorder
            assert "barrier MismatchError" in barrier, barrier
            assert "all ranks must make the same calls in the same order" in barrier


@pytest.mark.long
def test_a_rank_that_raises_ends_the_others_waiting():
    jobs = by_hand(3, [FAULTS, "raise", "shared"])
    assert [status for _, _, status in jobs] == [0, 1, 0]
    assert "rank 1 of 3 failed:" in jobs[1][1]
    assert "KeyError: 'planted'" in jobs[1][1]
    for rank in (0, 2):
        expected = f"[{rank}] RankFailedError: rank {rank}: stopped, since rank 1 failed: KeyError: 'planted'\n"
        assert jobs[rank][0] == expected


@pytest.mark.long
def test_a_stopped_rank_is_named_at_the_deadline():
    lost = 0
    told, _ = faults("stop", "messages", lost)
    for rank in {0, 1, 2} - {lost}:
        for line, what in zip(told[rank], ("call", "notes", "idle"), strict=False):
            assert line.startswith(f"{what} DeadlineError: rank {rank}: "), line
            assert f"still waiting for rank {lost}" in line
            others = {0, 1, 2} - {rank, lost}
            assert not any(f"waiting for rank {other}" in line for other in others)


SINGLE = """
import sys, torch.distributed as dist, topocomm
from torch.distributed.device_mesh import init_device_mesh
def say(*args):
    try:
        topocomm.Communicator.from_torch(*args)
    except topocomm.TopocommError as error:
        print(type(error).__name__, error)
say()
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
say("gloo")
say(init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b")))
say(dist.GroupMember.NON_GROUP_MEMBER)
kept, dist.get_backend_config = dist.get_backend_config, lambda group: "cuda:nccl"
say()
dist.get_backend_config = lambda group: "cpu:gloo,cuda:nccl"
say()
sys.modules["torch"] = sys.modules["torch.distributed"] = None
say()
with topocomm.init() as comm:  # the group of one rank
    print(comm.size, comm.session.transport.name)
"""


@pytest.mark.long
def test_groups_that_cannot_be_used_are_refused_with_the_remedy():
    job = subprocess.run(
        [sys.executable, "-c", SINGLE], capture_output=True, text=True, timeout=60, env=environment(), check=False
    )
    lines = job.stdout.splitlines()
    expected = [
        ("not initialised", "init_process_group('gloo')", "topocomm.init()"),
        ("expected a torch.distributed.ProcessGroup, a 1-D DeviceMesh or None, got str",),
        ("expected a 1-D DeviceMesh, got one of shape (1, 1)", "mesh[name]", "('a', 'b')"),
        ("rank 0 of the default group, is not a member",),
        ("the group has only the backend cuda:nccl", "torch.distributed.new_group(backend='gloo')"),
        ("MissingExtraError the torch transport needs torch", "pip install 'torch"),
        ("1 threads",),
    ]
    assert len(lines) == len(expected), (lines, job.stderr[-2000:])
    for line, parts in zip(lines, expected, strict=True):
        assert all(part in line for part in parts), line


def test_a_member_that_never_comes_is_told_at_the_deadline():
    store = torch.distributed.HashStore()
    group = SimpleNamespace(rank=lambda: 1, size=lambda: 3, get_group_store=lambda: store)
    store.add("topocomm/arrivals", 1)
    with pytest.raises(DeadlineError, match=r"rank 1: .*from_torch is collective, and only 2 of 3 ranks .* within 0.1"):
        TorchGroupTransport.of_group(group, 0.1)
