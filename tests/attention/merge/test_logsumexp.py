import math
import sys

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention import LOGSUMEXP
from attention.merge import logsumexp as merge_module

EMPTY = -np.inf


def partial(out, lse):
    return {"out": np.asarray(out, np.float32), "lse": np.asarray(lse, np.float32)}


def fold(parts, *, into=0, kernel=True):
    """((a.b).c) through the operator's packed fold. Slot 0 is apart; `into` says which slot is written."""
    layout = LOGSUMEXP.layout({name: (x.shape, x.dtype) for name, x in parts[0].items()})
    rows = layout.rows
    stride = -(-layout.packed_bytes(rows) // 64) * 64
    buffer = np.full((len(parts) + 1) * max(stride, 64), 0xFF, np.uint8)  # NaN, so that nothing relies on zeros
    for slot, part in enumerate(parts, 1):
        for name, view in layout.views(buffer, slot * stride, rows).items():
            view[...] = part[name].reshape(view.shape)
    offsets = [slot * stride for slot in range(1, len(parts) + 1)]
    bind = LOGSUMEXP.bind_fold if kernel else LOGSUMEXP._numpy_fold
    views = layout.views(buffer, into * stride, rows)
    bind(layout, buffer, rows, offsets)(views)
    return {name: view.reshape(parts[0][name].shape).copy() for name, view in views.items()}


def exact(parts):
    """The merge by its definition, in float64."""
    outs = np.stack([np.where(p["lse"][..., None] == EMPTY, 0.0, p["out"]) for p in parts]).astype(np.float64)
    lses = np.stack([p["lse"] for p in parts]).astype(np.float64)
    top = lses.max(0)
    weights = np.exp(lses - np.where(top == EMPTY, 0, top))
    total = weights.sum(0)
    some = np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        return {"out": (weights[..., None] * outs).sum(0) / some[..., None], "lse": top + np.log(total)}


def assert_same_bits(got, expected):
    assert got["out"].tobytes() == expected["out"].tobytes()
    assert got["lse"].tobytes() == expected["lse"].tobytes()


both = pytest.mark.parametrize("kernel", [True, False], ids=["numba", "numpy"])


@both
def test_vectors_of_others(kernel):
    a, b = partial([[2, 4]], [1]), partial([[6, 8]], [2])
    merged = fold([a, b], kernel=kernel)
    np.testing.assert_allclose(merged["out"], [[4.924234, 6.924234]], atol=2e-6)
    np.testing.assert_allclose(merged["lse"], [2.313262], atol=1e-6)


@both
def test_two_keys_of_weight_2_and_8(kernel):
    # Read as base 2 the weights would be 0.2767 and 0.7233; as log2 taken for ln, 0.1192 and 0.8808.
    a, b = partial([[1, 0]], [math.log(2)]), partial([[0, 1]], [math.log(8)])
    merged = fold([a, b], kernel=kernel)
    np.testing.assert_allclose(merged["out"], [[0.2, 0.8]], atol=1e-7)
    np.testing.assert_allclose(merged["lse"], [math.log(10)], atol=3e-7)


@both
def test_equal_lse_gives_the_mean(kernel):
    parts = [partial([[1, -3]], [5]), partial([[4, 7]], [5])]
    merged = fold(parts, kernel=kernel)
    assert_same_bits(merged, partial([[2.5, 2]], [np.float32(5 + math.log(2))]))


@both
def test_a_dominant_operand_wins(kernel):
    a, b = partial([[3, 5]], [-100]), partial([[-1, 2]], [0])
    np.testing.assert_allclose(fold([a, b], kernel=kernel)["out"], b["out"], atol=1e-5)
    far = partial([[3, 5]], [-200])  # its weight is exactly 0
    assert_same_bits(fold([far, b], kernel=kernel), b)


@both
@pytest.mark.parametrize("junk", [0.0, np.nan, np.inf, -np.inf])
def test_an_empty_operand_changes_nothing_whatever_it_holds(kernel, junk):
    value = partial([[0.1, -0.0, 3e38], [1e-40, 2, 3]], [7.25, -1e30])
    empty = partial(np.full((2, 3), junk), [EMPTY, EMPTY])
    for parts in ([value, empty], [empty, value], [empty, value, empty]):
        assert_same_bits(fold(parts, kernel=kernel), value)
    nothing = partial(np.zeros((2, 3)), [EMPTY, EMPTY])
    assert_same_bits(fold([empty, empty], kernel=kernel), nothing)
    assert_same_bits(fold([empty, empty, empty], kernel=kernel), nothing)


@both
def test_rows_are_empty_one_by_one(kernel):
    a = partial([[1, 2], [np.nan, np.nan], [3, 4]], [1, EMPTY, 2])
    b = partial([[np.nan, np.nan], [5, 6], [7, 8]], [EMPTY, 3, 2])
    merged = fold([a, b], kernel=kernel)
    assert merged["out"].tolist() == [[1, 2], [5, 6], [5, 6]]
    assert merged["lse"][:2].tolist() == [1, 3]


@both
@pytest.mark.parametrize("lse", [np.nan, np.inf])
def test_a_lse_that_is_no_number_stays_visible(kernel, lse):
    wrong, right, empty = partial([[1]], [lse]), partial([[2]], [0.5]), partial([[3]], [EMPTY])
    for parts in ([wrong, wrong], [wrong, right], [right, wrong], [right, empty, wrong], [wrong, empty, right]):
        merged = fold(parts, kernel=kernel)
        assert np.isnan(merged["out"]).all()
        assert np.isnan(merged["lse"]).all()
    for parts in ([wrong, empty], [empty, wrong]):
        assert np.isnan(fold(parts, kernel=kernel)["lse"]).all()


@both
def test_a_shift_of_all_lse_moves_nothing_else(kernel):
    rng = np.random.default_rng(3)
    parts = [partial(rng.standard_normal((5, 7)), rng.integers(-8, 8, 5) / 4) for _ in range(4)]
    shifted = [partial(p["out"], p["lse"] + 16) for p in parts]
    plain, moved = fold(parts, kernel=kernel), fold(shifted, kernel=kernel)
    np.testing.assert_allclose(moved["out"], plain["out"], atol=2e-6)
    np.testing.assert_allclose(moved["lse"], plain["lse"] + 16, atol=4e-6)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("dim", [1, 15, 128])
def test_the_kernel_writes_over_its_first_operand(count, dim):
    rng = np.random.default_rng(count)
    parts = [partial(rng.standard_normal((6, dim)), rng.standard_normal(6) * 4) for _ in range(count)]
    parts[1]["lse"][2] = parts[0]["lse"][3] = EMPTY
    apart = fold(parts)
    assert_same_bits(fold(parts, into=1), apart)
    if count == 2:
        assert_same_bits(fold(parts, into=2), apart)


def test_one_operand_and_no_rows():
    one = partial([[1, 2, 3]], [4])
    assert_same_bits(fold([one]), one)
    none = partial(np.zeros((0, 3)), np.zeros(0))
    assert_same_bits(fold([none, none]), none)


floats = st.floats(-1e6, 1e6, width=32)
lses = st.one_of(st.floats(-60, 60, width=32), st.just(EMPTY), st.floats(-1e4, 1e4, width=32))


@st.composite
def partials(draw, count=None):
    rows, dim = draw(st.integers(1, 5)), draw(st.integers(1, 19))
    count = draw(st.integers(2, 6)) if count is None else count
    return [
        {
            "out": draw(hnp.arrays(np.float32, (rows, dim), elements=floats)),
            "lse": draw(hnp.arrays(np.float32, (rows,), elements=lses)),
        }
        for _ in range(count)
    ]


def tolerance(parts):
    return 1e-6 * max(1e-6, *(float(np.abs(p["out"]).max()) for p in parts))


@given(partials())
def test_the_n_way_fold_is_the_merge_of_two_repeated(parts):
    acc = parts[0]
    for part in parts[1:]:
        acc = fold([acc, part])
    assert_same_bits(fold(parts), acc)


@given(partials())
def test_kernel_and_numpy_follow_the_formula(parts):
    expected = exact(parts)
    for kernel in (True, False):
        merged = fold(parts, kernel=kernel)
        np.testing.assert_allclose(merged["out"], expected["out"], rtol=0, atol=tolerance(parts))
        np.testing.assert_allclose(merged["lse"], expected["lse"], rtol=3e-7, atol=1e-6)


@given(partials(count=3))
def test_associative_within_rounding(parts):
    a, b, c = parts
    left, right = fold([fold([a, b]), c]), fold([a, fold([b, c])])
    between = max((float(abs(x)) for p in parts for x in p["lse"].ravel() if np.isfinite(x)), default=0.0)
    rounded = 1e6 * np.spacing(np.float32(between))  # lse of what is merged first is rounded, and weights with it
    np.testing.assert_allclose(left["out"], right["out"], rtol=0, atol=(2 + rounded) * tolerance(parts))
    np.testing.assert_allclose(left["lse"], right["lse"], rtol=3e-7, atol=1e-6)


@given(partials(count=2))
def test_commutative_to_the_bit(parts):
    a, b = parts
    for kernel in (True, False):
        merged, swapped = fold([a, b], kernel=kernel), fold([b, a], kernel=kernel)
        np.testing.assert_array_equal(merged["out"], swapped["out"])
        np.testing.assert_array_equal(merged["lse"], swapped["lse"])


def test_combine_leaves_its_arguments_alone():
    a, b = partial([[1, np.nan]], [EMPTY]), partial([[3, 4]], [1])
    before = a["out"].tobytes(), b["out"].tobytes()
    merged = LOGSUMEXP.combine(a, b)
    merged["out"][:] = 9
    assert (a["out"].tobytes(), b["out"].tobytes()) == before


def test_what_the_operator_declares():
    assert LOGSUMEXP.name == "attention.logsumexp"
    assert LOGSUMEXP.commutative
    layout = LOGSUMEXP.default_layout(32)
    assert layout.rows * layout.row_bytes == 16_512
    assert LOGSUMEXP.fold_version(layout).startswith("c.logsumexp/")


def test_without_the_compiled_part_numpy_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "attention.kernels.cpu_merge", None)
    assert merge_module._fused.__wrapped__() is None
