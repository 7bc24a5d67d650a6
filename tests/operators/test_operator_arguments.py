"""Wrong arguments of an Operator: each is told when it is made, and an identity that fits no row before data moves."""

import numpy as np
import pytest

from topocomm import SUM, Field, Operator, OperatorError, run_local

X = (Field("x"),)


def add(left, right):
    return {"x": left["x"] + right["x"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": 3}, "Operator: name must be a string, got 3"),
        ({"name": ""}, "Operator: name must be a string"),
        ({"fields": "x"}, r"fields must be a tuple of Field, such as \(Field\('x'\),\), got str 'x'"),
        ({"fields": None}, "fields must be a tuple of Field"),
        ({"fields": (Field(3),)}, "the name of a field must be a string, got int 3"),
        ({"fields": (Field("x", "*rows"),)}, r"field 'x': dims must be a tuple of names, .* got str '\*rows'"),
        ({"fields": (Field("x", (3,)),)}, r"dims must be a tuple of names, .* got tuple \(3,\)"),
        ({"fields": (Field("x", dtype="float33"),)}, "field 'x': dtype must be one of NumPy's, .* got str 'float33'"),
        ({"combine": None}, "combine must be a function of two mappings .* got NoneType None"),
        ({"combine": np.add}, r"combine must be a function of two mappings .* got ufunc <ufunc 'add'>"),
        ({"combine": lambda a: a}, r"combine must take two values \(left, right\): too many positional arguments"),
        ({"combine": lambda a, b, c: a}, "combine must take two values .*: missing a required argument: 'c'"),
        ({"commutative": "yes"}, "commutative must be True or False, got str 'yes'"),
        ({"commutative": 1}, "commutative must be True or False, got int 1"),
        (
            {"kernel": lambda a_x, b_x, x: None},
            r"kernel takes \(layout\), <lambda> does not: .*'b_x'; wrap a function of one row with topocomm.row_kernel",
        ),
        ({"sample": lambda rng: {}}, r"sample takes \(rng, layout\), <lambda> does not: too many positional"),
        ({"kernel": 3}, "kernel must be a function or None, got int 3"),
        ({"refuses": "integers"}, "refuses must be a function or None"),
        ({"sample": True}, "sample must be a function or None"),
        ({"default_dims": 128}, r"default_dims must map names of axes to whole numbers, .* got int 128"),
        ({"default_dims": {"dim": 1.5}}, "default_dims must map names of axes to whole numbers"),
        (
            {"identity": None},
            r"identity must be a mapping with the fields \['x'\], such as \{'x': 0\}, .* got NoneType",
        ),
        ({"identity": "0"}, "identity of field 'x' must be a number or an array of them, got str '0'"),
        ({"identity": {"x": None}}, "identity of field 'x' must be a number or an array of them, got NoneType None"),
        ({"identity": {"y": 0}}, r"identity must have the fields \['x'\]; missing 'x'; unknown 'y'"),
        ({"identity": {3: 0}}, r"identity must have the fields \['x'\]; missing 'x'; unknown 3"),
        ({"fields": (Field("x"), Field("y")), "identity": 0}, r"identity must be a mapping .* got int 0"),
    ],
)
def test_wrong_arguments_are_told_when_the_operator_is_made(arguments, message):
    with pytest.raises(OperatorError, match=message):
        Operator(**({"name": "own", "fields": X, "combine": add, "identity": 0} | arguments))


@pytest.mark.parametrize("identity", [0, {"x": 0}, np.float32(0), lambda dtypes: {"x": 0}, lambda dtypes: 0])
def test_the_identity_of_one_field_may_be_bare(identity):
    own = Operator("own", [Field("x", ["*rows"])], add, identity)
    before = run_local(lambda comm: comm.exscan(np.full(3, comm.rank + 1.0), own), ranks=3)
    np.testing.assert_array_equal(np.stack(before), [[0.0] * 3, [1.0] * 3, [3.0] * 3])


@pytest.mark.parametrize(
    ("identity", "dtype", "message"),
    [
        (np.array([1.0, 2.0]), "f8", r"identity of field 'x', ndarray array\(\[1., 2.\]\), does not fit float64 \[\]"),
        (-np.inf, "i8", "does not fit int64 .*; give one that does, or a function from the dtypes"),
        (np.float64(np.nan), "i4", "does not fit int32"),
        (np.array(np.inf), "i4", "does not fit int32"),
        (300, "u1", "does not fit uint8"),
        (1j, "f8", "does not fit float64"),
        (lambda dtypes: {"y": 0}, "f8", r"identity must have the fields \['x'\]; missing 'x'; unknown 'y'"),
        (lambda dtypes: "zero", "f8", "identity of field 'x' must be a number"),
    ],
)
def test_an_identity_that_fits_no_row_is_told_before_data_moves(identity, dtype, message):
    own = Operator("own", X, add, identity)

    def told(comm):
        with pytest.raises(OperatorError, match=message):
            comm.exscan(np.ones(3, dtype), own)

    run_local(told, ranks=2)
    total = run_local(lambda comm: comm.allreduce(np.ones(3, dtype), own), ranks=2)[0]
    np.testing.assert_array_equal(total, np.full(3, 2, dtype))


def test_an_identity_may_have_the_shape_of_a_row():
    pairs = Operator("pairs", (Field("x", ("*rows", "n")),), add, np.array([0.0, 0.0]))
    first, second = run_local(lambda comm: comm.exscan(np.full((3, 2), 5.0), pairs), ranks=2)
    assert (first.tolist(), second.tolist()) == ([[0.0, 0.0]] * 3, [[5.0, 5.0]] * 3)
    assert SUM.identities(SUM.default_layout(4)) == {"value": 0}
