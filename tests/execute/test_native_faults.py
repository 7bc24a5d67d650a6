"""What goes wrong in calls by a library's own collective: ranks that do not come, errors, values that do not fit."""

import threading

import pytest
import torch

from tests.execute.device_jobs import call_and_wait, fake_nccl, run_in
from tests.execute.native_jobs import always_chosen, machine, value
from topocomm import SUM, DeadlineError, OperatorError, RankFailedError


@pytest.mark.alone
def test_a_library_that_waits_for_a_rank_is_ended_at_the_limit(monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "1")
    over = threading.Event()

    def body(comm):
        x = value(comm.rank, "float32")
        call = comm.prepare("allreduce", like=x, operator=SUM)
        if comm.rank == 1:
            over.wait(20)
            return
        with pytest.raises(DeadlineError, match=r"rank 0: NCCL still waits in messages with rank 1 after 1 s"):
            call(x)
        over.set()

    always_chosen(monkeypatch)
    with fake_nccl(2) as world:
        run_in(world, body, topology=machine(2))
        assert ("abort", 0) in world.log


@pytest.mark.alone
def test_an_error_ends_a_wait(monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "20")
    over = threading.Event()

    def body(comm):
        x = value(comm.rank, "float32")
        call = comm.prepare("allreduce", like=x, operator=SUM)
        if comm.rank == 1:
            over.wait(30)
            return
        handle = call.start(x)
        world.failures[0] = "NCCL_ERROR_SYSTEM_ERROR: a peer has gone"
        with pytest.raises(RankFailedError, match="a peer has gone in messages with rank 1;"):
            handle.wait()
        over.set()

    always_chosen(monkeypatch)
    with fake_nccl(2, patience_s=0.2, stuck="pend") as world:
        run_in(world, body, topology=machine(2))


def test_an_error_of_the_library_names_the_ranks(monkeypatch):
    def body(comm):
        x = value(comm.rank, "float32")
        call = comm.prepare("allreduce", like=x, operator=SUM)
        call(x)
        comm.synchronize()
        comm.barrier()
        if comm.rank == 1:
            world.failures[1] = "NCCL_ERROR_SYSTEM_ERROR: a peer has gone"
        with pytest.raises(RankFailedError) as told:
            call_and_wait(comm, lambda _: call(x))
        return str(told.value)

    always_chosen(monkeypatch)
    with fake_nccl(2, patience_s=0.3, stuck="pend") as world:
        texts = run_in(world, body, topology=machine(2))
    assert "rank 1: NCCL reports NCCL_ERROR_SYSTEM_ERROR: a peer has gone" in texts[1]


def test_values_that_do_not_fit_are_refused(monkeypatch):
    def body(comm):
        call = comm.prepare("allreduce", like=torch.ones(8), operator=SUM)
        assert torch.equal(call(torch.ones(8)), torch.full((8,), 2.0))
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(OperatorError, match="must be"):
                call(torch.ones(9))
            with pytest.raises(OperatorError, match="send buffer"):
                call(torch.ones(8), out=call.input)

    always_chosen(monkeypatch)
    with fake_nccl(2) as world:
        run_in(world, body, topology=machine(2))
