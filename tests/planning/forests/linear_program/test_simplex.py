"""The simplex method on programs whose optimum shows: by hand, and by equal primal and dual values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocomm.planning.forests.linear_program import simplex
from topocomm.planning.forests.linear_program.simplex import Simplex


def program(right, columns, gains):
    made = Simplex(np.array(right, dtype=float))
    for column, gain in zip(columns, gains, strict=True):
        rows = np.flatnonzero(column)
        made.add(rows, np.array(column, dtype=float)[rows], gain)
    return made


def test_two_by_two():
    made = program([4.0, 3.0], [[1, 1], [2, 0], [0, 1]], [1.0, 1.5, 0.5])
    made.solve()
    assert made.value() == pytest.approx(4.5, abs=1e-5)
    assert made.weights() == pytest.approx({1: 2.0, 2: 3.0}, abs=1e-5)


@st.composite
def programs(draw):
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 10))
    number = st.integers(0, 4)
    table = [draw(st.lists(number, min_size=rows, max_size=rows).filter(any)) for _ in range(columns)]
    return draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)), table


@given(programs())
def test_prices_prove_the_value(case):
    """Feasible weights and feasible prices of equal value are both optimal (duality)."""
    right, columns = case
    made = program(right, columns, [1.0] * len(columns))
    made.solve()
    weights = np.array([made.weights().get(c, 0.0) for c in range(len(columns))])
    table = np.array(columns, dtype=float).T
    assert (table @ weights <= made.right + 1e-6).all()
    assert (made.prices >= -1e-6).all() and (made.prices @ table >= 1 - 1e-6).all()
    assert made.value() == pytest.approx(made.prices @ made.right, abs=1e-6)


@given(programs())
def test_a_fresh_inverse_changes_nothing(case):
    right, columns = case
    kept = simplex.FRESH_PIVOTS
    values = []
    for simplex.FRESH_PIVOTS in (1, kept):
        made = program(right, columns, [1.0] * len(columns))
        made.solve()
        values.append(made.value())
    assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_columns_may_come_later():
    made = program([1.0, 1.0], [[1, 1]], [1.0])
    made.solve()
    for column in ([1, 0], [0, 1]):
        rows = np.flatnonzero(column)
        made.add(rows, np.ones(len(rows)), 1.0)
    made.solve()
    assert made.value() == pytest.approx(2.0, abs=1e-5)


def test_without_limit():
    made = Simplex(np.ones(1))
    made.add(np.zeros(1, dtype=np.int64), -np.ones(1), 1.0)
    with pytest.raises(ArithmeticError, match="unbounded"):
        made.solve()
