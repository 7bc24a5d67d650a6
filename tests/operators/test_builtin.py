"""Every built-in operator against its definition in float64 or exact integers."""

import math
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import topocomm
from tests.operators.packed import BFLOAT16, FLOATS, INTEGERS, NAMES, PAIRS, bits, fold, layout_of
from topocomm import (
    AFFINE,
    AFFINE_MATRIX,
    ARGMAX,
    ARGMIN,
    BAND,
    BOR,
    BXOR,
    LOGADDEXP,
    MAX,
    MIN,
    PROD,
    SUM,
    TOPK,
    WELFORD,
    Operator,
    OperatorError,
    check_laws,
    topk_value,
)

UNIT = {np.dtype("f8"): 2.0**-53, np.dtype("f4"): 2.0**-24, np.dtype("f2"): 2.0**-11, BFLOAT16: 2.0**-8}
SHAPES = [(), (0,), (1,), (3, 5), (2, 0, 3), (1, 17, 1)]
ids = {"ids": str}


def ordinary(rng, dtype, shape):
    return np.asarray(rng.normal(size=shape)).astype(dtype)


def value_fold(operator, arrays, **names):
    layout = layout_of(operator, arrays[0].dtype, arrays[0].shape)
    return fold(operator, layout, [{"value": array} for array in arrays], **names)["value"]


@pytest.mark.parametrize(("operator", "dtype"), PAIRS, ids=NAMES)
def test_laws_hold_for_every_dtype(operator, dtype):
    report = check_laws(operator, dtype=dtype, samples=96)
    assert report.ok, report
    assert {law.name for law in report.laws} >= {"identity", "associativity", "commutativity"}


@pytest.mark.parametrize("dtype", FLOATS, **ids)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_products_of_floats(dtype, shape):
    rng = np.random.default_rng(1)
    arrays = [ordinary(rng, dtype, shape) for _ in range(4)]
    wide = [array.astype(np.float64) for array in arrays]
    size = sum(np.abs(array) for array in wide)
    assert np.all(np.abs(value_fold(SUM, arrays).astype(np.float64) - sum(wide)) <= 4 * UNIT[dtype] * size)
    exact = np.prod(wide, axis=0)
    assert np.all(np.abs(value_fold(PROD, arrays).astype(np.float64) - exact) <= 4 * UNIT[dtype] * np.abs(exact) + 1e-7)


@pytest.mark.parametrize("dtype", INTEGERS, **ids)
def test_integers_wrap(dtype):
    rng = np.random.default_rng(2)
    limits = np.iinfo(dtype)
    arrays = [rng.integers(limits.min, limits.max, 31, dtype, endpoint=True) for _ in range(3)]
    numbers = [[int(x) for x in array] for array in arrays]
    span = 1 << limits.bits
    for operator, exact in ((SUM, sum), (PROD, math.prod)):
        made = value_fold(operator, arrays)
        assert [int(x) % span for x in made] == [exact(triple) % span for triple in zip(*numbers, strict=True)]
    for operator, rule in ((BAND, np.bitwise_and), (BOR, np.bitwise_or), (BXOR, np.bitwise_xor)):
        np.testing.assert_array_equal(value_fold(operator, arrays), rule(rule(arrays[0], arrays[1]), arrays[2]))
    np.testing.assert_array_equal(value_fold(MAX, arrays), np.max(arrays, axis=0))
    np.testing.assert_array_equal(value_fold(MIN, arrays), np.min(arrays, axis=0))


@pytest.mark.parametrize("dtype", [np.dtype("c8"), np.dtype("c16")], **ids)
def test_complex_sums_and_products(dtype):
    rng = np.random.default_rng(3)
    arrays = [(rng.normal(size=9) + 1j * rng.normal(size=9)).astype(dtype) for _ in range(3)]
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(value_fold(SUM, arrays), np.sum(arrays, axis=0), rtol=8 * eps, atol=8 * eps)
    np.testing.assert_allclose(value_fold(PROD, arrays), np.prod(arrays, axis=0), rtol=16 * eps, atol=16 * eps)


@pytest.mark.parametrize("dtype", FLOATS, **ids)
def test_extremes_of_floats(dtype):
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan], dtype)
    left, right = (array.ravel() for array in np.meshgrid(special, special))
    for operator, sign in ((MAX, 1.0), (MIN, -1.0)):
        made = value_fold(operator, [left, right]).astype(np.float64)
        for a, b, x in zip(left.astype(float), right.astype(float), made, strict=True):
            if np.isnan(a) or np.isnan(b):
                assert np.isnan(x)
            else:  # by value, then by sign: -0 is below +0
                want = max((a, b), key=lambda y: (sign * y, sign * np.copysign(1, y)))
                assert (x, np.signbit(x)) == (want, np.signbit(want))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], **ids)
@pytest.mark.parametrize(("operator", "rule"), [(ARGMAX, np.argmax), (ARGMIN, np.argmin)], ids=["argmax", "argmin"])
def test_places_are_those_of_numpy(dtype, operator, rule):
    """Every rank holds 11 columns of its own; NumPy looks at all of them at once. Ties, zeros of both signs, NaN."""
    rng = np.random.default_rng(dtype.num)
    table = rng.integers(0, 3, (6, 11)).astype(dtype)
    if dtype in FLOATS:
        table[rng.random(table.shape) < 0.2] = -0.0
        table[:, 3:5][rng.random((6, 2)) < 0.5] = np.nan
    values = [{"value": row, "index": np.full(11, at)} for at, row in enumerate(table)]
    order = rng.permutation(len(values))
    layout = layout_of(operator, dtype, (11,))
    made = fold(operator, layout, [values[at] for at in order])
    want = rule(table.astype(np.float64), axis=0)
    np.testing.assert_array_equal(made["index"], want)
    assert bits(made["value"]) == bits(table[want, np.arange(11)])


def test_the_extreme_of_the_least_value_beats_nothing():
    neutral = {"value": np.array([-np.inf]), "index": np.array([np.iinfo(np.int64).max])}
    least = {"value": np.array([-np.inf]), "index": np.array([7])}
    for pair in ((neutral, least), (least, neutral)):
        assert ARGMAX.combine(*pair)["index"] == [7]


@pytest.mark.parametrize("dtype", FLOATS, **ids)
def test_logaddexp_against_its_formula(dtype):
    rng = np.random.default_rng(4)
    a, b = ((rng.normal(size=4001) * 5).astype(dtype) for _ in range(2))
    with np.errstate(under="ignore"):
        want = np.logaddexp(a.astype(np.float64), b.astype(np.float64))
    made = value_fold(LOGADDEXP, [a, b]).astype(np.float64)
    greatest = np.maximum(np.abs(want), np.maximum(np.abs(a), np.abs(b)).astype(np.float64))
    assert np.all(np.abs(made - want) <= 4 * UNIT[dtype] * greatest)


@pytest.mark.parametrize("dtype", FLOATS, **ids)
@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (-np.inf, -np.inf, -np.inf),
        (np.inf, np.inf, np.inf),
        (np.inf, -np.inf, np.inf),
        (np.inf, 3, np.inf),
        (-np.inf, 2.5, 2.5),
        (0, 0, math.log(2)),
        (np.nan, 1, np.nan),
        (np.nan, -np.inf, np.nan),
    ],
)
def test_logaddexp_of_infinities_goes_by_rule(dtype, a, b, want):
    for pair in ((a, b), (b, a)):
        made = value_fold(LOGADDEXP, [np.array([x], dtype) for x in pair])
        np.testing.assert_allclose(made.astype(np.float64), [want], rtol=2 * UNIT[dtype])


def test_logaddexp_is_exact_far_below_one():
    x = np.array([1.0, 30.0, 300.0, 700.0])
    made = value_fold(LOGADDEXP, [np.zeros(4), -x])
    np.testing.assert_allclose(made, np.log1p(np.exp(-x)), rtol=1e-15)


@pytest.mark.parametrize("dtype", FLOATS, **ids)
@pytest.mark.parametrize("count", ["int64", "own"])
def test_welford_is_mean_and_variance(dtype, count):
    rng = np.random.default_rng(6)
    parts = [rng.normal(3, 2, (size, 5)) for size in (7, 0, 1, 20)]
    values = []
    for part in parts:
        mean = part.mean(axis=0) if len(part) else np.zeros(5)
        m2 = ((part - mean) ** 2).sum(axis=0) if len(part) else np.zeros(5)
        counted = np.full(5, len(part)).astype(np.int64 if count == "int64" else dtype)
        values.append({"count": counted, "mean": mean.astype(dtype), "m2": m2.astype(dtype)})
    layout = WELFORD.layout({name: (array.shape, array.dtype) for name, array in values[0].items()})
    made = fold(WELFORD, layout, values)
    whole = np.concatenate(parts)
    assert (made["count"] == len(whole)).all()
    np.testing.assert_allclose(
        made["mean"].astype(float), whole.mean(axis=0), rtol=8 * UNIT[dtype], atol=8 * UNIT[dtype]
    )
    np.testing.assert_allclose(made["m2"].astype(float), whole.var(axis=0) * len(whole), rtol=16 * UNIT[dtype])


def test_welford_ignores_what_empty_samples_hold():
    empty = {"count": np.array([0]), "mean": np.array([np.nan]), "m2": np.array([np.inf])}
    full = {"count": np.array([3]), "mean": np.array([0.1]), "m2": np.array([0.7])}
    for pair in ((empty, full), (full, empty)):
        made = WELFORD.combine(*pair)
        assert [made[name][0] for name in ("count", "mean", "m2")] == [3, 0.1, 0.7]
    made = WELFORD.combine(empty, empty)
    assert [made[name][0] for name in ("count", "mean", "m2")] == [0, 0, 0]


def test_welford_of_equal_values_is_exact():
    one = {"count": np.array([3]), "mean": np.array([0.1]), "m2": np.array([0.0])}
    many = {"count": np.array([10**9]), "mean": np.array([0.1]), "m2": np.array([0.0])}
    made = WELFORD.combine(one, many)
    assert (made["mean"][0], made["m2"][0]) == (0.1, 0)


def test_welford_with_an_infinite_mean_is_infinite_from_either_side():
    far = {"count": np.array([5.0]), "mean": np.array([np.inf]), "m2": np.array([0.0])}
    near = {"count": np.array([2.0]), "mean": np.array([1.0]), "m2": np.array([0.0])}
    for pair in ((far, near), (near, far)):
        assert WELFORD.combine(*pair)["mean"] == [np.inf]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], **ids)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_topk_is_the_head_of_the_sorted_whole(dtype, k):
    rng = np.random.default_rng(k)
    items = rng.integers(0, 6, (4, 10)).astype(dtype)
    if dtype in FLOATS:
        items[rng.random(items.shape) < 0.2] = np.nan
        items[rng.random(items.shape) < 0.2] = -np.inf
    payload = rng.permutation(40).reshape(4, 10)
    parts = [slice(0, 4), slice(4, 4), slice(4, 5), slice(5, 10)]
    values = [topk_value(items[:, part], k, payload[:, part]) for part in parts]
    layout = TOPK(k).layout({name: (array.shape, array.dtype) for name, array in values[0].items()})
    made = fold(TOPK(k), layout, values)
    for row in range(4):
        order = sorted(range(10), key=lambda at: (rank_of(items[row, at]), payload[row, at]))[:k]
        assert bits(made["values"][row]) == bits(items[row, order])
        assert list(made["payload"][row]) == list(payload[row, order])


def rank_of(x):
    return -math.inf if x != x else -float(x) if float(x) > -math.inf else 1e300


def test_topk_of_few_items():
    made = topk_value(np.float32([5, 7]), 4)
    assert made["values"].tolist() == [7, 5, -np.inf, -np.inf]
    assert made["payload"].tolist() == [1, 0, -1, -1]
    assert topk_value(np.zeros((3, 0), np.int8), 2)["values"].tolist() == [[-128, -128]] * 3
    real = topk_value(np.array([-np.inf]), 2, [9])
    empty = topk_value(np.zeros(0), 2)
    for pair in ((real, empty), (empty, real)):
        assert TOPK(2).combine(*pair)["payload"].tolist() == [9, -1]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: topk_value(np.float64(3), 2), r"topk_value: expected values \[\*rows, n\] of floats or integers"),
        (lambda: topk_value(np.zeros(3, complex), 2), "got complex128"),
        (lambda: topk_value(np.zeros(3), 2, [0, -1, 2]), "payload must be integers, 0 or more, got -1"),
        (lambda: topk_value(np.zeros(3), 2, [0.5, 1, 2]), "payload must be integers, 0 or more, got float64"),
        (lambda: topk_value(np.zeros(3), 2, [0, 1]), r"payload \[2\] does not broadcast to the shape of values, \[3\]"),
        (lambda: topk_value(np.zeros(3), 0), "topk_value: k must be 1 or more, got 0"),
        (lambda: TOPK(2.5), "TOPK: k must be a whole number, 1 or more, got 2.5"),
        (lambda: AFFINE_MATRIX("2"), "AFFINE_MATRIX: d must be a whole number, 1 or more, got '2'"),
        (lambda: TOPK(0), "TOPK: k must be 1 or more, got 0"),
        (lambda: AFFINE_MATRIX(0), "AFFINE_MATRIX: d must be 1 or more, got 0"),
        (
            lambda: TOPK(8).layout({"values": ((5,), "f4"), "payload": ((5,), "i8")}),
            r"operator 'topk\(8\)' takes rows of 8 items, got 5; topk_value\(values, 8\) makes them",
        ),
        (
            lambda: AFFINE_MATRIX(2).layout({"a": ((3, 3), "f4"), "b": ((3,), "f4")}),
            r"operator 'affine_matrix\(2\)' takes maps of vectors of size 2, got 3",
        ),
        (
            lambda: BAND.layout({"value": ((3,), "f4")}),
            "operator 'band' takes integers and bool, got float32 in field 'value'; bits of other numbers mean nothing",
        ),
        (lambda: SUM.layout({"value": ((3,), "?")}), "got bool in field 'value'; use BOR or BAND for bool"),
        (
            lambda: SUM.layout({"value": ((3,), ">f4")}),
            "got float32 in another byte order in field 'value'; convert it first",
        ),
        (lambda: SUM.layout({"value": ((3,), "O")}), "takes integers, floats and complex numbers, got object"),
        (lambda: MAX.layout({"value": ((3,), "c8")}), "operator 'max' takes integers, floats and bool, got complex64"),
        (lambda: LOGADDEXP.layout({"value": ((3,), "i4")}), "operator 'logaddexp' takes floats, got int32"),
        (
            lambda: AFFINE.layout({"a": ((3,), "f4"), "b": ((3,), "f8")}),
            "takes one dtype, got float32 in field 'a' and float64 in field 'b'; convert one of them",
        ),
        (
            lambda: WELFORD.layout({"count": ((3,), "i4"), "mean": ((3,), "f4"), "m2": ((3,), "f4")}),
            "operator 'welford' takes int64 or a float in field 'count', got int32; convert it first",
        ),
        (
            lambda: ARGMAX.layout({"value": ((3,), "f4"), "index": ((3,), "i4")}),
            "field 'index' must be int64, got int32; convert it first",
        ),
    ],
)
def test_what_is_not_taken_is_named(act, message):
    with pytest.raises(OperatorError, match=message):
        act()


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype("i8"), np.dtype("c16")], **ids)
def test_affine_scans_a_recurrence(dtype):
    rng = np.random.default_rng(8)
    steps = [{"a": rng.integers(-1, 3, 5).astype(dtype), "b": rng.integers(-2, 3, 5).astype(dtype)} for _ in range(4)]
    h = start = np.arange(5).astype(dtype)
    for step in steps:
        h = step["a"] * h + step["b"]
    whole = fold(AFFINE, layout_of(AFFINE, dtype, (5,)), steps)
    np.testing.assert_array_equal(whole["a"] * start + whole["b"], h)


@pytest.mark.parametrize("dtype", FLOATS, **ids)
def test_affine_maps_of_vectors(dtype):
    rng = np.random.default_rng(9)
    operator = AFFINE_MATRIX(3)
    steps = [{"a": rng.integers(-1, 2, (2, 3, 3)).astype(dtype), "b": rng.integers(-2, 3, (2, 3)).astype(dtype)}]
    steps += [{name: array[::-1].copy() for name, array in steps[0].items()} for _ in range(2)]
    h = start = np.arange(6).reshape(2, 3).astype(np.float64)
    for step in steps:
        h = np.einsum("nij,nj->ni", step["a"].astype(float), h) + step["b"].astype(float)
    whole = fold(operator, layout_of(operator, dtype, (2,)), steps)
    np.testing.assert_array_equal(
        np.einsum("nij,nj->ni", whole["a"].astype(float), start) + whole["b"].astype(float), h
    )


def test_every_operator_has_a_name_in_the_package_table():
    table = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    named = {}
    for name, place in table["topocomm.operators"].items():
        module, attribute = place.split(":")
        found = getattr(import_module(module), attribute)
        named[name] = found if isinstance(found, Operator) else found(3)
        assert named[name].name.split("(")[0] == name
    public = {x for x in map(topocomm.__dict__.get, topocomm.__all__) if isinstance(x, Operator)}
    assert public | {TOPK(3), AFFINE_MATRIX(3)} == set(named.values()) - {import_module("attention").LOGSUMEXP}
