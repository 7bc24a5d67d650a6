import math

import numpy as np
import pytest
import torch

from attention import Spec, reference_attention
from attention.local import sdpa
from attention.local.sdpa import sdpa_partial
from tests.attention.cases import assert_close
from tests.attention.local.kernels import CAUSAL, SHAPES, check, on_cuda, tensors
from topocomm import OperatorError

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@dtypes
@pytest.mark.parametrize("spec", [Spec(), CAUSAL, Spec(scale=0.3), Spec(scale=0.3, causal=True)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_odd_shapes(shape, spec, dtype):
    check(sdpa_partial, *tensors(shape, dtype, peak=1.0), spec=spec)


@pytest.mark.parametrize("q_len", range(1, 9))
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 63, 64, 65])
def test_every_triangle(q_len, n):
    check(sdpa_partial, *tensors((2, 2, 2, q_len, n, 8, 12), seed=n), spec=CAUSAL)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        (range(20, 25), range(13, 20)),  # behind all keys
        (range(13, 18), range(18, 25)),  # before all
        (range(18, 23), range(18, 25)),  # the square's upper part: the last keys are seen by none
        (range(16, 21), range(18, 25)),  # some queries see nothing
        (range(20, 25), range(18, 25)),  # aligned
        ([9, 7, 8, 12, 11], [3, 1, 2, 0, 5, 7, 6]),  # any order, where all see all
        ([-9, -7, -8, -12, -11], [3, 1, 2, 0, 5, 7, 6]),  # or none does
    ],
    ids=str,
)
def test_positions(queries, keys):
    positions = {"q_positions": np.array(queries), "kv_positions": torch.tensor(list(keys))}
    check(sdpa_partial, *tensors(SHAPES[0]), spec=CAUSAL, **positions)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        ([20, 21, 22, 23, 25], range(18, 25)),  # a gap
        ([24, 23, 22, 21, 20], range(18, 25)),  # descending
        (range(20, 25), [18, 19, 20, 21, 22, 24, 23]),
        (range(21, 26), range(18, 25)),  # the last query is behind the last key
    ],
    ids=str,
)
def test_other_positions_are_refused(queries, keys):
    with pytest.raises(OperatorError, match=r"^sdpa_partial: this kernel knows .* use attention.local_attention"):
        sdpa_partial(*tensors(SHAPES[0]), spec=CAUSAL, q_positions=list(queries), kv_positions=list(keys))


@pytest.mark.parametrize("sizes", [(2, 3, 2, 5, 0), (2, 3, 2, 0, 7), (0, 3, 2, 5, 7), (2, 3, 0, 5, 7)], ids=str)
@pytest.mark.parametrize("spec", [Spec(), CAUSAL], ids=str)
def test_sizes_of_0(sizes, spec):
    # The kernel itself ends the process with SIGFPE on some of them.
    batch, kv_heads, group, q_len, _ = sizes
    got = sdpa_partial(*tensors((*sizes, 8, 16)), spec=spec)
    assert got.out.shape == (batch, kv_heads * group, q_len, 16)
    assert got.lse.shape == (batch, kv_heads * group, q_len)
    assert (got.out == 0).all() and (got.lse == -math.inf).all()


def test_values_without_columns():
    q, k, v = tensors(SHAPES[0])
    got = sdpa_partial(q, k, v[..., :0])
    assert got.out.shape == (2, 6, 5, 0)
    assert_close(got.lse, reference_attention(q, k, v).lse, atol=5e-6)


def test_strides():
    q, k, v = tensors(SHAPES[1])
    expected = sdpa_partial(q, k, v)
    room = torch.full((3, 2, 60, 24), torch.nan)
    room[:, :, 9:46] = k
    seq_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    columns_first = v.transpose(2, 3).contiguous().transpose(2, 3)  # the kernel reads such an array as garbage
    got = sdpa_partial(seq_first, room[:, :, 9:46], columns_first)
    assert_close(got.out, expected.out.numpy(), atol=1e-6)
    assert_close(got.lse, expected.lse.numpy(), atol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 7, 8, 15, 16, 17, 40])
@pytest.mark.parametrize("spec", [Spec(), CAUSAL], ids=str)
def test_nan_surfaces_and_is_no_empty_row(n, spec):
    q, k, v = tensors((2, 3, 2, 3, n, 16, 16))
    q[1, 4, 2] = math.nan
    got = sdpa_partial(q, k, v, spec=spec)
    assert got.lse[1, 4, 2].isnan() and got.out[1, 4, 2].isnan().all()
    assert got.lse.isnan().sum() == 1 and got.out.isnan().sum() == 16


def test_a_true_lse_of_0_stays():
    q, k, v = tensors((2, 3, 2, 5, 1, 16, 16))
    got = sdpa_partial(torch.zeros_like(q), k, v)
    assert (got.lse == 0).all()
    assert_close(got.out, v.repeat_interleave(2, 1).expand(2, 6, 5, 16).numpy(), atol=1e-7)


def test_infinite_scores_are_no_number():
    q, k, v = tensors(SHAPES[0])
    k[0, 1] = -math.inf
    got = sdpa_partial(q.abs(), k, v)
    assert got.lse[0, 2:4].isnan().all() and got.out[0, 2:4].isnan().all()
    assert got.lse[1].isfinite().all()


def test_the_layout_of_the_kernel():
    # As many heads as queries: a slip of the two axes would pass every check of shapes.
    q, k, v = tensors((2, 5, 1, 5, 7, 8, 8))
    check(sdpa_partial, q, k, v)
    right = sdpa_partial(q, k, v)
    assert (right.lse - right.lse.transpose(1, 2)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_what_the_cuda_kernels_get_and_return(dtype, causal):
    # Their meta functions have the shapes, heads of k and v, and arguments of the kernels.
    kernel, family = sdpa._kernel("cuda", dtype)
    assert family == ("torch efficient" if dtype == torch.float32 else "torch flash, CUDA")
    q, k, v = (torch.empty(2, heads, rows, 16, device="meta", dtype=dtype) for heads, rows in ((6, 5), (3, 7), (3, 7)))
    out, lse = kernel(q, k, v, causal, 0.3)
    assert out.shape == (2, 6, 5, 16) and out.dtype == dtype
    assert lse.shape == (2, 6, 32 if dtype == torch.float32 else 5) and lse.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@dtypes
def test_on_cuda(dtype):
    for shape in SHAPES:
        for spec in (Spec(), CAUSAL):
            check(on_cuda(sdpa_partial), *tensors(shape, dtype, peak=1.0), spec=spec, lse_atol=1e-3)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"q": np.zeros((2, 6, 4, 8), np.float32)}, ["sdpa_partial: q must be a torch tensor, got ndarray"]),
        ({"q": torch.zeros(2, 8)}, ["q must be [batch, heads, q_len, d]", "[2, 8]"]),
        ({"k": torch.zeros(2, 3, 5, 8, dtype=torch.float64)}, ["one dtype of float32, float16", "float64 for k"]),
        ({"v": torch.zeros(2, 3, 5, 8, dtype=torch.float16)}, ["one dtype", "torch.float16 for v"]),
        ({"v": torch.zeros(2, 3, 6, 8)}, ["k and v must agree in [batch, kv_heads, n]", "[2, 3, 6, 8]"]),
        ({"q": torch.zeros(1, 6, 4, 8)}, ["q and k must agree in batch", "[1, 6, 4, 8]"]),
        ({"q": torch.zeros(2, 6, 4, 9)}, ["q and k must agree", "[2, 6, 4, 9]"]),
        ({"q": torch.zeros(2, 7, 4, 8)}, ["heads of q must be a multiple", "[2, 7, 4, 8]"]),
        ({"q": torch.zeros(2, 6, 4, 8, requires_grad=True)}, ["q requires gradients", "detach"]),
        ({"q": torch.zeros(2, 6, 4, 8, device="meta")}, ["q must be on cpu or cuda", "meta", "local_attention"]),
        ({"spec": CAUSAL, "q_positions": range(4)}, ["needs q_positions and kv_positions, or neither"]),
        ({"spec": CAUSAL, "q_positions": [0.5] * 4, "kv_positions": range(5)}, ["q_positions must be integers [4]"]),
        (
            {"spec": CAUSAL, "q_positions": torch.zeros(2, 4, dtype=torch.int64), "kv_positions": range(5)},
            ["q_positions must be integers [4], the same in every batch entry", "[2, 4]", "local_attention"],
        ),
        ({"spec": Spec(window=3, causal=True)}, ["gets no window", "local_attention"]),
        ({"spec": Spec(softcap=30.0)}, ["gets no softcap"]),
        ({"spec": Spec(alibi_slopes=[0.5] * 6)}, ["gets no alibi_slopes"]),
        ({"spec": Spec(sinks=[0.0] * 6)}, ["gets no sinks"]),
    ],
)
def test_what_does_not_fit_is_named(change, parts):
    given = {"q": torch.zeros(2, 6, 4, 8), "k": torch.zeros(2, 3, 5, 8), "v": torch.zeros(2, 3, 5, 8), **change}
    with pytest.raises(OperatorError) as raised:
        sdpa_partial(given.pop("q"), given.pop("k"), given.pop("v"), **given)
    for part in parts:
        assert part in str(raised.value)
    assert "\n" not in str(raised.value)
