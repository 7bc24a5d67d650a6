"""Sinks and slopes on a GPU: as `add_sinks` has them on arrays, from memory that is filled once for a Spec."""

import numpy as np
import pytest
import torch

from attention import Partial, add_sinks
from attention.gpu.masks import add_sinks_on_gpu, slopes_on

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", [tuple, torch.tensor])
def test_sinks_are_those_of_arrays(kind):
    rng = np.random.default_rng(0)
    out, lse = rng.standard_normal((2, 3, 4, 5), np.float32), rng.standard_normal((2, 3, 4), np.float32)
    lse[0, 0], out[0, 0] = -np.inf, 0.0
    sinks = (1.5, -np.inf, 40.0)
    wanted = add_sinks(Partial(out, lse), sinks)
    found = add_sinks_on_gpu(torch.from_numpy(out), torch.from_numpy(lse), kind(sinks))
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, torch.from_numpy(y))


def test_an_empty_row_with_no_sink_stays_empty_whatever_it_holds():
    out, lse = add_sinks_on_gpu(torch.full((1, 1, 1, 2), torch.nan), torch.full((1, 1, 1), -torch.inf), (-np.inf,))
    assert (out == 0).all() and (lse == -torch.inf).all()


def test_slopes_of_a_spec_are_copied_once():
    assert slopes_on(CPU, None) is None
    slopes = slopes_on(CPU, (0.5, 0.25))
    assert slopes.dtype == torch.float32 and slopes is slopes_on(CPU, (0.5, 0.25))
