"""What goes wrong on devices: each is a clear error on every rank, within the time limit, and no group stays open."""

import threading

import numpy as np
import pytest
import torch

from tests.execute.device_jobs import X, fake_nccl, run_in, run_on_devices
from tests.execute.transports.recording_nccl import Misuse
from topocomm import (
    SUM,
    DeadlineError,
    MismatchError,
    RankFailedError,
    TopocommError,
    run_local,
)
from topocomm.execute.device.device_path import DevicePath


def raised(world, body, error):
    """What each rank raises."""
    texts = [None] * world.size

    def ranked(comm):
        with pytest.raises(error) as told:
            body(comm)
        texts[comm.rank] = str(told.value)

    run_in(world, ranked)
    return texts


def test_host_values_on_some_ranks_are_named():
    with fake_nccl(3) as world:
        texts = raised(
            world, lambda comm: comm.allreduce(np.ones(8, np.float32) if comm.rank == 1 else X, SUM), MismatchError
        )
    for rank, text in enumerate(texts):
        assert f"rank {rank}: ranks disagree" in text
        assert "memory (ranks 0, 2: device; rank 1: host)" in text


def test_ranks_that_make_different_calls_are_named():
    with fake_nccl(2) as world:
        texts = raised(world, lambda comm: comm.allreduce(torch.ones(8 + comm.rank), SUM), MismatchError)
    assert all("call they make: value (rank 0: float32 [8]; rank 1: float32 [9])" in text for text in texts)


def test_an_id_that_fails_on_rank_0_is_an_error_on_all():
    with fake_nccl(3) as world:
        world.id_error = "NCCL_ERROR_SYSTEM_ERROR: no network interface"
        texts = raised(world, lambda comm: comm.allreduce(X, SUM), TopocommError)
    for rank, text in enumerate(texts):
        assert f"rank {rank}: NCCL cannot be set up: rank 0 makes no unique id: NcclError" in text
        assert "no network interface" in text


def test_a_rank_that_cannot_be_made_ends_the_waiting_of_the_others():
    with fake_nccl(3) as world:
        world.init_error = 1
        texts = raised(world, lambda comm: comm.allreduce(X, SUM), TopocommError)
        with world.wake:
            world.patience_s = 0.0
            world.wake.notify_all()
    assert "rank 1: NCCL cannot be set up: NCCL_ERROR_SYSTEM_ERROR" in texts[1]
    assert all("rank 1: NCCL cannot be set up" in text for text in texts)


@pytest.mark.parametrize("signed", [False, True])
def test_ids_of_every_cupy_are_taken(signed):
    results = run_on_devices(lambda comm: comm.allreduce(X, SUM), 2, signed_id=signed)
    assert all(torch.equal(result, X * 2) for result in results)


@pytest.mark.alone
@pytest.mark.parametrize("where", ["synchronize", "next call"])
def test_a_rank_that_does_not_come_is_named_at_the_limit(where, monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "1")
    late = threading.Event()

    def body(comm):
        comm.allreduce(X, SUM)
        comm.synchronize()
        if comm.rank == 1:
            late.wait(20)
            return None
        with pytest.raises(DeadlineError) as told:
            go_on(comm)
        late.set()
        return str(told.value)

    def go_on(comm):
        comm.allreduce(X, SUM)
        if where == "synchronize":
            comm.synchronize()
        while True:
            comm.allreduce(X, SUM)

    with fake_nccl(2, patience_s=0.05, stuck="pend") as world:
        text = run_in(world, body)[0]
        assert ("abort", 0) in world.log
    assert "still waiting for rank 1 (32 bytes from it)" in text
    assert "rank 0: call 2 (allreduce sum, value float32 [8])" in text
    assert "after 1 s (limit: TOPOCOMM_TIMEOUT_S)" in text


def test_others_are_told_of_an_error_before_nccl_is_aborted():
    """To abort may take long."""
    told, seen = threading.Event(), []

    class Means:
        def abort(self):
            seen.append(told.wait(5))

    def body(comm):
        if comm.rank == 1:
            comm.session.device_path = DevicePath(comm.session.waiting, None, Means(), "")
            comm.session.fail(RankFailedError("a disk is full"))
            return
        with pytest.raises(RankFailedError, match="a disk is full"):
            comm.barrier()
        told.set()

    run_local(body, ranks=2)
    assert seen == [True]


def test_a_misuse_is_not_swallowed():
    """The doubles themselves: what they find reaches the test."""

    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        world.groupStart()
        with pytest.raises(Misuse):
            call(X)

    with fake_nccl(2, patience_s=0.2) as world:
        with pytest.raises(AssertionError):
            run_in(world, body)
        assert "while a group is open" in world.misuse[0]
