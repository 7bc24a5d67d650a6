import math
import sys
from types import SimpleNamespace

import pytest
import torch

from attention import Spec
from attention.local import flash
from attention.local.flash import flash2_partial, flash3_partial
from tests.attention.local.kernels import CAUSAL, SHAPES, check, formula, on_cuda, tensors
from topocomm import MissingExtraError, OperatorError, TopocommError

ADAPTERS = {"flash_attn": flash2_partial, "flash_attn_interface": flash3_partial}


def kernel(q, k, v, scale, causal, empty_lse, nan_lse):
    """What both compute: arrays (batch, seqlen, heads, headdim), lse (batch, heads, seqlen)."""
    assert q.shape[3] == k.shape[3] == v.shape[3] and q.shape[3] % 8 == 0 and q.shape[3] <= 256
    assert all(x.stride(3) == 1 for x in (q, k, v))
    assert k.shape[1] > 0
    exact = formula(*(x.transpose(1, 2) for x in (q, k, v)), scale=scale, causal=causal)
    out, lse = torch.from_numpy(exact.out), torch.from_numpy(exact.lse)
    lse = lse.masked_fill(lse == -math.inf, empty_lse).nan_to_num(nan_lse, posinf=math.inf, neginf=-math.inf)
    return out.transpose(1, 2).to(q.dtype), lse.float()


def flash_attn_func_2(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """With the arguments and the result of flash_attn 2.8: +inf for rows without keys, and for NaN (softmax.h)."""
    assert return_attn_probs and dropout_p == 0
    return *kernel(q, k, v, softmax_scale, causal, math.inf, math.inf), None


def flash_attn_func_3(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    """With the arguments and the result of FlashAttention 3: -inf for rows without keys, and for NaN (softmax.h)."""
    assert return_attn_probs
    return kernel(q, k, v, softmax_scale, causal, -math.inf, -math.inf)


@pytest.fixture(params=ADAPTERS)
def adapter(request, monkeypatch):
    """Each adapter, with a library made up after its documentation in the place of the real one."""
    function = flash_attn_func_2 if request.param == "flash_attn" else flash_attn_func_3
    monkeypatch.setitem(sys.modules, request.param, SimpleNamespace(flash_attn_func=function))
    monkeypatch.setattr(flash, "DEVICES", ("cpu",))
    return ADAPTERS[request.param]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", [Spec(), CAUSAL, Spec(scale=0.3, causal=True)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_odd_shapes(adapter, shape, spec, dtype):
    check(adapter, *tensors(shape, dtype), spec=spec)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        (range(20, 25), range(13, 20)),  # behind all keys
        (range(13, 18), range(18, 25)),  # before all
        (range(18, 23), range(18, 25)),
        (range(16, 21), range(18, 25)),  # some queries see nothing
        (range(20, 25), range(18, 25)),
    ],
    ids=str,
)
def test_positions(adapter, queries, keys):
    positions = {"q_positions": list(queries), "kv_positions": list(keys)}
    check(adapter, *tensors(SHAPES[0], torch.bfloat16), spec=CAUSAL, **positions)


def test_nan_surfaces_though_the_kernels_mark_it_like_an_empty_row(adapter):
    q, k, v = tensors((2, 3, 2, 5, 3, 16, 24), torch.bfloat16)  # the first two queries see nothing
    q[1, 4, 3] = math.nan
    got = adapter(q, k, v, spec=CAUSAL)
    assert got.lse[1, 4, 3].isnan() and got.out[1, 4, 3].isnan().all()
    assert (got.lse[:, :, :2] == -math.inf).all() and (got.out[:, :, :2] == 0).all()
    assert got.lse.isnan().sum() == 1


def test_no_keys(adapter):
    got = adapter(*tensors((2, 3, 2, 5, 0, 16, 24), torch.bfloat16), spec=CAUSAL)
    assert got.out.shape == (2, 6, 5, 24)
    assert (got.out == 0).all() and (got.lse == -math.inf).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec": CAUSAL, "q_positions": range(1, 6), "kv_positions": range(4)}, "knows causality of consecutive"),
        ({"spec": Spec(window=4)}, "gets no window"),
    ],
)
def test_what_it_cannot_is_refused(adapter, options, message):
    q, k, v = tensors((2, 3, 2, 5, 4, 16, 24), torch.bfloat16)
    with pytest.raises(OperatorError, match=rf"^flash._partial: this kernel {message}.*; use attention.local"):
        adapter(q, k, v, **options)
    with pytest.raises(OperatorError, match=r"^flash._partial: q, k and v must have one dtype of float16, bfloat16"):
        adapter(q.float(), k.float(), v.float())


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_missing_library_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"^attention\.flash._partial needs .*, which is not installed; ") as it:
        ADAPTERS[name](*tensors(SHAPES[0]))
    assert isinstance(it.value, TopocommError) and isinstance(it.value, ImportError)


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_library_itself(name):
    pytest.importorskip(name)
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for shape in SHAPES:
        for spec in (Spec(), CAUSAL):
            for dtype in (torch.bfloat16, torch.float16):
                check(on_cuda(ADAPTERS[name]), *tensors(shape, dtype, peak=1.0), spec=spec, lse_atol=1e-3)
