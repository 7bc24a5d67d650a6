"""The vector functions against NumPy, lane by lane."""

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from numba import njit

from attention.kernels.simd import exp, finite, greater, greatest, load, store, tanh
from attention.kernels.simd_lanes import LANES


@njit
def _apply(name, x, y, out):
    for at in range(0, x.size, LANES):
        a, b = load(x, at), load(y, at)
        if name == 0:
            store(out, at, exp(a))
        elif name == 1:
            store(out, at, tanh(a))
        elif name == 2:
            store(out, at, greater(a, b))
        elif name == 3:
            store(out, at, finite(a))
        else:
            store(out, at, greatest(a))


def applied(name, x, y=None):
    whole = np.zeros(-(-len(x) // LANES) * LANES, np.float32)
    whole[: len(x)] = x
    other = np.zeros_like(whole)
    other[: len(x)] = 0 if y is None else y
    out = np.empty_like(whole)
    _apply(name, whole, other, out)
    return out[: len(x)]


def test_exp_is_within_one_ulp_down_to_where_it_vanishes():
    x = np.concatenate([np.linspace(-87, 0, 200_001), [-0.0, -1e-30, -87.0]]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(applied(0, x) - exact) <= np.spacing(exact.astype(np.float32))).all()
    assert (applied(0, np.array([-87.1, -1000, -np.inf], np.float32)) == 0).all()
    assert np.isnan(applied(0, np.array([np.nan], np.float32))).all()


def test_tanh_is_within_3e_7_of_its_value():
    x = np.concatenate([np.linspace(-12, 12, 100_001), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    exact = np.tanh(x.astype(np.float64))
    assert (np.abs(applied(1, x) - exact) <= 3e-7 * np.abs(exact)).all()
    assert applied(1, np.array([-np.inf, np.inf, -0.0], np.float32)).tolist() == [-1, 1, 0]
    assert np.isnan(applied(1, np.array([np.nan], np.float32))).all()


def test_the_greater_and_what_is_finite():
    x, y = np.array([1, -np.inf, 3, -2], np.float32), np.array([2, -np.inf, -np.inf, -3], np.float32)
    assert applied(2, x, y).tolist() == [2, -np.inf, 3, -2]
    assert applied(3, x).tolist() == [1, 0, 3, -2]
    assert np.isnan(applied(3, np.array([np.nan], np.float32))).all()


def test_the_greatest_of_each_row():
    x = np.random.default_rng(0).standard_normal(LANES).astype(np.float32)
    rows = x.reshape(-1, 4).max(0)
    assert applied(4, x).tolist() == np.tile(rows, LANES // 4).tolist()


@njit
def _widened(x, out):
    for at in range(0, x.size, LANES):
        store(out, at, load(x, at))


@pytest.mark.parametrize(("dtype", "stored"), [(torch.bfloat16, torch.uint16), (torch.float16, torch.int16)])
def test_every_16_bit_number_is_widened_exactly(dtype, stored):
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    out = np.empty(1 << 16, np.float32)
    _widened(every.view(stored).numpy(), out)
    expected = every.float().numpy()
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    assert out[~np.isnan(out)].tobytes() == expected[~np.isnan(expected)].tobytes()
