"""Calls by a library's own collective: results, what the library is asked for, and what keeps the schedule."""

import numpy as np
import pytest
import torch

from tests.execute.device_jobs import fake_nccl, run_in, run_on_devices
from tests.execute.native_jobs import always_chosen, machine, run_natively, value
from tests.thinning import alternating
from topocomm import (
    ARGMAX,
    MAX,
    MIN,
    PROD,
    SUM,
    Field,
    MismatchError,
    Operator,
    Plan,
    TopocommError,
)
from topocomm.execute.device import device_library as device
from topocomm.execute.device.device_engine import DeviceEngine, NativeEngine
from topocomm.execute.transports.device import nccl_library

RANKS = (2, 3, 8)
OWN_SUM = Operator("sum", (Field("value"),), lambda a, b: {"value": a["value"] + b["value"]}, {"value": 0}, True)
FLOATS = ("float16", "bfloat16", "float32", "float64")
WHOLE = ("int8", "uint8", "int32", "int64")
FOLDS = {"sum": (SUM, torch.sum), "prod": (PROD, torch.prod), "max": (MAX, torch.amax), "min": (MIN, torch.amin)}


def fold(name, dtype, ranks, shape=(24, 3)):
    every = torch.stack([value(rank, dtype, shape) for rank in range(ranks)])
    return FOLDS[name][1](every.double(), dim=0).to(getattr(torch, dtype))


@pytest.mark.parametrize(("name", "ranks"), alternating(FOLDS, RANKS))
def test_what_the_library_reduces(name, ranks, monkeypatch):
    operator, rows = FOLDS[name][0], 8 * ranks
    dtypes = WHOLE if name in ("max", "min") else FLOATS + WHOLE

    def body(comm):
        results = []
        for dtype in dtypes:
            x = value(comm.rank, dtype, (rows, 3))
            before = x.clone()
            results.append((comm.allreduce(x, operator), comm.reduce_scatter(x, operator), comm.allgather(x)))
            assert torch.equal(x, before)
        return results

    results, asked = run_natively(body, ranks, monkeypatch)
    expected = []
    for number, dtype in enumerate(dtypes):
        whole = fold(name, dtype, ranks, (rows, 3))
        every = torch.cat([value(rank, dtype, (rows, 3)) for rank in range(ranks)])
        for rank in range(ranks):
            reduced, part, gathered = results[rank][number]
            assert torch.equal(reduced, whole) and reduced.dtype == whole.dtype
            assert torch.equal(part, whole[8 * rank : 8 * rank + 8])
            assert torch.equal(gathered, every)
            expected += [("allReduce", rank, rows * 3), ("reduceScatter", rank, rows * 3)]
            expected.append(("allGather", rank, rows * 3 * every.element_size()))
    assert sorted(asked) == sorted(expected)


def kept(comm, name, **wanted):
    call = comm.prepare(name, **wanted)
    assert isinstance(call._engine, DeviceEngine) and not call.plan.native_call and call.moved_by == "nccl"
    return call(wanted["like"])


def test_what_keeps_the_schedule(monkeypatch):
    def body(comm):
        x = value(comm.rank, "float32")
        plan = comm.explain("allreduce", like=x, operator=SUM)
        assert plan.native_call == "ncclAllReduce"
        results = [
            kept(comm, "allreduce", like=x, operator=SUM, plan=plan),
            kept(comm, "allreduce", like=x, operator=SUM, order="canonical"),
            kept(comm, "allreduce", like=x, operator=OWN_SUM),
            kept(comm, "reduce_scatter", like=x, operator=SUM, rows=[24, 0, 0])[:0],
        ]
        kept(comm, "scan", like=x, operator=SUM)
        kept(comm, "broadcast", like=x)
        kept(comm, "allreduce", like={"value": x[:, 0], "index": torch.arange(24)}, operator=ARGMAX)
        kept(comm, "allreduce", like=x, operator=MAX)
        kept(comm, "allreduce", like=x.to(torch.complex64), operator=SUM)
        kept(comm, "allgather", like={"a": x, "b": x})
        kept(comm, "allgather", like=x[: comm.rank])
        kept(comm, "allreduce", like=x[:0], operator=SUM)
        return results

    results, asked = run_natively(body, 3, monkeypatch)
    assert not asked
    for found in results:
        assert all(torch.equal(one, fold("sum", "float32", 3)) for one in found[:3])


def test_a_plan_that_is_given_says_what_is_executed(monkeypatch, tmp_path):
    def body(comm):
        x = value(comm.rank, "float32")
        plan = comm.explain("allreduce", like=x, operator=SUM)
        file = tmp_path / f"{comm.rank}.json"
        plan.save(file)
        call = comm.prepare("allreduce", like=x, operator=SUM, plan=Plan.load(file))
        assert call.plan.native is None and call.plan.schedule.rounds == plan.schedule.rounds
        own = comm.prepare("allreduce", like=x, operator=SUM)
        assert own.plan.digest == plan.digest and own.moved_by == "ncclAllReduce"
        assert comm.explain("allreduce", like=x, operator=SUM) is own.plan
        return call.plan.digest != plan.digest

    results, _ = run_natively(body, 2, monkeypatch)
    assert results == [True, True]


def test_ranks_that_choose_differently_are_told(monkeypatch):
    def body(comm):
        x = value(comm.rank, "float32")
        plan = comm.explain("allreduce", like=x, operator=SUM)
        with pytest.raises(MismatchError, match=r"plan \(rank 0: .*; rank 1: "):
            comm.prepare("allreduce", like=x, operator=SUM, plan=plan if comm.rank else None)

    run_natively(body, 2, monkeypatch)


def test_out_in_place_and_odd_strides(monkeypatch):
    def body(comm):
        found, x = [], value(comm.rank, "float32")
        call = comm.prepare("allreduce", like=x, operator=SUM)
        assert isinstance(call._engine, NativeEngine)
        out = torch.empty_like(x)
        assert call(x, out=out) is out
        found.append(out)
        same = x.clone()
        assert call(same, out=same) is same
        found.append(same)
        wide = torch.zeros(24, 6)
        wide[:, ::2] = x
        found.append(call(wide[:, ::2]))
        strided = torch.zeros(3, 24).t()
        assert call(x, out=strided) is strided
        found.append(strided)
        memory = torch.zeros(25 * 3)
        memory[:72].view(24, 3).copy_(x)
        found.append(call(memory[:72].view(24, 3), out=memory[3:].view(24, 3)))  # they overlap in part
        assert call.input.shape == x.shape and call.input is call.input
        call.input.copy_(x)
        found.append(call(call.input))
        return found

    results, asked = run_natively(body, 3, monkeypatch)
    for found in results:
        assert len(found) == 6
        for one in found:
            assert torch.equal(one, fold("sum", "float32", 3))
    assert len(asked) == 18


def test_parts_in_place_are_copied_first(monkeypatch):
    def body(comm):
        x = value(comm.rank, "int64")
        memory = x.clone()
        part = comm.prepare("reduce_scatter", like=x, operator=SUM)(memory, out=memory[12 * comm.rank :][:12])
        whole = torch.zeros(48, 3, dtype=torch.int64)
        whole[24 * comm.rank :][:24] = x
        return part, comm.prepare("allgather", like=x)(whole[24 * comm.rank :][:24], out=whole)

    results, _ = run_natively(body, 2, monkeypatch)
    for rank, (part, gathered) in enumerate(results):
        assert torch.equal(part, fold("sum", "int64", 2)[12 * rank :][:12])
        assert torch.equal(gathered, torch.cat([value(0, "int64"), value(1, "int64")]))


@pytest.mark.parametrize("like", [torch.ones(6, dtype=torch.bool), torch.ones(6, dtype=torch.complex128)])
def test_an_allgather_takes_any_dtype(like, monkeypatch):
    results, asked = run_natively(lambda comm: comm.allgather(like * (comm.rank == 1)), 2, monkeypatch)
    assert torch.equal(results[0], torch.cat([like * False, like * True]))
    assert {count for _, _, count in asked} == {6 * like.element_size()}


def test_nothing_is_allocated_in_calls(monkeypatch):
    always_chosen(monkeypatch)
    with fake_nccl(2) as world:
        devices = device.device_of.devices

        def body(comm):
            x = value(comm.rank, "float32")
            call, out = comm.prepare("allreduce", like=x, operator=SUM), torch.empty_like(x)
            before = devices[comm.rank].allocated
            for turn in range(100):
                call(x + turn, out=out)
            assert torch.equal(out, fold("sum", "float32", 2) + 2 * 99)
            assert devices[comm.rank].allocated == before

        run_in(world, body, topology=machine(2))


def test_handles_and_graphs(monkeypatch):
    def body(comm):
        x = value(comm.rank, "float32")
        total = comm.prepare("allreduce", like=x, operator=SUM)
        gather = comm.prepare("allgather", like=x)
        first, second = total.start(x), gather.start(x)
        while not second.test():
            pass
        found = [first.wait(timeout_s=20), second.wait()]
        out = torch.empty_like(x)
        graph = device.device_of(x).graph(lambda: total(x, out=out))
        assert total.in_graphs and len(comm.session.device_path.transport._handle.graphs) == 1, (
            "NCCL knows that a graph holds its call"
        )
        x += 1
        graph()
        comm.synchronize()
        return [*found, out.clone()]

    results, _ = run_natively(body, 3, monkeypatch)
    for whole, gathered, replayed in results:
        assert torch.equal(whole, fold("sum", "float32", 3))
        assert torch.equal(gathered, torch.cat([value(rank, "float32") for rank in range(3)]))
        assert torch.equal(replayed, whole + 3)


def test_a_capture_asks_nothing_of_the_device(monkeypatch):
    def body(comm):
        x = value(comm.rank, "float32")
        call, out = comm.prepare("allreduce", like=x, operator=SUM), torch.empty_like(x)
        call(x, out=out)
        comm.synchronize()
        comm.barrier()
        if comm.rank == 0:
            world.capturing = True
        comm.barrier()
        call(x, out=out)
        comm.barrier()
        world.capturing = False
        comm.barrier()
        return out

    always_chosen(monkeypatch)
    with fake_nccl(2) as world:
        for out in run_in(world, body, topology=machine(2)):
            assert torch.equal(out, fold("sum", "float32", 2))


def test_parts_of_a_communicator(monkeypatch):
    def body(comm):
        part = comm.split(comm.rank % 2, key=-comm.rank)
        x = value(comm.rank, "float32")
        call = part.prepare("allreduce", like=x, operator=SUM)
        assert call.moved_by == "ncclAllReduce"
        return call(x), part.allgather(x)

    results, _ = run_natively(body, 4, monkeypatch)
    for rank, (total, gathered) in enumerate(results):
        members = (2, 0) if rank % 2 == 0 else (3, 1)
        assert torch.equal(total, value(members[0], "float32") + value(members[1], "float32"))
        assert torch.equal(gathered, torch.cat([value(other, "float32") for other in members]))


def test_values_in_host_memory_know_nothing_of_it(monkeypatch):
    def body(comm):
        x = value(comm.rank, "float32").numpy()
        plan = comm.explain("allreduce", like=x, operator=SUM)
        return plan.native, comm.allreduce(x, SUM)

    results, asked = run_natively(body, 2, monkeypatch)
    assert not asked
    for told, total in results:
        assert told is None
        np.testing.assert_array_equal(total, fold("sum", "float32", 2).numpy())


def test_without_nccl_the_schedule_runs(monkeypatch):
    def missing():
        raise TopocommError("cupy is not installed")

    def body(comm):
        x = value(comm.rank, "float32")
        total = comm.allreduce(x, SUM)
        assert comm.explain("allreduce", like=x, operator=SUM).native is None
        return total

    always_chosen(monkeypatch)
    with fake_nccl(2) as world:
        monkeypatch.setattr(nccl_library, "load_nccl", missing)
        for total in run_in(world, body, topology=machine(2)):
            assert torch.equal(total, fold("sum", "float32", 2))


def test_a_cupy_without_a_dtype_keeps_the_schedule(monkeypatch):
    def body(comm):
        x = value(comm.rank, "bfloat16")
        call = comm.prepare("allreduce", like=x, operator=SUM)
        return call.moved_by, comm.prepare("allreduce", like=x.float(), operator=SUM).moved_by, call(x)

    always_chosen(monkeypatch)
    with fake_nccl(2) as world:
        world.NCCL_BFLOAT16 = None
        for moved, other, total in run_in(world, body, topology=machine(2)):
            assert (moved, other) == ("nccl", "ncclAllReduce")
            assert torch.equal(total, fold("sum", "bfloat16", 2))


def test_the_planners_own_choice_is_executed():
    def body(comm):
        calls = [comm.prepare("allreduce", like=torch.ones(rows), operator=SUM) for rows in (16, 1 << 20)]
        told = [comm.explain("allreduce", like=torch.ones(rows), operator=SUM).native.chosen for rows in (16, 1 << 20)]
        return [call.moved_by for call in calls], told

    for found in run_on_devices(body, 8, topology=machine(8)):
        assert found == (["nccl", "ncclAllReduce"], [False, True])


def test_a_call_that_one_kernel_runs_stays_with_it(monkeypatch):
    def body(comm):
        x = value(comm.rank, "float32")
        assert comm.explain("allreduce", like=x, operator=SUM).native.chosen
        comm.barrier()
        comm.allreduce(x, SUM)  # finds the way
        told = []
        for plan in (object(), None):
            comm.session.device_path.peer, comm.session.device_path.peer_plan = object(), lambda work, plan=plan: plan
            comm.session.plans.clear()
            told.append(comm.explain("allreduce", like=x, operator=SUM).native)
        wire, comm.session.device_path.transport = comm.session.device_path.transport, None  # long values are staged
        comm.session.plans.clear()
        assert comm.explain("allreduce", like=x, operator=SUM).native is None
        comm.session.device_path.transport, comm.session.device_path.peer = wire, None
        return told

    results, _ = run_natively(body, 2, monkeypatch)
    for by_kernel, long in results:
        assert not by_kernel.chosen and by_kernel.why.startswith("one kernel runs the call; ")
        assert long.chosen
