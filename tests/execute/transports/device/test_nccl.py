"""What goes wrong in NCCL: an error, a rank it waits for, a graph that keeps it; each within the time limit."""

import threading
import time

import pytest
import torch

from tests.execute.device_jobs import X, call_and_wait, fake_nccl, run_in
from tests.execute.fake_device import wait_until
from topocomm import SUM, DeadlineError, RankFailedError, TopocommError
from topocomm.execute.device import device_library as device
from topocomm.execute.transports.device import nccl


def test_an_error_of_a_device_is_told_at_the_next_call():
    def body(comm):
        comm.allreduce(X, SUM)
        comm.barrier()  # nobody has asked whether the first call is through
        if comm.rank == 1:
            world.failures[1] = "NCCL_ERROR_SYSTEM_ERROR: a peer has gone"
        for _ in range(3):
            comm.allreduce(X, SUM)
        comm.synchronize()

    with fake_nccl(2, patience_s=0.3, stuck="pend") as world:
        texts = [None] * 2

        def ranked(comm):
            with pytest.raises(RankFailedError) as told:
                body(comm)
            texts[comm.rank] = str(told.value)
            with pytest.raises(TopocommError, match="takes no call now"):
                comm.allreduce(X, SUM)

        run_in(world, ranked)
        assert {entry for entry in world.log if entry[0] == "abort"} == {("abort", 0), ("abort", 1)}
    assert "rank 1: NCCL reports NCCL_ERROR_SYSTEM_ERROR: a peer has gone in messages with rank 0;" in texts[1]
    assert "rank 0: stopped, since rank 1: NCCL reports" in texts[0]


@pytest.mark.alone
@pytest.mark.parametrize("what", ["messages", "all-reduce"])
def test_a_library_that_waits_for_a_rank_is_ended_at_the_limit(what, monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "1")
    over = threading.Event()

    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        if comm.rank == 1:
            over.wait(20)
            return
        library, stream = (
            comm.session.device_path.transport.native("allreduce", "float32", "sum"),
            comm.session.device_path.device.stream(),
        )
        wait = {"messages": lambda: call(X), "all-reduce": lambda: library(X, torch.empty_like(X), stream)}[what]
        world.blocked = 0 if what == "messages" else None
        text = r"rank 0: NCCL still waits in messages with rank 1 after 1 s"
        with comm.session.device_path.device.current(), pytest.raises(DeadlineError, match=text):
            wait()
        over.set()

    with fake_nccl(2) as world:
        run_in(world, body)
        assert ("abort", 0) in world.log


def test_a_graph_that_is_kept_does_not_hold_up_the_end(monkeypatch, capfd):
    monkeypatch.setattr(nccl, "END_S", 0.3)
    kept = []

    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        kept.append(device.device_of(X).graph(lambda: call(X)))
        began_s = time.monotonic()
        comm.close()
        return time.monotonic() - began_s

    with fake_nccl(2) as world:
        assert max(run_in(world, body)) < 5
        assert "topocomm: rank 1: NCCL does not end after 0.3 s" in capfd.readouterr().err
        assert not [entry for entry in world.log if entry[0] == "destroy"]
        kept.clear()
        wait_until(lambda: {("destroy", 0), ("destroy", 1)} <= set(world.log))


def test_nccl_is_ended_where_no_thread_can_be_started(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ended = []
    nccl.end_aside(lambda: ended.append(True), 0, 1.0)
    assert ended == [True]


def test_a_message_that_fails_leaves_no_group_open():
    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        if comm.rank == 0:
            world.send_error = 0
            with pytest.raises(RankFailedError, match=r"NCCL reports NCCL_ERROR_INVALID_ARGUMENT.* with rank 1"):
                call(X)
            assert world.open[threading.get_ident()] == []
        else:
            with pytest.raises(RankFailedError, match="stopped, since rank 0"):
                call_and_wait(comm, call)

    with fake_nccl(2, patience_s=0.2, stuck="pend") as world:
        run_in(world, body)


def test_a_status_without_a_name_in_cupy_is_an_error_too(monkeypatch):
    def body(comm):
        comm.allreduce(X, SUM)
        comm.synchronize()
        comm.barrier()
        handle = comm.session.device_path.transport._handle
        if comm.rank == 0:
            handle.check_async_error = lambda: {}[7]
        with pytest.raises(RankFailedError, match="NCCL reports status 7" if comm.rank == 0 else "status 7"):
            call_and_wait(comm, lambda x: comm.allreduce(x, SUM))

    with fake_nccl(2, patience_s=0.2, stuck="pend") as world:
        run_in(world, body)
