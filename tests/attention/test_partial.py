"""Partials, and sinks that are counted on them."""

import numpy as np
import torch

from attention import Partial, add_sinks


def test_add_sinks_on_empty_rows_and_without_weight():
    partial = Partial(np.array([[[[0.0, 0.0]], [[1.0, -2.0]]]], np.float32), np.array([[[-np.inf], [0.5]]], np.float32))
    got = add_sinks(partial, [1.5, -np.inf])
    np.testing.assert_array_equal(got.out, partial.out)
    np.testing.assert_allclose(got.lse, [[[1.5], [0.5]]])
    nothing = add_sinks(Partial(partial.out[:, :1], partial.lse[:, :1]), [-np.inf])
    assert (nothing.out == 0).all() and (nothing.lse == -np.inf).all()
    as_tensors = add_sinks(Partial(*(torch.from_numpy(x) for x in partial)), torch.tensor([1.5, -torch.inf]))
    np.testing.assert_array_equal(as_tensors.lse.numpy(), got.lse)
