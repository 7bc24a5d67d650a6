"""Binding operators to arrays, the packed layout, and folds."""

import subprocess
import sys

import numpy as np
import pytest

from tests.operators.packed import fold
from topocomm import MAX, MIN, SUM, Field, Kernel, Operator, OperatorError
from topocomm.operators.operator import as_operator

PAIR = Operator(
    "pair",
    (Field("weights", ("*rows", "dim"), np.float32), Field("count", ("*rows",), np.int64)),
    lambda a, b: {name: a[name] + b[name] for name in a},
    {"weights": 0, "count": 0},
    default_dims={"dim": 3},
)


def layout(weights=(4, 3), count=(4,), dtype=np.float32):
    return PAIR.layout({"weights": (weights, dtype), "count": (count, np.int64)})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"weights": ((4, 3), np.float32)}, r"takes the fields \['weights', 'count'\]; missing 'count'$"),
        (
            {"weights": ((4, 3), np.float64), "count": ((4,), np.int64)},
            "field 'weights' must be float32, got float64; convert it first",
        ),
        (
            {"weights": ((4, 3), np.float32), "count": ((5,), np.int64)},
            r"field 'count' has leading shape \[5\], field 'weights' has \[4\]",
        ),
        (
            {"weights": ((), np.float32), "count": ((), np.int64)},
            r"field 'weights' has axes \['\*rows', 'dim'\], got an array of shape \[\]",
        ),
    ],
)
def test_misfits_are_named(shapes, message):
    with pytest.raises(OperatorError, match=message):
        PAIR.layout(shapes)


def test_one_axis_name_has_one_size():
    square = Operator("square", (Field("m", ("*rows", "n", "n")),), lambda a, b: a, {"m": 0})
    with pytest.raises(OperatorError, match="axis 'n' is 2 and, in field 'm', 3"):
        square.layout({"m": ((2, 3), np.float32)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((), "has no fields"),
        ((Field("a"), Field("b", ("n",))), "either every field or none"),
        ((Field("a", ("n", "*rows")),), r"must have '\*rows' first"),
        (Field("a"), r"fields must be a tuple of Field, got one Field; write \(Field\(...\),\)$"),
        (("a",), "got str 'a' in it"),
        ((Field("a"), Field("a")), r"fields \['a', 'a'\]: expected different names"),
        ((Field("a"), Field("b")), r"identity must have the fields \['a', 'b'\]; missing 'a', 'b'"),
    ],
)
def test_declarations_are_checked(fields, message):
    with pytest.raises(OperatorError, match=message):
        Operator("odd", fields, lambda a, b: a, {})


def test_default_layout_needs_sizes():
    with pytest.raises(OperatorError, match=r"no default size for axis 'dim'; give .*, as default_dims=\{'dim': 5\}"):
        Operator("bare", PAIR.fields, PAIR.combine, PAIR.identity).default_layout(4)
    assert PAIR.default_layout(4).row_bytes == 3 * 4 + 8
    assert SUM.default_layout(4).row_bytes == 4


def folded(operator, dtype, arrays, *, alias):
    bound = operator.layout({"value": (arrays[0].shape, dtype)})
    rows = bound.rows
    width = -(-bound.packed_bytes(rows) // 64) * 64
    buffer = np.zeros(width * (len(arrays) + 1), np.uint8)
    offsets = [width * i for i in range(len(arrays) + 1)]
    for offset, array in zip(offsets[1:], arrays, strict=True):
        bound.views(buffer, offset, rows)["value"][...] = array.reshape(-1)
    out = offsets[alias]
    target = bound.views(buffer, out, rows)
    operator.bind_fold(bound, buffer, rows, offsets[1:])(target)
    return target["value"].reshape(arrays[0].shape)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8])
@pytest.mark.parametrize(("operator", "reduce"), [(SUM, np.add), (MAX, np.maximum), (MIN, np.minimum)])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("alias", [0, 1])
def test_builtins_fold_left_to_right(operator, reduce, dtype, count, alias):
    rng = np.random.default_rng(count)
    arrays = [rng.integers(0, 40, (3, 5)).astype(dtype) for _ in range(count)]
    want = arrays[0]
    for array in arrays[1:]:
        want = reduce(want, array)
    np.testing.assert_array_equal(folded(operator, dtype, arrays, alias=alias), want)


def test_with_two_operands_the_result_may_replace_the_second():
    a, b = np.arange(6.0), np.arange(6.0)[::-1].copy()
    np.testing.assert_array_equal(folded(SUM, np.float64, [a, b], alias=2), a + b)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.uint8])
@pytest.mark.parametrize("operator", [SUM, MAX, MIN])
def test_identities(operator, dtype):
    neutral = operator.identity
    neutral = (neutral({"value": np.dtype(dtype)}) if callable(neutral) else neutral)["value"]
    x = np.array([0, 1, 100], dtype)
    result = operator.combine({"value": np.full(3, neutral, dtype)}, {"value": x})["value"]
    np.testing.assert_array_equal(result, x)


def test_a_plain_combine_needs_no_kernel():
    worst = Operator("worst", (Field("value"),), lambda a, b: {"value": a["value"] - b["value"]}, {"value": 0})
    arrays = [np.full(4, v, np.float64) for v in (10, 3, 2)]
    np.testing.assert_array_equal(folded(worst, np.float64, arrays, alias=0), np.full(4, 5.0))
    assert worst.fold_version(worst.default_layout(1)) == "numpy"


def test_a_kernel_is_chosen_by_layout():
    """Only float64 has one here, which is told by its result."""

    def bind(layout, buffer, rows, offsets):
        return lambda target: target["value"].fill(-1)

    def kernel(layout):
        return Kernel("picky/1", bind) if layout.fields[0].dtype == np.float64 else None

    picky = Operator("picky", (Field("value"),), SUM.combine, {"value": 0}, kernel=kernel)
    arrays = [np.ones(3), np.ones(3)]
    np.testing.assert_array_equal(folded(picky, np.float64, arrays, alias=0), np.full(3, -1.0))
    np.testing.assert_array_equal(folded(picky, np.float32, arrays, alias=0), np.full(3, 2.0))
    versions = [picky.fold_version(picky.layout({"value": ((1,), dtype)})) for dtype in ("f8", "f4")]
    assert versions == ["picky/1", "numpy"]
    assert picky.compiled_fold(picky.layout({"value": ((1,), "f8")})) is None


def test_a_layout_may_be_refused():
    whole = Operator(
        "whole",
        (Field("value"),),
        SUM.combine,
        {"value": 0},
        refuses=lambda layout: None if layout.fields[0].dtype.kind == "i" else "takes whole numbers",
    )
    with pytest.raises(OperatorError, match="operator 'whole' takes whole numbers"):
        whole.layout({"value": ((3,), np.float32)})
    assert whole.default_layout(3).fields[0].dtype == np.int64


def add_in_place(a, b):
    a["value"] += b["value"]
    return a


@pytest.mark.parametrize(
    ("combine", "dtype", "message"),
    [
        (add_in_place, "f8", r"combine must not write to its arguments \(.*read-only\); return new arrays"),
        (lambda a, b: {"other": a["value"]}, "f8", r"field 'value' is missing; got \['other'\]"),
        (lambda a, b: a["value"] + b["value"], "f8", "combine must return a dict of its fields, .*; got ndarray"),
        (lambda a, b: None, "f8", "got NoneType"),
        (lambda a, b: {"value": a["value"].sum()}, "f8", r"combine made field 'value' of shape \[\], not \[4\]"),
        (lambda a, b: {"value": a["value"][:1]}, "f8", r"of shape \[1\], not \[4\]"),
        (lambda a, b: {"value": a["value"] / 2}, "i8", "combine made field 'value' float64, not int64; convert it"),
    ],
)
def test_rules_that_break_their_form_are_told_where_they_run(combine, dtype, message):
    careless = Operator("careless", (Field("value"),), combine, {"value": 0})
    arrays = [np.ones(4, dtype), np.ones(4, dtype)]
    with pytest.raises(OperatorError, match=f"^operator 'careless': .*{message}"):
        folded(careless, dtype, arrays, alias=0)


def pair(change):
    def combine(a, b):
        return change({"value": a["value"] + b["value"], "count": a["count"] + b["count"]})

    return Operator("pair", (Field("value"), Field("count")), combine, {"value": 0, "count": 0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {"value": c["value"]}, r"field 'count' is missing; got \['value'\]"),
        (
            lambda c: {**c, "more": c["count"]},
            r"combine made field 'more', which is none of its fields",
        ),
        (lambda c: {**c, "count": c["count"][:1]}, r"combine made field 'count' of shape \[1\], not \[4\]"),
        (
            lambda c: {**c, "count": c["count"] / 2},
            "combine made field 'count' (torch.)?float.., not (torch.)?int64",
        ),
    ],
)
@pytest.mark.parametrize("tensors", [False, True])
def test_what_goes_from_one_fold_into_the_next_has_its_form(change, message, tensors):
    if tensors:
        pytest.importorskip("torch")
    layout = pair(dict).layout({"value": ((4,), np.int64), "count": ((4,), np.int64)})
    operands = [{"value": np.ones(4, np.int64), "count": np.ones(4, np.int64)}] * 3
    assert fold(pair(dict), layout, operands, tensors=tensors)["count"].tolist() == [3] * 4
    with pytest.raises(OperatorError, match=f"^operator 'pair': combine .*{message}|^operator 'pair': {message}"):
        fold(pair(change), layout, operands, tensors=tensors)


def test_a_rule_for_bare_arrays_is_told_what_it_gets():
    bare = Operator("bare", (Field("value"),), lambda a, b: np.maximum(a, b), {"value": 0})
    with pytest.raises(TypeError) as caught:
        folded(bare, "f8", [np.ones(4)] * 2, alias=0)
    assert "combine of operator 'bare', which gets two dicts of arrays, as a['value']" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("given", "end"),
    [
        (np.add, "got ufunc add; did you mean SUM?"),
        ("Max", "got str Max; did you mean MAX?"),
        (max, "got builtin_function_or_method max; did you mean MAX?"),
        (3, "got int"),
    ],
)
def test_what_is_no_operator_is_told_with_the_one_meant(given, end):
    with pytest.raises(OperatorError) as caught:
        as_operator(given)
    assert str(caught.value) == f"expected an Operator such as topocomm.SUM or TOPK(5), {end}"


def test_operators_of_mpi4py_are_told_by_name():
    pytest.importorskip("mpi4py")
    program = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from topocomm import OperatorError
from topocomm.operators.operator import as_operator
for op in (MPI.SUM, MPI.MAXLOC, MPI.REPLACE):
    try:
        as_operator(op)
    except OperatorError as error:
        print(str(error).partition(", got ")[2])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "Op: MPI.SUM; give topocomm.SUM",
        "Op: MPI.MAXLOC; give topocomm.ARGMAX, of the fields value and index",
        "Op; give an Operator with the rule of this MPI_Op as its combine",
    ], done.stderr


def test_other_errors_of_a_rule_come_out_as_they_are():
    def combine(a, b):
        raise ValueError("of its own")

    with pytest.raises(ValueError, match=r"^of its own$"):
        folded(Operator("raises", (Field("value"),), combine, {"value": 0}), "f8", [np.ones(4)] * 2, alias=0)
