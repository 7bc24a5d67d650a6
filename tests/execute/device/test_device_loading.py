"""Kernels are loaded before anything is posted that waits for another rank."""

import time

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.execute.device.test_device_engine import MATRICES
from tests.execute.device_jobs import fake_nccl, run_in
from topocomm import SUM
from topocomm.execute.device import device_folds
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
