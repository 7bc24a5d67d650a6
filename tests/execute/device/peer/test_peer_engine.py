"""An engine of one kernel on one rank, in Triton's interpreter: what it refuses, what memory it reads and writes."""

from tests.interpreted import interpreted  # isort: skip first, since it imports triton

import inspect

import numpy as np
import pytest
import torch

from tests.execute.peer_memories import EACH, peer_memory
from tests.execute.peer_work import work_of
from tests.machines import switch
from tests.plans import every_plan
from topocomm import ARGMAX, SUM, DeadlineError, Field, Operator, TopocommError
from topocomm.execute.device.device_path import InFlightCalls
from topocomm.execute.device.peer.peer_engine import MOST_BYTES, PeerEngine, PeerPlan
from topocomm.execute.liveness.recorder import Recorder
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports import threads
from topocomm.execute.transports.transport import NoDeviceTransport
from topocomm.operators.kernels import gpu_peer, launcher

assert interpreted


def memory():
    room = np.zeros(EACH + 256, np.uint8)
    shared = room[-room.ctypes.data % 256 :][:EACH]
    return peer_memory(shared, 0, 1)


def plan_and_work(rows, operator=SUM, dtype=np.float32, ranks=1, collective="allreduce"):
    layout = operator.layout({f.name: ((rows,), f.dtype or dtype) for f in operator.fields})
    plan = every_plan(switch(ranks), collective, operator, layout)[0]
    return plan, work_of(plan, operator, layout, 0)


def lane_of(rows, operator=SUM):
    device, peer = memory()
    _, work = plan_and_work(rows, operator)
    return PeerEngine(PeerPlan(work, peer, "cpu"), device, peer, None)


def test_what_goes_another_way():
    _, peer = memory()

    def refusal(work, device_type="cpu"):
        return PeerPlan(work, peer, device_type).refusal

    assert not refusal(plan_and_work(MOST_BYTES // 4)[1])
    assert "bytes are more than" in refusal(plan_and_work(MOST_BYTES // 4 + 1)[1])
    bare = Operator("my own", SUM.fields, SUM.combine, SUM.identity)
    assert refusal(plan_and_work(4, bare, ranks=2)[1]) == "no kernel folds my own"
    assert not refusal(plan_and_work(4, bare, ranks=1)[1])  # one rank folds nothing
    text = Operator("text", (Field("x"),), SUM.combine, {"x": 0})
    assert "dtypes" in refusal(plan_and_work(4, text, "S3", ranks=2, collective="broadcast")[1])
    peer.size = 2
    assert "a rank needs" in refusal(plan_and_work(40000, ranks=2)[1])
    peer.room = peer.room._replace(flags=7)
    assert "4 tiles in 1 stages need more than 7 flags" in refusal(plan_and_work(1000, ranks=2)[1])


@pytest.mark.parametrize("shift", [0, 1, 4, 5, 13])
def test_a_result_may_lie_over_the_value(shift):
    """Whatever the kernel reads when: all of the value, before what lies over it is written."""
    engine = lane_of(600)
    room = engine.memory.new_zeros(8 * 620)[: 4 * 620].view(torch.float32)
    at = -room.data_ptr() // 4 % 4  # an address that 16 divides
    value = room[at : at + 600]
    value.copy_(torch.arange(600.0))
    result = room[at + shift : at + shift + 600]
    engine.begin({"value": value}, {"value": result}, False)
    assert torch.equal(result, torch.arange(600.0))


def test_fields_of_one_address_are_not_taken_for_each_other():
    engine = lane_of(3, ARGMAX)
    value, index = torch.tensor([1.0, 2, 3]), torch.tensor([7, 8, 9])
    engine.begin({"value": value, "index": index}, {"value": value, "index": index}, False)
    assert value.tolist() == [1, 2, 3] and index.tolist() == [7, 8, 9]


def test_the_send_buffer_is_read_where_it_is():
    engine = lane_of(5)
    engine.views["value"].copy_(torch.arange(5.0))
    made = torch.zeros(5)
    engine.begin(None, {"value": made}, True)
    assert torch.equal(made, torch.arange(5.0)) and torch.equal(engine.views["value"], made)
    engine.begin({"value": torch.ones(5)}, {"value": made}, True)
    assert torch.equal(made, torch.ones(5))
    assert engine.advance(0.0)


def test_ranks_on_one_gpu_need_streams_of_their_own(monkeypatch):
    engine = lane_of(5)
    engine._peer.crowded = True
    value = torch.ones(5)
    engine.begin({"value": value}, {"value": value}, False)
    monkeypatch.setattr(engine._device, "pointer", lambda stream: 0)  # CUDA's default stream
    with pytest.raises(TopocommError, match="a stream of its own"):
        engine.begin({"value": value}, {"value": value}, False)


class Compiled:
    """A double of a kernel on a GPU: what it is given when it is compiled, and then with every launch."""

    arg_names = tuple(inspect.signature(gpu_peer.peer_kernel.fn).parameters)

    def __init__(self):
        self.first, self.launches = None, []

    def warmup(self, *told, grid, **options):
        assert self.first is None, "it is compiled once"
        named = dict(zip(self.arg_names, told, strict=False)) | options
        self.first = {name: named[name] for name in self.arg_names}
        return self

    def __getitem__(self, grid):
        assert len(grid) == 3
        return lambda *told: self.launches.append((grid, dict(zip(self.arg_names, told, strict=True))))


def test_a_compiled_kernel_is_launched_without_asking_what_it_is_compiled_for(monkeypatch):
    kernel = Compiled()
    monkeypatch.setattr(gpu_peer, "peer_kernel", kernel)
    monkeypatch.setattr(launcher, "_is_compiled", lambda it: it is kernel)
    engine = lane_of(600)
    ((grid, told),) = kernel.launches
    assert told == kernel.first and told["items"] == 0  # launched once, as it is to be, and does nothing
    value, made = torch.ones(600), torch.ones(600)
    engine.begin({"value": value}, {"value": made}, True)
    assert len(kernel.launches) == 2
    again, told = kernel.launches[1]
    assert (again, told["items"] > 0) == (grid, True)
    assert (told["inputs"], told["outputs"]) == ((value.data_ptr(),), (made.data_ptr(),))
    changing = {"inputs", "outputs", "items"}
    assert {name for name in told if told[name] != kernel.first[name]} == changing


def test_a_call_on_another_stream_waits_for_the_one_before():
    device, peer = memory()
    one, other = (PeerEngine(PeerPlan(plan_and_work(5)[1], peer, "cpu"), device, peer, None) for _ in range(2))
    value = torch.ones(5)
    one.begin({"value": value}, {"value": value}, False)
    first, second = device.stream(), device.new_stream()
    with device.on(second):
        other.begin({"value": value}, {"value": value}, False)
    assert (second, first) in device.world.waits and peer.last is second
    device.world.waits.clear()
    one.begin({"value": value}, {"value": value}, False)
    assert device.world.waits == [(first, second)]  # they share one memory


def test_what_a_replayed_graph_has_awaited_is_told_without_a_call():
    device, peer = memory()
    transport = threads.World(2).transports()[0]
    flights = InFlightCalls(
        Waiting(transport, 1.0, lambda tag: "a call", Recorder()), device, NoDeviceTransport(), peer
    )
    flights.look()
    flights.wait()
    peer._control[1 + np.array([0, 3])] = 1  # as the kernel writes
    for ask in (flights.look, flights.wait):
        with pytest.raises(DeadlineError, match=r"rank 0: its GPU still waits for ranks 0, 3 after 60 s"):
            ask()
    peer.abort()  # then the communicator has failed already
    flights.look()
