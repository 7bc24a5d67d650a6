"""What runs on a GPU reads nothing back and mixes no memories: shapes alone go through it, as torch's meta tensors.

A meta tensor has no values: whatever would wait for a GPU raises, and so does what meets a tensor in host memory.
"""

from tests import interpreted  # noqa: F401, I001 before anything that imports triton

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from attention import ShardedKVCache, ShardMap, Spec, ring_decode, three_allreduce_decode, tree_decode
from attention.gpu.decode import decode
from attention.gpu.prefill import prefill
from attention.gpu import placement as where
from attention.gpu import gpu_merge
from tests.execute.fake_device import FakeDevice, devices_of
from tests.execute.transports.recording_nccl import World
from topocomm import run_local
from topocomm.execute.device import device_library as device
from topocomm.execute.device import device_call
from topocomm.execute.device import device_folds

META = torch.device("meta")
FULL = Spec(causal=True, window=9, softcap=3.0, alibi_slopes=[0.5] * 4, sinks=[0.0] * 4)


@contextmanager
def shapes_only():
    """One rank whose GPU has shapes and no values; kernels are counted, not run."""
    world, launched = World(1), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeDevice, "place", META)
        patch.setattr(FakeDevice, "memory", lambda self, size: torch.empty(size, dtype=torch.uint8, device=META))
        device_of = devices_of(world)
        patch.setattr(device, "device_of", lambda x: device_of(x) if getattr(x, "is_meta", False) else None)
        # All addresses are 0, so that every tensor seems to lie in the send buffer.
        patch.setattr(device_call.DeviceCall, "fit_result", lambda self, out: self._values_on_device.writable(out))
        patch.setattr(device_call, "check_writable", lambda fields: None)
        patch.setattr(device_folds, "_probe", lambda *told: None)
        patch.setattr(where, "_held", lambda x: x.is_meta)
        patch.setattr(prefill, "check_tensors", lambda *told, **how: None)  # it knows no meta tensors
        for module, name in ((decode, "_launch"), (prefill, "_launch"), (gpu_merge, "_launch")):
            patch.setattr(module, name, lambda *arguments, name=module.__name__, **options: launched.append(name))
        world.launched = launched
        yield world


def tensors(q_len=1, n=40, dtype=torch.bfloat16):
    shapes = ((2, 4, q_len, 16), (2, 2, n, 16), (2, 2, n, 24))
    return [torch.empty(shape, dtype=dtype, device=META) for shape in shapes]


def there(*shape, dtype=torch.int64):
    return torch.empty(shape, dtype=dtype, device=META)


GIVEN = {
    "plain": {},
    "lengths": {"kv_lengths": there(2)},
    "mask": {"kv_mask": there(2, 40, dtype=torch.bool)},
    "positions": {"spec": FULL, "q_positions": there(1), "kv_positions": there(2, 40)},
    "in host memory": {"spec": FULL, "q_positions": [40], "kv_positions": np.arange(40), "kv_mask": np.ones(40, bool)},
    "sinks": {"spec": Spec(sinks=[0.5] * 4)},
}
WAYS = {
    "tree": (tree_decode, {}),
    "out": (tree_decode, {"out": torch.empty((2, 4, 1, 24), dtype=torch.bfloat16, device=META)}),
    "heads": (tree_decode, {"result": "heads"}),
    "16 bits": (tree_decode, {"wire": "bfloat16"}),
    "canonical": (tree_decode, {"order": "canonical", "shards": ShardMap(1, 3, block_size=4)}),
    "ring": (ring_decode, {}),
    "three": (three_allreduce_decode, {}),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("way", WAYS)
def test_no_way_reads_a_value(way, given):
    method, options = WAYS[way]
    told = {**GIVEN[given], **options}
    if way == "canonical":
        told["kv_positions"] = np.arange(40)
        if told.get("q_positions") is None:
            told.pop("q_positions", None)
    with shapes_only() as world:

        def body(comm):
            for _ in range(2):
                found = method(*tensors(), comm, return_lse=True, **told)
            assert found.out.is_meta and found.lse.is_meta and found.out.dtype == torch.bfloat16
            return found.out.shape

        assert run_local(body, ranks=1) == [(2, 4, 1, 24)]
        assert world.launched.count("attention.gpu.decode.decode") == (6 if way == "canonical" else 2)


@pytest.mark.parametrize("given", ["plain", "mask", "positions", "sinks"])
@pytest.mark.parametrize("way", ["tree", "heads", "16 bits", "ring"])
def test_many_queries(way, given):
    method, options = WAYS[way]
    told = {**GIVEN[given], **options}
    if "q_positions" in told:
        told["q_positions"] = there(20)
    with shapes_only() as world:

        def body(comm):
            return [method(*tensors(q_len=20), comm, **told).shape for _ in range(2)]

        assert run_local(body, ranks=1) == [[(2, 4, 20, 24)] * 2]
        assert world.launched.count("attention.gpu.prefill.prefill") == 2


def test_pages():
    with shapes_only() as world:
        q, k, v = tensors(n=8)
        tables, lengths = there(2, 5), there(2)

        def body(comm):
            pages = {"block_tables": tables, "kv_lengths": lengths}
            return [tree_decode(q, k, v, comm, **pages).shape for _ in range(2)]

        assert run_local(body, ranks=1) == [[(2, 4, 1, 24)] * 2]
        assert world.launched == ["attention.gpu.decode.decode"] * 2


def test_gradients():
    with shapes_only():

        def body(comm):
            own = [x.requires_grad_() for x in tensors(dtype=torch.float32)]
            positions = {"q_positions": there(1), "kv_positions": there(40)}
            out = tree_decode(*own, comm, spec=Spec(causal=True, softcap=2.0), **positions)
            return [x.device for x in torch.autograd.grad(out.sum(), own)]

        assert run_local(body, ranks=1) == [[META] * 3]


@pytest.mark.parametrize("window", [None, 6])
def test_a_cache_that_grows_and_drops(window):
    with shapes_only():
        cache = ShardedKVCache(ShardMap(2, 4, block_size=2), 0, window=window)
        for tokens in (9, *[1] * 12, 3):
            cache.append(*(torch.empty((1, 2, tokens, 8), device=META) for _ in range(2)))
        assert cache.k.is_meta and cache.positions.is_meta and cache.positions.shape == (cache.n_local,)
        assert cache.length == 24 and len(cache.known_positions) == cache.n_local
        cache.truncate(23)


def test_the_double_catches_what_waits():
    """What the tests above rest on: each of these would wait for a GPU, or mix its memory with the host's."""
    x = there(3, dtype=torch.float32)
    for reads in (lambda: x[0].item(), lambda: x.cpu(), lambda: bool((x > 0).any()), lambda: x.tolist(), x.numpy):
        with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
            reads()
    with pytest.raises(RuntimeError, match="device"):
        x + torch.zeros(3)
