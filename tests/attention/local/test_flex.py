import math
import warnings

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from attention import Spec, reference_attention
from attention.local import flex
from attention.local.flex import flex_partial
from tests.attention.cases import assert_close
from tests.attention.local.kernels import CAUSAL, SHAPES, check, on_cuda, tensors
from topocomm import OperatorError


@pytest.fixture(autouse=True, scope="module")
def _fresh():
    """Shapes that others compiled count towards a limit of recompilations."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", [Spec(), CAUSAL, Spec(scale=0.3, causal=True)], ids=str)
def test_odd_shapes(spec, dtype):
    for shape in SHAPES:
        check(flex_partial, *tensors(shape, dtype, peak=1.0), spec=spec)


@pytest.mark.parametrize("per_entry", [False, True])
def test_causal_with_positions_in_any_order(per_entry):
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        batch, _, _, q_len, n, _, _ = shape
        lead = (batch,) if per_entry else ()
        check(
            flex_partial,
            *tensors(shape),
            spec=CAUSAL,
            q_positions=rng.integers(-2, n + 2, (*lead, q_len)),
            kv_positions=rng.permuted(np.broadcast_to(np.arange(n), (*lead, n)), axis=-1),
        )


def test_rows_that_see_nothing():
    got = check(
        flex_partial, *tensors(SHAPES[0]), spec=CAUSAL, q_positions=[-1, 0, 6, -5, 3], kv_positions=np.arange(7)
    )
    assert (got.lse[:, :, [0, 3]] == -math.inf).all()


@pytest.mark.parametrize("sizes", [(2, 3, 2, 5, 0), (2, 3, 2, 0, 7), (0, 3, 2, 5, 7)], ids=str)
def test_sizes_of_0(sizes):
    got = flex_partial(*tensors((*sizes, 8, 16)), spec=CAUSAL)
    assert got.out.shape == (sizes[0], 6, sizes[3], 16)
    assert (got.out == 0).all() and (got.lse == -math.inf).all()


def test_nan_surfaces():
    q, k, v = tensors(SHAPES[0])
    q[1, 4, 2] = math.nan
    got = flex_partial(q, k, v)
    assert got.lse[1, 4, 2].isnan() and got.out[1, 4, 2].isnan().all()
    assert got.lse.isnan().sum() == 1


def test_its_lse_is_a_natural_logarithm():
    # Its kernels compute to base 2, which is 44 % more.
    q, k, v = tensors(SHAPES[0])
    exact = reference_attention(q.double(), k.double(), v.double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out, aux = flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest(lse=True))
    assert_close(aux.lse, exact.lse, atol=5e-6)
    assert_close(out, exact.out, atol=5e-6)
    assert np.abs(exact.lse / math.log(2) - exact.lse).min() > 0.1


def test_the_layout():
    q, k, v = tensors((2, 5, 1, 5, 7, 8, 8))
    check(flex_partial, q, k, v)


def test_on_cuda_it_is_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: ("compiled", function))
    assert flex._flex.__wrapped__("cuda") == ("compiled", flex_attention)
    assert flex._flex.__wrapped__("cpu") is flex_attention


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_cuda(dtype):
    for shape in SHAPES:
        for spec in (Spec(), CAUSAL):
            check(on_cuda(flex_partial), *tensors(shape, dtype, peak=1.0), spec=spec, lse_atol=1e-3)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"k": torch.zeros(2, 3, 5, 8, dtype=torch.float16)}, ["flex_partial: q, k and v must have one dtype"]),
        ({"q": torch.zeros(2, 7, 4, 8)}, ["heads of q must be a multiple", "[2, 7, 4, 8]"]),
        ({"spec": CAUSAL, "kv_positions": range(5)}, ["needs q_positions and kv_positions, or neither"]),
        ({"spec": CAUSAL, "q_positions": [0.5] * 4, "kv_positions": range(5)}, ["q_positions must be integers"]),
        (
            {"spec": CAUSAL, "q_positions": range(4), "kv_positions": torch.zeros(3, 5, dtype=torch.int64)},
            ["kv_positions must be [5] or [batch, 5] with batch 2", "[3, 5]"],
        ),
        ({"spec": Spec(softcap=30.0)}, ["gets no softcap", "local_attention"]),
    ],
)
def test_what_does_not_fit_is_named(change, parts):
    given = {"q": torch.zeros(2, 6, 4, 8), "k": torch.zeros(2, 3, 5, 8), "v": torch.zeros(2, 3, 5, 8), **change}
    with pytest.raises(OperatorError) as raised:
        flex_partial(given.pop("q"), given.pop("k"), given.pop("v"), **given)
    for part in parts:
        assert part in str(raised.value)
    assert "\n" not in str(raised.value)
