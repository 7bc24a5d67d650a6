"""`check_laws` tells every broken law with a counterexample, and no law that holds."""

import dataclasses
import re

import numpy as np
import pytest

from topocomm import AFFINE, MAX, SUM, TOPK, Field, LawReport, Operator, OperatorError, check_laws

X = "x"


def operator(rule, identity=0, *, commutative=False, dtype=None, **more):
    return Operator(
        "planted",
        (Field(X, dtype=dtype),),
        lambda a, b: {X: rule(a[X], b[X])},
        {X: identity},
        commutative=commutative,
        **more,
    )


def write(left, right):
    left += right
    return left


def write_to_right(left, right):
    right *= 1
    right[:1] = 7
    return left + right


PLANTED = {
    "wrong identity": (operator(np.add, 1), {"identity"}, ["e.a = ", ", a = ", "; e = 1.0"]),
    "zero for maximum": (operator(np.maximum, 0), {"identity"}, ["e.a = 0.0, a = -", "; e = 0.0"]),
    "identity of one side": (
        operator(lambda a, b: np.where(b == 0, a, b), 0, dtype=np.int64),
        set(),
        [],
    ),
    "identity of the left only": (
        operator(lambda a, b: b, 0, dtype=np.int64),
        {"identity"},
        ["a.e = 0"],
    ),
    "average": (
        operator(lambda a, b: (a + b) / 2, commutative=True),
        {"identity", "associativity"},
        ["associativity  BROKEN; beyond what rounding explains", "(a.b).c = ", "a.(b.c) = "],
    ),
    "subtraction": (operator(np.subtract), {"identity", "associativity"}, ["(a.b).c = "]),
    "subtraction of integers": (operator(np.subtract, dtype=np.int32), {"identity", "associativity"}, ["(a.b).c = "]),
    "claims to commute": (
        operator(lambda a, b: b * 0 + a, commutative=True, dtype=np.int64),
        {"identity", "commutativity"},
        ["commutativity  BROKEN; though claimed", "a.b = ", "b.a = "],
    ),
    "commutes but for the last bit": (
        operator(
            lambda a, b: a + b + a.clip(0, 1) * b.clip(-1, 0) * np.float32(1e-7), commutative=True, dtype=np.float32
        ),
        {"commutativity"},
        ["a.b = "],
    ),
    "zeros of either sign": (
        operator(lambda a, b: np.where(a >= b, a, b), -np.inf, commutative=True, dtype=np.float32),
        {"commutativity", "associativity", "identity"},  # NaN, too, wins from one side only
        ["commutativity  BROKEN; though claimed"],
    ),
    "sorts over the rows": (
        operator(lambda a, b: np.sort(np.maximum(a, b), axis=0), -np.inf, dtype=np.float32),
        {"rows", "identity", "associativity"},
        ["rows           BROKEN; a row depends on others; for a value that is never cut leave out '*rows'"],
    ),
    "sums over the rows": (
        operator(lambda a, b: np.broadcast_to((a + b).sum(axis=0), a.shape).copy(), dtype=np.float64),
        {"rows", "identity"},
        ["rows           BROKEN; a row depends on others", "a.b of fewer rows = "],
    ),
    "takes the mean of the rows away": (
        operator(lambda a, b: a + b - (a + b).mean(axis=0) if len(a) else a, dtype=np.float64),
        {"rows", "identity"},
        ["rows           BROKEN; a row depends on others"],
    ),
    "maximum over the rows, which no rows have": (
        operator(lambda a, b: np.broadcast_to(np.maximum(a, b).max(axis=0), a.shape).copy(), -np.inf, dtype=np.float32),
        {"rows", "identity"},
        ["rows           BROKEN; a row depends on others", "a.b of fewer rows = "],
    ),
    "raises on no rows": (
        operator(lambda a, b: a + b + 0 * len(a) / ((a.shape[0] and 1) or [][0]), dtype=np.float64),
        {"rows"},
        ["combine raises on values of 0 rows: IndexError: list index out of range; a row depends on others"],
    ),
    "raises on one row": (
        operator(lambda a, b: a + b if len(a) != 1 else a[1], dtype=np.float64),
        {"rows"},
        ["combine raises on a part of the rows: IndexError: "],
    ),
    "merges sorted rows": (
        operator(
            lambda a, b: np.sort(np.concatenate([a, b]), axis=0)[: len(a)],
            np.iinfo(np.int64).max,
            dtype=np.int64,
            commutative=True,
            sample=lambda rng, layout: {X: np.sort(rng.integers(0, 99, layout.leading))},
        ),
        {"rows", "identity"},
        ["a.b = ", "a.b of fewer rows = "],
    ),
    "a moving sum over the rows": (
        operator(lambda a, b: a + b + np.roll(a, 1, axis=0) * 0.5, dtype=np.float64),
        {"rows", "identity", "associativity"},
        ["a row depends on others"],
    ),
    "writes to the left": (operator(write), {"purity"}, ["combine writes to field 'x' of its left argument: "]),
    "writes to the right": (operator(write_to_right), {"purity"}, ["field 'x' of its right argument: ", " became 7.0"]),
    "another dtype": (
        operator(lambda a, b: (a + b).astype(np.float64), dtype=np.float32),
        {"shapes"},
        ["field 'x' of the result is float64, not float32; add .astype"],
    ),
    "another shape": (operator(lambda a, b: (a + b)[:1]), {"shapes"}, ["has shape [1], not [256]"]),
    "no dict": (
        Operator("planted", (Field(X),), lambda a, b: a[X] + b[X], {X: 0}),
        {"shapes"},
        ["combine must return a dict of the fields ['x']; got ndarray"],
    ),
    "another field": (
        Operator("planted", (Field(X),), lambda a, b: {"y": a[X]}, {X: 0}),
        {"shapes"},
        ["combine must return a dict of the fields ['x']; missing 'x'; unknown 'y'"],
    ),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_told(name):
    planted, laws, parts = PLANTED[name]
    report = check_laws(planted)
    assert isinstance(report, LawReport)
    assert set(report.broken) == laws, report
    assert report.ok == (not laws)
    for part in parts:
        assert part in str(report)
    for law in report.laws:
        assert law.holds or law.counterexample or law.detail


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
def test_rounding_is_measured_and_no_fault(dtype):
    report = check_laws(operator(np.add, commutative=True), dtype=dtype)
    assert report.ok
    assert 0.2 < report.worst_rounding_ulp < 3
    assert f"rounding moves it by up to {report.worst_rounding_ulp:.1f} ulp" in str(report)
    assert check_laws(MAX, dtype=dtype if dtype != "c16" else "f2").worst_rounding_ulp == 0
    assert "associativity  holds; exact on all tried" in str(check_laws(MAX))


def test_a_small_departure_from_associativity_is_found():
    """A thousandth, far above the rounding of float64."""
    report = check_laws(operator(lambda a, b: a + b + 1e-3 * a * a * b), dtype=np.float64)
    assert "associativity" in report.broken


def test_sizes_are_the_operator_s_own_where_it_says_any():
    fields = (Field(X, ("*rows", "k", "n")),)
    own = Operator("own", fields, lambda a, b: {X: a[X] + b[X]}, {X: 0}, default_dims={"k": 8})
    assert check_laws(own).layout == "x float32 [256, 8, 3]"
    assert check_laws(own, dims={"k": 2}, samples=40).layout == "x float32 [40, 2, 3]"


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (
            lambda rng, layout: {"x": np.zeros((*layout.leading, 2))},
            r"field 'x' has shape \[32, 2\], not \[32, 3\]; give the operator default_dims=\{'k': 2\}$",
        ),
        (
            lambda rng, layout: {"y": np.zeros((*layout.leading, 3))},
            r"with the fields \['x'\]; missing 'x'; unknown 'y'$",
        ),
        (lambda rng, layout: np.zeros((*layout.leading, 3)), r"with the fields \['x'\]; got ndarray$"),
        (lambda rng, layout: {"x": "many"}, r"field 'x' is no float64 array \("),
    ],
)
def test_a_sample_that_makes_no_value_is_told(sample, reason):
    fields = (Field(X, ("*rows", "k"), np.float64),)
    own = Operator("own", fields, lambda a, b: {X: a[X] + b[X]}, {X: 0}, sample=sample)
    with pytest.raises(OperatorError, match=f"(?m)^check_laws: `sample` of operator 'own' must.* {reason}"):
        check_laws(own, samples=32)


def test_what_is_not_claimed_and_seems_to_hold_is_a_hint():
    assert "it seems to commute: commutative=True would allow more plans" in str(check_laws(operator(np.add)))
    assert "not claimed" in str(check_laws(AFFINE))
    assert "seems" not in str(check_laws(AFFINE))


def test_counterexamples_are_one_row_of_every_field():
    wrong = dataclasses.replace(AFFINE, identity={"a": 1, "b": 1})
    text = str(check_laws(wrong))
    assert "  field 'b': e.a = " in text or "  field 'b': a.e = " in text
    assert "; e = (a 1.0, b 1.0)" in text
    assert max(map(len, text.splitlines())) < 200


def test_a_counterexample_of_many_fields_begins_with_the_one_that_differs():
    names = [f"field{number}" for number in range(8)]
    fields = tuple(Field(name, ("*rows", "k"), "i8") for name in names)

    def rule(a, b):
        last = np.concatenate(
            [a["field7"][:, :1] + b["field7"][:, :1], a["field7"][:, 1:] - b["field7"][:, 1:]], axis=1
        )
        return {name: np.maximum(a[name], b[name]) for name in names[:7]} | {"field7": last}

    def small(rng, layout):
        return {name: rng.integers(0, 9, (*layout.leading, 2)) for name in names}

    own = Operator("own", fields, rule, dict.fromkeys(names, 0), default_dims={"k": 2}, sample=small)
    (law,) = [law for law in check_laws(own).laws if law.name == "associativity"]
    assert re.fullmatch(
        r"field 'field7' \[1\]: \(a.b\).c = -?\d+, a.\(b.c\) = -?\d+; "
        r"a = \[\d, \d\], b = \[\d, \d\], c = \[\d, \d\]",
        law.counterexample,
    ), law


def test_what_stops_at_once_is_not_said_to_have_been_tried():
    report = check_laws(operator(lambda a, b: (a + b)[:1]))
    assert report.tried == 0
    assert str(report).endswith("Stopped there: no other was tried.")
    assert check_laws(SUM, samples=256).tried == 512


def test_a_kernel_that_differs_is_told():
    wrong = dataclasses.replace(SUM, combine=lambda a, b: {"value": a["value"] + b["value"] * 1}, kernel=MAX.kernel)
    report = check_laws(wrong)
    assert report.broken == ("kernel",)
    assert "kernel         BROKEN; differs from combine" in str(report)
    assert "kernel = " in str(report)


def test_operators_without_rows_and_without_items():
    def matrix(a, b):
        return {"m": np.einsum("rij,rjk->rik", a["m"], b["m"])}

    product = Operator("product", (Field("m", ("n", "n")),), matrix, {"m": np.eye(2)})
    report = check_laws(product, dims={"n": 2}, samples=40)
    assert report.ok, report
    assert not check_laws(dataclasses.replace(product, identity={"m": 0}), dims={"n": 2}, samples=40).ok
    assert check_laws(SUM, samples=0).ok
    assert check_laws(operator(np.add), samples=1).ok
    lost = operator(lambda a, b: a + b if len(a) else np.zeros(1, a.dtype))
    assert "field 'x' of the result has shape [1], not [0]" in str(check_laws(lost))


def test_sizes_that_an_identity_does_not_fit_are_told():
    product = Operator(
        "matmul", (Field("m", ("*rows", "i", "i")),), lambda a, b: {"m": a["m"] @ b["m"]}, {"m": np.eye(2)}
    )
    with pytest.raises(OperatorError, match="does not fit") as caught:
        check_laws(product)
    assert caught.value.__notes__ == ["check_laws took the sizes {'i': 3}; give others as dims={'i': 2}"]
    assert check_laws(product, dims={"i": 2}).ok


@pytest.mark.parametrize(("given", "kind"), [(TOPK, "function"), (3, "int"), (None, "NoneType"), (np.add, "ufunc")])
def test_what_is_no_operator_is_told(given, kind):
    with pytest.raises(OperatorError, match=rf"expected an Operator such as topocomm.SUM or TOPK\(5\), got {kind}"):
        check_laws(given)
