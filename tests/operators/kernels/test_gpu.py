"""Folds on devices, in Triton's interpreter: bit for bit those of the CPU."""

from tests.interpreted import interpreted  # isort: skip first, since it imports triton
import numpy as np
import pytest
import torch
import triton.language as tl

from tests.operators.kernels.device import device_fold, device_fold_into, packed, unpacked
from tests.operators.packed import (
    BFLOAT16,
    NAMES,
    PAIRS,
    any_value,
    assert_same_bits,
    fold,
    layout_of,
)
from topocomm import (
    AFFINE_MATRIX,
    ARGMAX,
    LOGADDEXP,
    MAX,
    SUM,
    TOPK,
    WELFORD,
    Field,
    Operator,
    OperatorError,
    TritonCombine,
    bind_device_fold,
    bind_device_folds,
)
from topocomm.operators.builtin import READY
from topocomm.operators.kernels import gpu

EACH = [pair for pair in zip(PAIRS, NAMES, strict=True) if pair[0][0] in READY]


def values_of(operator, layout, count, seed=0):
    rng = np.random.default_rng([seed, count])
    return [any_value(rng, operator, layout) for _ in range(count)]


@pytest.mark.parametrize("count", [*range(1, 10), 16])
@pytest.mark.parametrize("operator", [LOGADDEXP, WELFORD], ids=lambda operator: operator.name)
def test_any_number_of_operands(operator, count):
    layout = layout_of(operator, np.dtype("f4"), (5,))
    values = values_of(operator, layout, count)
    assert_same_bits(device_fold(operator, layout, values), fold(operator, layout, values))


@pytest.mark.parametrize(("make", "most"), [(TOPK, 1024), (AFFINE_MATRIX, 16)])
def test_rows_that_are_too_long_are_not_for_gpus(make, most):
    for size, version in ((most, f"triton.{make.__name__.lower()}/1"), (most + 1, "torch")):
        operator = make(size)
        assert gpu.device_fold_version(operator, layout_of(operator, np.dtype("f4")), "cuda") == version


@pytest.mark.parametrize(("count", "into"), [(2, 0), (2, 1), (3, 2), (9, 0)])
def test_the_result_may_replace_an_operand(count, into):
    layout = layout_of(WELFORD, np.dtype("f8"), (33,))
    values = values_of(WELFORD, layout, count)
    assert_same_bits(device_fold(WELFORD, layout, values, into=into), fold(WELFORD, layout, values))


def test_several_folds_in_one_launch():
    layout = layout_of(ARGMAX, np.dtype("f2"), (40,))
    values = values_of(ARGMAX, layout, 6)
    buffer, offsets = packed(layout, values, extra=4)
    before = buffer.clone()
    want = []
    folds = [(40, offsets[:3], offsets[6]), (7, offsets[2:4], offsets[7]), (0, offsets[:2], offsets[8]),
             (40, [offsets[5]], offsets[9]), (40, offsets[3:5], offsets[4])]  # fmt: skip
    for rows, operands, target in folds:
        expected = layout.views(before.numpy().copy(), target, rows)
        ARGMAX.bind_fold(layout, before.numpy(), rows, operands)(expected)
        want.append(expected)
    run = bind_device_folds(ARGMAX, layout, buffer, folds)
    with np.errstate(all="ignore"):
        run()
    for (rows, _, target), expected in zip(folds, want, strict=True):
        assert_same_bits(layout.views(buffer.numpy(), target, rows), expected)
    assert torch.equal(buffer[offsets[8] : offsets[9]], before[offsets[8] : offsets[9]]), "a fold without rows wrote"
    bind_device_folds(ARGMAX, layout, buffer, [])()


def test_folds_of_equally_many_operands_in_one_launch():
    layout = layout_of(SUM, np.dtype("f4"), (130,))
    values = values_of(SUM, layout, 4)
    buffer, offsets = packed(layout, values, extra=2)
    with np.errstate(all="ignore"):
        bind_device_folds(SUM, layout, buffer, [(130, offsets[:2], offsets[4]), (130, offsets[2:4], offsets[5])])()
    for slot, pair in ((4, values[:2]), (5, values[2:])):
        assert_same_bits(unpacked(layout, buffer, offsets[slot]), fold(SUM, layout, pair))


@pytest.mark.parametrize("dtype", ["f4", BFLOAT16, "?", "c8", "u2"], ids=str)
def test_targets_of_the_callers_own(dtype):
    operator = MAX if dtype in ("?", "u2") else SUM
    layout = layout_of(operator, np.dtype(dtype), (7,))
    values = values_of(operator, layout, 3)
    kinds = {"f4": torch.float32, "?": torch.bool, "c8": torch.complex64, "u2": torch.uint16}
    target = torch.zeros(7, dtype=kinds.get(dtype, torch.bfloat16))
    device_fold_into(operator, layout, values, {"value": target})
    bytes_made = target.view(torch.uint8).numpy().tobytes()
    made = {"value": np.frombuffer(bytes_made, layout.fields[0].dtype)}
    assert_same_bits(made, fold(operator, layout, values))


@interpreted
def _mix(left, right):
    """The mean of vectors of 3 with their weights; computed in float32 whatever the dtype."""
    weight = left[1] + right[1]
    return tl.fdiv(left[0] * left[1] + right[0] * right[1], weight), weight


def _mix_arrays(a, b):
    weight = a["w"] + b["w"]
    return {"x": (a["x"] * a["w"][..., None] + b["x"] * b["w"][..., None]) / weight[..., None], "w": weight}


MIX = Operator(
    "mix",
    (Field("x", ("*rows", "n")), Field("w")),
    _mix_arrays,
    {"x": 0, "w": 0},
    triton=lambda layout: TritonCombine("mix/1", _mix),
)


@interpreted
def _scaled(left, right, constants):
    return (left[0] + right[0] * constants[1],)


SCALED = Operator(
    "scaled",
    (Field("x", ("n",)),),
    lambda a, b: {"x": a["x"] + 3 * b["x"]},
    {"x": 0},
    triton=lambda layout: TritonCombine("scaled/1", _scaled, (7, 3)),
)


@pytest.mark.parametrize("items", [1, 3, 129])
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_an_operator_of_ones_own(items, rows, count):
    layout = MIX.layout({"x": ((rows, items), np.float32), "w": ((rows,), np.float32)})
    rng = np.random.default_rng(0)
    values = [
        {"x": rng.normal(size=(rows, items)).astype("f4"), "w": rng.random(rows).astype("f4") + 1} for _ in range(count)
    ]
    assert_same_bits(device_fold(MIX, layout, values), fold(MIX, layout, values))


@pytest.mark.parametrize("items", [1, 3, 300])
def test_constants_and_values_that_are_never_cut(items):
    layout = SCALED.layout({"x": ((items,), np.int32)})
    values = [{"x": np.arange(items, dtype=np.int32) + i} for i in range(4)]
    assert_same_bits(device_fold(SCALED, layout, values), fold(SCALED, layout, values))


def test_without_a_combine_on_tiles_the_cpu_folds_as_ever():
    plain = Operator("plain", (Field("x"),), lambda a, b: {"x": torch.hypot(a["x"], b["x"])}, {"x": 0})
    layout = plain.layout({"x": ((4,), np.float32)})
    assert plain.triton_combine(layout) is None
    assert gpu.device_fold_version(plain, layout, "cuda") == "torch"
    values = [{"x": np.full(4, x, np.float32)} for x in (2, 3, 6)]
    np.testing.assert_allclose(device_fold(plain, layout, values)["x"], 7, rtol=1e-6)
    targets = device_fold_into(plain, layout, values, {"x": torch.zeros(4)})
    np.testing.assert_allclose(targets["x"], 7, rtol=1e-6)


def test_where_triton_is_missing_there_is_no_combine():
    def missing(layout):
        raise ImportError("no triton")

    operator = Operator("m", (Field("x"),), lambda a, b: {"x": a["x"] + b["x"]}, {"x": 0}, triton=missing)
    assert operator.triton_combine(operator.default_layout(2)) is None


def test_rows_too_long_for_a_tile_run_combine():
    layout = MIX.layout({"x": ((1, 20_000), np.float32), "w": ((1,), np.float32)})
    assert gpu.device_fold_version(MIX, layout, "cuda") == "torch"
    values = [{"x": np.ones((1, 20_000), "f4"), "w": np.ones(1, "f4")}] * 2
    assert (device_fold(MIX, layout, values)["x"] == 1).all()


def test_bad_input_is_told():
    layout = layout_of(SUM, np.dtype("f4"), (4,))
    buffer = torch.zeros(64, dtype=torch.uint8)
    for given, match in (
        ((np.zeros(64, np.uint8), 4, [0]), "buffer must be a torch tensor uint8"),
        ((buffer.float(), 4, [0]), r"got torch.float32 \[64\]"),
        ((buffer[1:], 4, [0]), "start at an address that 16 divides"),
        ((buffer[::2], 4, [0]), "must be contiguous"),
        ((buffer, 4, []), "expected one operand or more"),
        ((buffer, 4, [0, 52]), "offset 52: a chunk of 4 rows ends at byte 68 of a buffer of 64"),
        ((buffer, 4, [-4]), "offset -4"),
        ((buffer, 4, [2]), "offset 2: expected a multiple of 4"),
    ):
        with pytest.raises(OperatorError, match=match):
            bind_device_fold(SUM, layout, *given)
    with pytest.raises(OperatorError, match="target offset 60"):
        bind_device_folds(SUM, layout, buffer, [(4, [0], 60)])
    run = bind_device_fold(SUM, layout, buffer, 4, [0, 16])
    for target, match in (
        ({}, r"target 'value': expected a tensor torch.float32 \[4\] on cpu, got none"),
        ({"value": torch.zeros(5)}, r"got torch.float32 \[5\]"),
        ({"value": torch.zeros(4, dtype=torch.float64)}, "got torch.float64"),
        ({"value": torch.zeros(8)[::2]}, "must be contiguous"),
    ):
        with pytest.raises(OperatorError, match=match):
            run(target)


def test_launches_are_cut_as_the_machine_likes_them():
    for rows, items in ((1, 1), (37, 3), (300_000, 1), (5, 16384), (10**9, 129)):
        tile = gpu._tile_rows(rows, items)
        assert tile & (tile - 1) == 0 and tile >= 1
        assert tile == 1 or tile * items <= gpu.TILE_ITEMS[1]
        assert gpu._warps(tile * items) in (1, 2, 4, 8)
    assert gpu._tile_rows(10**9, 1) == gpu.TILE_ITEMS[1]
    assert [gpu._warps(items) for items in (1, 256, 257, 768, 1024, 16384)] == [1, 1, 2, 4, 4, 8]
