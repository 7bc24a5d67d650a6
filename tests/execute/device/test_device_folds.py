"""Folds on devices: which there are, which can run at once, and what `combine` may give."""

import numpy as np
import pytest
import torch

from attention import LOGSUMEXP
from tests.execute.device.test_device_engine import MATRICES, matrix, product
from tests.execute.device_jobs import run_on_devices
from tests.execute.fake_device import FakeDevice
from tests.execute.transports.recording_nccl import World
from topocomm import AFFINE, ARGMAX, BAND, LOGADDEXP, MAX, MIN, PROD, SUM, TOPK, WELFORD, Field, Operator, OperatorError
from topocomm.execute.device.device_folds import NONE, DeviceFold, combine_folds, fold_version, independent
from topocomm.operators.tensors import as_array, device_views


@pytest.fixture
def device():
    return FakeDevice(World(1), 0)


@pytest.mark.parametrize("operator", [SUM, PROD, MAX, MIN, ARGMAX, BAND, AFFINE, LOGSUMEXP], ids=lambda op: op.name)
def test_operators_that_combine_tensors(operator, device):
    assert fold_version(operator, operator.default_layout(9), device) == ("torch", "")


@pytest.mark.parametrize("operator", [LOGADDEXP, WELFORD, TOPK(3)], ids=lambda op: op.name)
def test_operators_that_do_not_say_why(operator, device):
    version, reason = fold_version(operator, operator.default_layout(9), device)
    assert version == NONE
    assert reason


DTYPES = [np.float32, np.float64, np.float16, "bfloat16", np.int8, np.int64, np.complex64]


@pytest.mark.parametrize("operator", [SUM, PROD, MAX, MIN, ARGMAX, AFFINE], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_have_the_bits_of_arrays(operator, dtype, device):
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    rows, shapes = 41, {}
    for field in operator.fields:
        shapes[field.name] = ((rows,), field.dtype or dtype)
    try:
        layout = operator.layout(shapes)
    except OperatorError:
        pytest.skip("refused")
    folds = [DeviceFold(rows, (0, 1024, 2048), 3072), DeviceFold(rows, (3072, 1024), 3072)]
    memory = device.memory(4096)
    rng, operands = np.random.default_rng(3), []
    for at in (0, 1024, 2048):
        value = sample(operator, rng, layout)
        operands.append(value)
        for name, view in device_views(layout, memory, at, rows).items():
            as_array(view)[...] = value[name]
    combine_folds(operator, layout, memory, folds)()
    combine = operator.combine
    expected = combine(combine(combine(operands[0], operands[1]), operands[2]), operands[1])
    for name, view in device_views(layout, memory, 3072, rows).items():
        assert as_array(view).tobytes() == np.asarray(expected[name]).tobytes(), name


def sample(operator, rng, layout):
    """Whole numbers; of floats thirds of them, so that sums round."""
    if operator.sample is not None:
        return operator.sample(rng, layout)
    made = {}
    for field in layout.fields:
        numbers = rng.integers(-9, 9, layout.rows).astype(field.dtype)
        rounds = field.dtype.kind in "fcV"  # V: bfloat16
        made[field.name] = numbers / np.array(3).astype(field.dtype) if rounds else numbers
    return made


def test_folds_that_need_each_other_are_apart():
    layout = SUM.default_layout(4)  # 16 bytes a chunk of 4 rows

    def fold(*places):
        *operands, target = places
        return DeviceFold(4, tuple(16 * at for at in operands), 16 * target)

    apart = [fold(0, 1, 2), fold(0, 3, 4), fold(5, 6, 5)]
    assert independent(layout, apart) == [apart]
    for first, second in [
        (fold(0, 1, 2), fold(2, 3, 4)),  # reads what the first wrote
        (fold(0, 1, 2), fold(0, 3, 0)),  # writes what the first reads
        (fold(0, 1, 2), fold(3, 4, 2)),  # writes where the first wrote
    ]:
        assert independent(layout, [first, second]) == [[first], [second]]
    assert independent(layout, []) == []


def test_what_combine_may_not_give(device):
    def made(combine):
        operator = Operator("own", (Field("x"),), combine, {"x": 0})
        layout = operator.layout({"x": ((3,), np.float32)})
        return fold_version(operator, layout, device)

    assert made(lambda a, b: {"x": a["x"] + b["x"]}) == ("torch", "")
    assert "ndarray of tensors" in made(lambda a, b: {"x": (a["x"] + b["x"]).numpy()})[1]
    assert "not torch.float32; convert it there" in made(lambda a, b: {"x": (a["x"] + b["x"]).to(torch.complex64)})[1]
    assert "of shape [1], not [2]" in made(lambda a, b: {"x": (a["x"] + b["x"])[:1]})[1]
    assert "KeyError" in made(lambda a, b: {"x": a["y"]})[1]


def test_canonical_order_has_the_same_bits_whoever_owns_the_shards():
    shards = 11
    draw = torch.Generator().manual_seed(5)
    out, lse = torch.randn((shards, 4, 8), generator=draw), torch.randn((shards, 4), generator=draw)

    def body(comm):
        seen = set()
        for seed in range(4):
            cuts = np.sort(np.random.default_rng(seed).integers(0, shards + 1, comm.size - 1)).tolist()
            low, high = [0, *cuts, shards][comm.rank : comm.rank + 2]
            x = {"out": out[low:high], "lse": lse[low:high]}
            merged = comm.allreduce(x, LOGSUMEXP, order="canonical", shards=(low, high))
            seen.add(merged["out"].numpy().tobytes() + merged["lse"].numpy().tobytes())
            matrices = torch.tensor(np.array([matrix(shard) for shard in range(low, high)]).reshape(-1, 5, 2, 2))
            found = comm.allreduce({"m": matrices}, MATRICES, order="canonical", shards=(low, high))
            np.testing.assert_array_equal(found["m"].numpy(), product(range(shards)))
        return seen

    together = set().union(*(seen for ranks in (1, 2, 3, 6) for seen in run_on_devices(body, ranks)))
    assert len(together) == 1
