"""Ring attention on GPUs: results and gradients of all layouts against autograd in float64."""

from tests.attention.gpu.playing import run_on_gpus  # isort: skip

import numpy as np
import pytest
import torch

from attention.ring.ring_layout import LAYOUTS
from tests.attention.gradients import spec_of
from tests.attention.ring_cases import case, check, dealt, exact_of, held, run

FEW = {"batch": 1, "kv_heads": 1, "group": 2}
"""Heads: each costs a program of the interpreted kernel."""
CASES = [(1, 37), (2, 23), (3, 40), (5, 4), (5, 61)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("ranks", "n"), [(3, 22), *(pytest.param(*x, marks=pytest.mark.long) for x in CASES)])
@pytest.mark.parametrize("name", ["causal", "all"])
def test_results_and_gradients_are_exact(name, ranks, n, layout):
    tensors, arriving = case(n, seed=n, **FEW)
    spec = spec_of(name, 2)
    found = run(tensors, held(layout, n, ranks), arriving=arriving, runner=run_on_gpus, spec=spec, layout=layout)
    check(found, exact_of(tensors, spec, arriving))


@pytest.mark.parametrize("sizes", [[0, 14, 0], [1, 2, 11]])
def test_contiguous_parts_of_any_length(sizes):
    tensors, arriving = case(14, **FEW)
    spec = spec_of("plain", 2)
    parts = np.split(np.arange(14), np.cumsum(sizes)[:-1])
    check(run(tensors, parts, arriving=arriving, runner=run_on_gpus, spec=spec), exact_of(tensors, spec, arriving))


@pytest.mark.long
def test_positions_in_any_order_and_calls_that_need_more_memory():
    for n in (9, 21):
        tensors, arriving = case(n, seed=n, **FEW)
        spec, parts = spec_of("window", 2), dealt(n, 3, 1)
        found = run(tensors, parts, arriving=arriving, runner=run_on_gpus, spec=spec, positions=parts.__getitem__)
        check(found, exact_of(tensors, spec, arriving))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes(dtype):
    tensors, arriving = case(24, dtype=dtype, **FEW)
    spec = spec_of("all", 2)
    found = run(tensors, held("zigzag", 24, 2), arriving=arriving, runner=run_on_gpus, spec=spec, layout="zigzag")
    assert [x.dtype for x in found] == [dtype, torch.float32, dtype, dtype, dtype]
    check(found, exact_of(tensors, spec, arriving), unit={torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype])
