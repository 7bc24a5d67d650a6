"""CuPy arrays as values, with a double of CuPy on host memory; and which GPU is a rank's own."""

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.execute.device_jobs import fake_nccl, run_in, run_on_devices
from topocomm import SUM, Device, Field, Operator, OperatorError, Topology
from topocomm.execute.device import device_library as device
from topocomm.execute.device import path_choice as device_way
from topocomm.execute.device.device_folds import identity_tensors
from topocomm.operators.layout import Layout
from topocomm.operators.tensors import device_views


class Array:
    """Of CuPy: it gives its memory by DLPack."""

    def __init__(self, tensor):
        self.tensor, self.shape, self.dtype = tensor, tuple(tensor.shape), tensor.numpy().dtype
        self.device = SimpleNamespace(id=0)

    def __len__(self):
        return len(self.tensor)

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.fixture
def cupy(monkeypatch):
    made = SimpleNamespace(ndarray=Array, from_dlpack=lambda tensor: Array(torch.from_dlpack(tensor)))
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


BOTH = Operator(
    "sum of both", (Field("a"), Field("b")), lambda x, y: {n: x[n] + y[n] for n in x}, {"a": 0, "b": 0}, True
)


@dataclasses.dataclass
class Pair:
    a: object
    b: object


@pytest.mark.usefixtures("cupy")
def test_cupy_arrays_come_back_as_cupy_arrays():
    def body(comm):
        x = Array(torch.arange(4.0) + comm.rank)
        result, out = comm.allreduce(x, SUM), Array(torch.zeros(4))
        assert comm.allreduce(x, SUM, out=out) is out
        assert torch.equal(out.tensor, result.tensor)
        pair = comm.allreduce(Pair(x, Array(torch.ones(4))), BOTH)
        assert type(pair) is Pair
        call = comm.prepare("allreduce", like=x, operator=SUM)
        call.input.tensor.copy_(x.tensor)
        again = call(call.input)
        with pytest.raises(OperatorError, match="mix torch tensors and CuPy arrays"):
            comm.prepare("allreduce", like=Pair(x, torch.ones(4)), operator=BOTH)
        return [result, pair.a, again], comm.broadcast(x, root=1)

    with fake_nccl(2) as world:
        double = device.device_of

        def device_of(part):
            return double(torch.ones(1)) if isinstance(part, Array) else double(part)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device, "device_of", device_of)
            for results, told in run_in(world, body):
                for result in results:
                    assert type(result) is Array
                    assert result.tensor.tolist() == [1.0, 3.0, 5.0, 7.0]
                assert told.tensor.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_containers_come_back_as_they_are():
    def body(comm):
        found = comm.allreduce(Pair(torch.ones(3), torch.ones(2) * comm.rank), own)
        turned = comm.allreduce({"b": torch.ones(2), "a": torch.ones(3)}, own)
        return found, list(turned)

    own = dataclasses.replace(BOTH, fields=(Field("a", ("n",)), Field("b", ("m",))))
    for found, names in run_on_devices(body, 2):
        assert type(found) is Pair
        assert found.a.tolist() == [2.0] * 3
        assert found.b.tolist() == [1.0] * 2
        assert names == ["b", "a"]


def test_views_and_identities_have_the_layout_of_arrays():
    layout: Layout = BOTH.layout({"a": ((5,), np.int8), "b": ((5,), np.complex128)})
    memory = np.zeros(256, np.uint8)
    arrays = layout.views(memory, 64, 5)
    tensors = device_views(layout, torch.from_numpy(memory), 64, 5)
    for name, array in arrays.items():
        assert tensors[name].data_ptr() == array.ctypes.data
        assert tuple(tensors[name].shape) == array.shape
        assert tensors[name].numpy().dtype == array.dtype
    assert {name: value.item() for name, value in identity_tensors(BOTH, layout).items()} == {"a": 0, "b": 0}


def test_a_ranks_own_gpu_is_known_by_its_pci_address(monkeypatch):
    machine = Topology(
        "two GPUs",
        "test",
        (
            Device("GPU0", "gpu", bus_id="0000:1b:00.0"),
            Device("GPU1", "gpu", bus_id="0000:3d:00.0"),
            Device("GPU2", "gpu"),
        ),
        (),
    )
    seen = [SimpleNamespace(index=0, bus_id="0000:3d:00.0"), SimpleNamespace(index=1, bus_id="0000:9f:00.0")]
    monkeypatch.setattr(device_way, "visible_devices", lambda: seen)
    assert device_way.own_gpu(machine, "GPU1") == 0
    assert device_way.own_gpu(machine, "GPU0") is None
    assert device_way.own_gpu(machine, "GPU2") is None
