"""Prepared calls on devices: kernels are loaded before anything waits, values are checked, streams follow."""

import threading
import time

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.execute.device.test_device_engine import MATRICES
from tests.execute.device_jobs import X, call_and_wait, fake_nccl, run_in, run_on_devices
from tests.execute.fake_device import wait_until
from topocomm import (
    SUM,
    MismatchError,
    OperatorError,
    TopocommError,
)
from topocomm.execute.device import device_folds
from topocomm.execute.device import device_library as device
from topocomm.execute.device.device_call import DeviceCall
from topocomm.execute.device.device_staging import StagedCall

RANKS = 3
NO_KERNELS = ("aten::empty", "aten::new_empty", "aten::set_", "aten::_unsafe_view")


class Loading(TorchDispatchMode):
    """Plays a device that loads a kernel when a rank first runs it, and writes that into the log of the world.

    Views need no kernel, nor do copies of dense memory. After `seal` a rank may load nothing.
    """

    def __init__(self, world, rank, takes_s=0.0):
        super().__init__()
        self.world, self.rank, self.takes_s = world, rank, takes_s
        self.loaded, self.sealed, self.late = set(), False, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kernel = None if function.is_view else self.kernel(function._schema.name, args)
        if kernel is not None and kernel not in self.loaded:
            time.sleep(self.takes_s)
            self.loaded.add(kernel)
            self.world.log.append(("load", self.rank, kernel))
            if self.sealed:
                self.late.append(kernel)
        return function(*args, **(kwargs or {}))

    def kernel(self, name, args):
        if name.startswith(NO_KERNELS):
            return None
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        dtypes = tuple(x.dtype for x in tensors)
        if name == "aten::fill_" and dtypes == (torch.uint8,):  # the poison of tests
            return None
        if name in ("aten::copy_", "aten::clone"):
            dense = all(x.is_contiguous() for x in tensors) and len({x.shape for x in tensors}) == 1
            return None if dense and len(set(dtypes)) == 1 else ("copy", dtypes[-1])
        return name, dtypes


def value(rank):
    return torch.arange(12.0).view(4, 3) + rank


def strided(x):
    return x.mT.contiguous().mT


CALLS = {
    "allreduce": {"operator": SUM},
    "reduce": {"operator": SUM},
    "broadcast": {},
    "reduce_scatter": {"operator": SUM},
    "allgather": {},
    "gather": {},
    "scatter": {},
    "alltoall": {},
    "scan": {"operator": SUM},
    "exscan": {"operator": SUM},
}


def in_world(ranks, body, **options):
    """The world, and what `body(comm, loading)` returns on each rank; the last rank's device takes its time to load.

    As on a GPU that has a kernel for the operator, nothing is tried before the ranks agree.
    """
    with fake_nccl(ranks, **options) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_folds, "_probe", lambda *told: None)

        def ranked(comm):
            loading = Loading(world, comm.rank, 0.3 if comm.rank == ranks - 1 else 0.0)
            return body(comm, loading)

        return world, run_in(world, ranked)


def prepared_and_called(comm, loading, name, x, **options):
    """What a rank loads late, and the call."""
    turned = strided(x)
    with loading:
        call = comm.prepare(name, like=x, **options)
        loading.sealed = True
        made = call(x)
        call(turned, out=None if made is None else strided(torch.empty_like(made)))
        comm.synchronize()
    return loading.late, type(call)


def posted_after_all_was_loaded(world):
    kinds = [entry[0] for entry in world.log]
    posts = [at for at, kind in enumerate(kinds) if kind in ("send", "recv")]
    loads = [at for at, kind in enumerate(kinds) if kind == "load"]
    return bool(posts) and bool(loads) and max(loads) < min(posts)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_loads_nothing_that_was_not_loaded_when_it_was_prepared(name):
    body = lambda comm, loading: prepared_and_called(comm, loading, name, value(comm.rank), **CALLS[name])  # noqa: E731
    world, found = in_world(RANKS, body)
    assert found == [([], DeviceCall)] * RANKS
    assert posted_after_all_was_loaded(world)


def test_an_operator_of_ones_own():
    x = torch.eye(2, dtype=torch.float64).expand(5, 2, 2).contiguous()

    def body(comm, loading):
        with loading:
            call = comm.prepare("allreduce", like={"m": x}, operator=MATRICES)
            loading.sealed = True
            call({"m": x})
        return loading.late, {name for name, _ in loading.loaded}

    world, found = in_world(RANKS, body)
    for late, loaded in found:
        assert not late and "aten::bmm" in loaded
    assert posted_after_all_was_loaded(world)


def test_shards_of_canonical_order():
    def body(comm, loading):
        x = torch.ones(2, 4, 3)
        shards = 2 * comm.rank, 2 * comm.rank + 2
        return prepared_and_called(comm, loading, "allreduce", x, operator=SUM, order="canonical", shards=shards)

    world, found = in_world(RANKS, body)
    assert found == [([], DeviceCall)] * RANKS
    assert posted_after_all_was_loaded(world)


def test_shards_of_one_rank():
    """Nothing is folded but them."""

    def body(comm, loading):
        x = torch.ones(6, 4, 3)
        return prepared_and_called(comm, loading, "allreduce", x, operator=SUM, order="canonical", shards=(0, 6))

    _, found = in_world(1, body)
    assert found == [([], DeviceCall)]


def test_values_that_are_staged():
    def body(comm, loading):
        return prepared_and_called(comm, loading, "allreduce", value(comm.rank), operator=SUM)

    _, found = in_world(RANKS, body, gpus=[0] * RANKS)
    assert found == [([], StagedCall)] * RANKS


def test_ranks_that_agree_on_nothing_meet_all_the_same(monkeypatch):
    monkeypatch.setenv("TOPOCOMM_CHECK", "never")
    body = lambda comm, loading: prepared_and_called(comm, loading, "scan", value(comm.rank), operator=SUM)  # noqa: E731
    world, found = in_world(RANKS, body)
    assert found == [([], DeviceCall)] * RANKS
    assert posted_after_all_was_loaded(world)


def raised(world, body, error):
    """What each rank raises."""
    texts = [None] * world.size

    def ranked(comm):
        with pytest.raises(error) as told:
            body(comm)
        texts[comm.rank] = str(told.value)

    run_in(world, ranked)
    return texts


def test_arrays_that_do_not_fit_are_refused_and_the_others_told():
    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        if comm.rank == 0:
            with pytest.raises(OperatorError, match=r"x must be torch.float32 \[8\] as prepared"):
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
        (np.ones(8, np.float32), None, "x is on cpu; the call was prepared for"),
        (X.double(), None, "must be torch.float32"),
        (X.clone().requires_grad_(), None, "requires gradients"),
        (X.to_sparse(), None, "is sparse"),
        (X, torch.ones(7), "out must be"),
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
