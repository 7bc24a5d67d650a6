"""What goes wrong on devices: each is a clear error on every rank, within the time limit, and no group stays open."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from tests.execute.device_jobs import X, call_and_wait, fake_nccl, run_in, run_on_devices
from tests.execute.fake_device import wait_until
from tests.execute.transports.recording_nccl import Misuse
from topocomm import (
    SUM,
    DeadlineError,
    Field,
    MismatchError,
    Operator,
    OperatorError,
    RankFailedError,
    TopocommError,
    run_local,
)
from topocomm.execute.device import device_library as device
from topocomm.execute.device.device_path import DevicePath
from topocomm.execute.device.device_staging import StagedCall


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
        assert "memory: ranks 0, 2: device, rank 1: host" in text


def test_ranks_that_make_different_calls_are_named():
    with fake_nccl(2) as world:
        texts = raised(world, lambda comm: comm.allreduce(torch.ones(8 + comm.rank), SUM), MismatchError)
    assert all("arrays: rank 0: value float32 [8], rank 1: value float32 [9]" in text for text in texts)


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
    assert "rank 0: call 5 (allreduce sum, value float32 [8])" in text
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


def test_waits_of_kernels_are_ended_before_nccl():
    """NCCL waits for what comes before its own on a stream, and that may be such a kernel."""
    ended = []

    class Means:
        def __init__(self, name):
            self.abort = lambda: ended.append(name)

    def body(comm):
        DevicePath(comm.session.waiting, None, Means("wire"), "", Means("peer")).abort()

    run_local(body, ranks=1)
    assert ended == ["peer", "wire"]


def test_arrays_that_do_not_fit_are_refused_and_the_others_told():
    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        if comm.rank == 0:
            with pytest.raises(OperatorError, match=r"x: field 'value' must be torch.float32 \[8\] as prepared"):
                call(torch.ones(9))
        else:
            with pytest.raises(MismatchError, match="rank 0 refused its arrays"):
                call_and_wait(comm, call)

    with fake_nccl(2, patience_s=0.2, stuck="pend") as world:
        run_in(world, body)


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (None, None, "x is missing"),
        (np.ones(8, np.float32), None, "x: field 'value' is on cpu; the call was prepared for"),
        (X.double(), None, "must be torch.float32"),
        (X.clone().requires_grad_(), None, "requires gradients"),
        (X.to_sparse(), None, "is sparse"),
        (X, torch.ones(7), "out: field 'value' must be"),
        (X, torch.ones(1).expand(8), "one place in memory"),
        (X, "input", "lies in the call's send buffer"),
    ],
)
def test_prepared_calls_check_what_they_are_given(x, out, message):
    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        with pytest.raises(OperatorError, match=message):
            call(x, out=call.input if isinstance(out, str) else out)
        return call(X)

    assert torch.equal(run_on_devices(body, 1)[0], X)


def test_out_may_overlap_the_value_and_have_strides():
    def body(comm):
        room = torch.arange(12.0)
        call = comm.prepare("allreduce", like=X, operator=SUM)
        call(room[:8], out=room[4:])
        wide = torch.zeros(8, 2)
        call(X, out=wide[:, 1])
        both = X.clone()
        assert call(both, out=both) is both
        return room, wide, both

    for room, wide, both in run_on_devices(body, 2):
        assert torch.equal(room[4:], torch.arange(8.0) * 2)
        assert torch.equal(wide[:, 1], X * 2)
        assert not wide[:, 0].any()
        assert torch.equal(both, X * 2)


def test_another_stream_waits_for_the_one_that_has_the_arena():
    def body(comm):

        mine = device.device_of.devices[comm.rank]
        call = comm.prepare("allreduce", like=X, operator=SUM)
        first, other = mine.stream(), mine.new_stream()
        call(X)
        with mine.on(other):
            call(X)
            call(X)
        call(X)
        assert [pair for pair in world.waits if pair[0].rank == comm.rank] == [(other, first), (first, other)]
        kept = [entry[2] for entry in world.log if entry[:2] == ("keep", comm.rank)]
        assert kept == [other, first]

    with fake_nccl(2) as world:
        run_in(world, body)


def test_a_call_can_be_captured_asking_nothing_of_the_device():
    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        out = torch.empty(8)
        call(X, out=out)  # the device may not be through with it
        comm.barrier()
        if comm.rank == 0:
            world.capturing = True
        wait_until(lambda: world.capturing)
        for _ in range(2):
            call(X, out=out)
        with pytest.raises(TopocommError, match="cannot be captured"):
            call.start(X)
        here.wait()
        world.capturing = False
        return call(X)

    here = threading.Barrier(2)
    with fake_nccl(2) as world:
        assert all(torch.equal(result, X * 2) for result in run_in(world, body))


def test_memory_that_a_graph_has_recorded_outlives_its_call():
    """A function may prepare a call, record it, and give back the graph only."""

    def record(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        here.wait()
        world.capturing = True
        call(X, out=torch.empty(8))
        here.wait()
        world.capturing = False
        return weakref.ref(call._engine.memory.untyped_storage())

    def body(comm):
        arena = record(comm)
        comm.synchronize()
        gc.collect()
        kept = arena() is not None
        comm.close()
        gc.collect()
        return kept, arena() is None

    here = threading.Barrier(2)
    with fake_nccl(2) as world:
        assert run_in(world, body) == [(True, True)] * 2


def test_handles_run_on_a_stream_of_their_own():
    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        total = comm.prepare("allreduce", like=X.double(), operator=SUM)
        out = torch.empty(8)
        first, second = call.start(X, out=out), total.start(X.double() * comm.rank)
        with pytest.raises(TopocommError, match="is under way"):
            call.start(X)
        assert torch.equal(second.wait(), X.double() * 3)
        assert first.wait() is out
        assert torch.equal(out, X * 3)
        streams = {pair[0] for pair in world.waits if pair[0].rank == comm.rank}
        assert len(streams) == 2
        return call(X)

    with fake_nccl(3) as world:
        assert all(torch.equal(result, X * 3) for result in run_in(world, body))


NUMPY_ONLY = Operator(
    "sum by NumPy",
    (Field("value"),),
    lambda a, b: {"value": np.add(np.asarray(a["value"]), np.asarray(b["value"]))},
    {"value": 0},
    True,
)


@pytest.mark.parametrize("reason", ["no NCCL", "one GPU", "operator", "versions"])
def test_values_are_staged_through_host_memory_where_nothing_else_is_possible(reason, monkeypatch):
    from topocomm.execute.transports.device import nccl_library

    options = {"gpus": [0, 1, 0]} if reason == "one GPU" else {}
    operator = NUMPY_ONLY if reason == "operator" else SUM

    def body(comm):
        x = {"value": X * comm.rank} if reason == "operator" else X * comm.rank
        call = comm.prepare("allreduce", like=x, operator=operator)
        assert isinstance(call, StagedCall)
        assert call.input is None
        for turn in range(3):
            found = call(x)
            assert call._down.asked == turn + 1, "the value had not come to host memory"
            assert call._up.asked == turn, "the result of the call before had not left it"
        handle = call.start(x)
        out = torch.empty(8)
        again = handle.wait()
        given = call(x, out={"value": out} if reason == "operator" else out)
        del given
        root = comm.reduce(x, operator, root=1)
        assert (root is None) == (comm.rank != 1)
        shared = comm.broadcast(X.to(torch.bfloat16) * (comm.rank + 1), root=2)
        assert torch.equal(shared, (X * 3).to(torch.bfloat16))
        with pytest.raises(OperatorError, match="x is missing"):
            call(None)
        values = [r["value"] if isinstance(r, dict) else r for r in (found, again)]
        return [*values, out]

    with fake_nccl(3, **options) as world:
        if reason == "no NCCL":

            def missing():
                raise TopocommError("cupy is not installed")

            monkeypatch.setattr(nccl_library, "load_nccl", missing)
        if reason == "versions":
            world.get_version = lambda: 22703 + world.rank_here()
        for results in run_in(world, body):
            assert all(torch.equal(result, X * 3) for result in results)


@pytest.mark.parametrize(("version", "asked", "allowed"), [(22907, "1", False), (23007, "1", True), (23007, "", False)])
def test_several_ranks_on_a_gpu(version, asked, allowed, monkeypatch):
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", asked)

    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        return call(X), isinstance(call, StagedCall), comm.session.device_path.reason

    for result, staged, why in run_on_devices(body, 3, gpus=[0, 1, 0], version=version):
        assert torch.equal(result, X * 3)
        assert staged is not allowed
        if not allowed:
            assert "ranks 0, 2 give tensors on one GPU (0000:01:00.0), and NCCL takes one rank a GPU" in why


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
