"""A torch process group's end: its NCCL waits for graphs too. What it moves is tried by `test_device_jobs`."""

import threading
import types

import pytest
import torch

from tests.execute.fake_device import FakeDevice, wait_until
from tests.execute.transports.recording_nccl import World
from topocomm.execute.transports.device import nccl
from topocomm.execute.transports.device import torch_device as torch_device


@pytest.mark.parametrize("names", [("all_gather_single", "reduce_scatter_single"), ("all_gather_into_tensor",) * 2])
def test_collectives_of_the_group(monkeypatch, names):
    told = []

    def noted(name):
        def call(*tensors, op=None, group):
            told.append((name, op, [(one.dtype, one.dim(), one.numel()) for one in tensors]))

        return call

    gather, scatter = names[0], names[1].replace("all_gather_into", "reduce_scatter")
    distributed = types.SimpleNamespace(
        get_process_group_ranks=lambda group: [0, 1],
        get_backend_config=lambda group: "cuda:nccl",
        new_group=lambda *told, **options: types.SimpleNamespace(),
        ReduceOp=types.SimpleNamespace(SUM="sum", PRODUCT="product", MAX="max", MIN="min"),
        all_reduce=noted("all_reduce"),
        **{name: noted(name) for name in (gather, scatter)},
    )
    monkeypatch.setattr(
        torch_device, "load_torch", lambda: types.SimpleNamespace(distributed=distributed, uint8=torch.uint8)
    )
    wire = torch_device.TorchDeviceTransport(types.SimpleNamespace(rank=lambda: 0), FakeDevice(World(2), 0), 60.0)
    told.clear()
    x, both = torch.arange(6.0).view(3, 2), torch.empty(6, 2)
    out = torch.empty(3, 2)
    wire.native("allreduce", "float32", "prod")(x, out, None)
    assert torch.equal(out, x), "the group reduces in place"
    wire.native("allgather", "float32", "copy")(x, both, None)
    wire.native("reduce_scatter", "float32", "max")(both, x, None)
    assert told == [
        ("all_reduce", "product", [(torch.float32, 2, 6)]),
        (gather, None, [(torch.uint8, 1, 48), (torch.uint8, 1, 24)]),
        (scatter, "max", [(torch.float32, 1, 6), (torch.float32, 1, 12)]),
    ]
    assert wire.native("allreduce", "uint32", "sum") is wire.native("allreduce", "float32", "band") is None
    assert wire.native("scan", "float32", "sum") is None


@pytest.mark.parametrize("end", ["abort", "close"])
def test_a_group_that_does_not_end_is_left_to_a_thread(monkeypatch, capfd, end):
    over, ended = threading.Event(), []

    class Group:
        def rank(self):
            return 1

        def abort(self):
            ended.append(over.wait(20))

    distributed = types.SimpleNamespace(
        get_process_group_ranks=lambda group: [0, 1],
        get_backend_config=lambda group: "cuda:nccl",
        new_group=lambda *told, **options: Group(),
        all_reduce=lambda tensor, group: None,
        destroy_process_group=Group.abort,
    )
    monkeypatch.setattr(torch_device, "load_torch", lambda: types.SimpleNamespace(distributed=distributed))
    monkeypatch.setattr(nccl, "END_S", 0.1)
    wire = torch_device.TorchDeviceTransport(Group(), FakeDevice(World(2), 1), 60.0)
    getattr(wire, end)()
    assert "topocomm: rank 1: NCCL does not end after 0.1 s" in capfd.readouterr().err
    assert not ended
    over.set()
    wait_until(lambda: ended == [True])
    wire.close()  # again: nothing
