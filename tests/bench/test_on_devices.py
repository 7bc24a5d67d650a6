"""Our row on device memory, with the double of NCCL: that it is checked, named by its way, and timed to its end."""

from tests.interpreted import interpreted  # isort: skip first, since it imports triton

import gc

import numpy as np
import pytest
import torch

from attention import LOGSUMEXP
from tests.execute.device_jobs import fake_nccl, run_in
from tests.execute.native_jobs import always_chosen, machine
from tests.execute.peer_memories import EACH, peer_memory
from tests.machines import switch
from topocomm import SUM, TopocommError, Topology, run_local
from topocomm.bench.measurement import Wanted, measure_all
from topocomm.bench.on_devices import OnDevices, common_device
from topocomm.bench.problem import Problem
from topocomm.bench.timing import Pace, Timed, measure
from topocomm.execute.device import device_library as device
from topocomm.execute.device.device_path import DevicePath
from topocomm.execute.transports.device import nccl_library
from topocomm.execute.transports.transport import NoDeviceTransport
from topocomm.planning.native import CALLS

assert interpreted
QUICK = Pace(iterations=2, warmup=1)


def rows(world, collective, operator, topology):
    wanted = Wanted(collective, operator, (12,), QUICK)
    return run_in(world, lambda comm: next(measure_all(comm, wanted)), topology=topology)[0]


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "reduce", "reduce_scatter", "allgather", "scan"])
def test_every_collective_has_a_row_that_is_right(collective):
    with fake_nccl(2) as world:
        found = {row.name: row for row in rows(world, collective, SUM, switch(2))}
    row = found["topocomm on GPUs, nccl"]
    assert row.out_of_place.wrong == 0
    assert row.in_place is None
    assert row.way == "GPU memory, by nccl"
    assert row.plan.launch_us > 0
    assert found["topocomm prepared"].plan.launch_us == 0
    assert not row.is_ours, "the mean bandwidth is of host memory"
    bare = [row for name, row in found.items() if name.startswith("nccl")]
    assert [row.name for row in bare] == [name for asked, name in CALLS.items() if asked == collective]
    assert all(row.out_of_place.wrong == 0 and row.plan is None for row in bare)
    assert not [name for name in found if name.startswith("topocomm on GPUs, nccl") and name.split(", ")[1] != "nccl"]
    graph = found["topocomm on GPUs, nccl, graph"]
    assert graph.out_of_place.wrong == 0
    assert graph.plan.digest == row.plan.digest


@pytest.mark.parametrize("collective", CALLS)
def test_where_the_library_is_chosen_the_schedule_stands_beside_it(collective, monkeypatch):
    always_chosen(monkeypatch)
    with fake_nccl(2) as world:
        found = {row.name: row for row in rows(world, collective, SUM, machine(2))}
    native, planned = found[f"topocomm on GPUs, {CALLS[collective]}"], found["topocomm on GPUs, nccl"]
    assert native.way == f"GPU memory, by {CALLS[collective]}"
    assert native.predicted_us == native.plan.native.predicted_us < planned.predicted_us
    assert planned.plan.native is None
    assert {CALLS[collective], f"{native.name}, graph", f"{planned.name}, graph"} <= set(found)
    assert not any(row.wrong for row in found.values())


def test_several_fields_staged(monkeypatch):
    def missing():
        raise TopocommError("cupy is not installed")

    with fake_nccl(2) as world, monkeypatch.context() as patch:
        patch.setattr(nccl_library, "load_nccl", missing)
        found = {row.name: row for row in rows(world, "allreduce", LOGSUMEXP, switch(2))}
    row = found["topocomm on GPUs, staged"]
    assert row.out_of_place.wrong == 0
    assert row.way == "GPU memory, staged through host memory"
    assert not [name for name in found if "graph" in name or "nccl" in name]


@pytest.mark.parametrize("wire", [NoDeviceTransport(), None])
def test_a_call_by_one_kernel_says_so_whatever_else_there_is(wire):
    layout = SUM.layout({"value": ((12,), np.float32)})

    def body(comm):
        mine = device.device_of(torch.ones(1))
        shared = np.zeros(EACH + 256, np.uint8)
        peer = peer_memory(shared[-shared.ctypes.data % 256 :][:EACH], 0, 1)[1]
        comm.session.device_path = DevicePath(comm.session.waiting, mine, wire, "", peer)
        rows = []
        for graph in (False, True):
            row = OnDevices(comm, Problem("allreduce", SUM, layout, 1), mine, graph=graph)
            arrays = [{"value": np.full(12, n, np.float32)} for n in (3, 0)]
            assert row.prepare(*arrays)
            row.run()
            rows += [row.name, row.way, row.result()["value"].tolist() == [3] * 12]
            row.free()
        return rows

    name, way = "topocomm on GPUs, kernel", "GPU memory, by one kernel"
    with fake_nccl(1) as world:
        assert run_in(world, body, topology=switch(1)) == [[name, way, True, f"{name}, graph", way, True]]


def test_a_row_that_is_done_keeps_no_graph():
    """NCCL's communicator would not end."""
    layout = SUM.layout({"value": ((12,), np.float32)})

    def body(comm):
        row = OnDevices(comm, Problem("allreduce", SUM, layout, 2), device.device_of(torch.ones(1)), graph=True)
        assert row.prepare(*({"value": np.ones(12, np.float32)} for _ in range(2)))
        graphs = comm.session.device_path.transport._handle.graphs
        before = len(graphs)
        row.free()
        gc.collect()
        return before, len(graphs)

    with fake_nccl(2) as world:
        assert run_in(world, body, topology=switch(2)) == [(1, 0)] * 2


def test_wrong_results_are_counted(monkeypatch):
    result = OnDevices.result
    monkeypatch.setattr(OnDevices, "result", lambda row: {n: x + 1 for n, x in result(row).items()})
    with fake_nccl(2) as world:
        found = {row.name: row for row in rows(world, "allreduce", SUM, switch(2))}
    assert found["topocomm on GPUs, nccl"].out_of_place.wrong == 24


def test_there_is_none_where_a_rank_has_no_device_or_ranks_are_on_cores(monkeypatch):
    cores = Topology("cores", "test", tuple(d._replace(kind="cpu") for d in switch(2).devices[:2]), ())
    with fake_nccl(2) as world, monkeypatch.context() as patch:
        assert run_in(world, common_device, topology=cores) == [None, None]
        here = device.device_here
        patch.setattr(device, "device_here", lambda index: None if world.rank_here() else here(index))
        assert run_in(world, common_device, topology=switch(2)) == [None, None]


def test_the_end_of_what_is_begun_is_timed():
    log = []

    def body(comm):
        way = Timed(lambda: log.append("run"), finish=lambda: log.append("end"))
        return measure(comm, [way], Pace(iterations=3, warmup=1))[0]

    times = run_local(body, ranks=1)[0]
    assert log[-times.calls - 1 :] == ["run"] * times.calls + ["end"]


def test_finish_waits_for_the_stream():
    class Problem:
        layout = collective = operator = None

    def body(comm):
        mine = device.device_of(torch.ones(1))
        asked = []
        mine.event = lambda: Slow(asked)
        OnDevices(comm, Problem(), mine).finish()
        return len(asked)

    class Slow:
        def __init__(self, asked):
            self.asked = asked

        def record(self, stream):
            assert stream is not None

        def query(self):
            self.asked.append(1)
            return len(self.asked) > 2

    with fake_nccl(1) as world:
        assert run_in(world, body, topology=switch(1)) == [3]
