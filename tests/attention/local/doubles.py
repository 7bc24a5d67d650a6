"""Kernels of other libraries for the CPU: documented signature, convention and limits, computed by the formula."""

import math
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attention.local.cpu
from attention import Spec, gpu, reference_attention
from attention.gpu import where
from attention.local.choice import Machine

H100 = Machine("cuda", "NVIDIA H100", (9, 0))
A100 = Machine("cuda", "NVIDIA A100", (8, 0), {"flash_attn_interface": "flash_attn_interface is not installed"})
LOG2_E = 1 / math.log(2)
SIXTEEN_BITS = (torch.float16, torch.bfloat16)


def formula(q, k, v, *, scale, causal, top_left=False):
    """(out, lse) of [batch, heads, rows, d] in float64, natural logarithm; causal aligned to the bottom right."""
    q_len, n = q.shape[2], k.shape[2]
    first = 0 if top_left else n - q_len
    positions = {"q_positions": np.arange(first, first + q_len), "kv_positions": np.arange(n)} if causal else {}
    spec = Spec(scale=scale, causal=causal)
    with np.errstate(invalid="ignore"):  # NaN among the scores gives NaN, as in every kernel
        exact = reference_attention(*(x.double().numpy() for x in (q, k, v)), spec=spec, **positions)
    return torch.from_numpy(exact.out), torch.from_numpy(exact.lse)


class Flash3:
    """`flash_attn_interface` of September 2025 and later; hopper/flash_api.cpp says what is refused."""

    def __init__(self, *, ln=1.0, top_left=False):
        self.ln, self.top_left, self.calls = ln, top_left, []

    def flash_attn_func(
        self,
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
        """Arrays (batch, seqlen, nheads, headdim); lse (batch, nheads, seqlen), -inf where there is no number."""
        assert return_attn_probs and window_size == (-1, -1) and softcap == 0
        self.calls.append(num_splits)
        d, d_v = q.shape[3], v.shape[3]
        assert q.dtype == k.dtype == v.dtype and q.dtype in SIXTEEN_BITS
        assert d <= 256 and d % 8 == 0 and d_v % 8 == 0
        assert d == d_v or (128 < d <= 192 and 96 < d_v <= 128) or (d <= 64 and d_v <= 512)
        assert k.shape[1] > 0 and q.shape[2] % k.shape[2] == 0 and 0 not in q.shape
        for x in (q, k, v) if qv is None else (q, k, v, qv):
            assert x.stride(3) == 1 and _aligned(x)
        if qv is not None:
            assert d <= 64 and qv.shape == (*q.shape[:3], d_v)
            q, k = torch.cat([qv, q], 3), torch.cat([v, k], 3)
        arrays = (x.transpose(1, 2) for x in (q, k, v))
        out, lse = formula(*arrays, scale=softmax_scale, causal=causal, top_left=self.top_left)
        lse = (lse * self.ln).float().nan_to_num(-math.inf, posinf=math.inf, neginf=-math.inf)
        return out.transpose(1, 2).to(v.dtype).contiguous(), lse


class FlashInfer:
    """`flashinfer`: what of `single_prefill_with_kv_cache` is documented; csrc/single_prefill.cu on strides."""

    def __init__(self, *, ln=LOG2_E, top_left=False):
        self.ln, self.top_left, self.calls = ln, top_left, []

    def single_prefill_with_kv_cache(
        self,
        q,
        k,
        v,
        scale_q=None,
        scale_k=None,
        scale_v=None,
        o_dtype=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        kv_layout="NHD",
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        backend="auto",
        return_lse=False,
    ):
        """(out [qo_len, heads, d], lse [qo_len, heads] to base 2)."""
        assert return_lse and kv_layout == "HND" and q.shape[2] in (64, 128, 256) and q.dtype in SIXTEEN_BITS
        assert q.stride(2) == k.stride(2) == v.stride(2) == 1 and k.stride() == v.stride()
        self.calls.append(backend)
        arrays = q.transpose(0, 1)[None], k[None], v[None]
        out, lse = formula(*arrays, scale=sm_scale, causal=causal, top_left=self.top_left)
        return out[0].transpose(0, 1).to(q.dtype), (lse[0] * self.ln).T.contiguous().float()


class Cudnn:
    """torch's `_scaled_dot_product_cudnn_attention`, by its own schema; sdp_utils.cpp says what is refused."""

    def __init__(self, *, ln=1.0, bottom_right=False):
        self.ln, self.bottom_right, self.calls = ln, bottom_right, []

    def __call__(self, q, k, v, bias, with_lse, dropout=0.0, causal=False, debug=False, *, scale=None):
        assert bias is None and with_lse and dropout == 0 and not debug
        assert q.dtype == k.dtype == v.dtype and q.dtype in SIXTEEN_BITS
        assert all(width % 8 == 0 and width <= 128 for width in (q.shape[3], v.shape[3]))
        assert k.shape[2] > 0 and q.shape[1] % k.shape[1] == 0 and 0 not in q.shape
        assert all(x.stride(3) == 1 and _aligned(x) for x in (q, k, v))
        self.calls.append(causal)
        out, lse = formula(q, k, v, scale=scale, causal=causal, top_left=not self.bottom_right)
        nothing, seed = torch.empty(0), torch.zeros((), dtype=torch.int64)
        lse = (lse * self.ln).float()[..., None]
        return out.to(q.dtype), lse, nothing, nothing, q.shape[2], k.shape[2], seed, seed, nothing


def _aligned(x):
    steps = [stride for stride, size in zip(x.stride()[:3], x.shape[:3], strict=True) if size > 1]
    return x.data_ptr() % 16 == 0 and all(step * x.element_size() % 16 == 0 for step in steps)


@contextmanager
def libraries(here, *, flash3=None, cudnn=None, flashinfer=None):
    """Tensors in host memory count as those of the machine's GPU, which has these libraries; no other kernel runs."""
    found = {"flash_attn_interface": flash3, "cuDNN": cudnn, "flashinfer": flashinfer}
    missing = {name: "not here" for name, library in found.items() if library is None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, "_held", lambda x: True)
        there = Machine("cuda", here.name, here.capability, missing)
        patch.setattr(attention.local.cpu, "machine_of", lambda device, *, gpu: there)
        patch.setattr(gpu, "local_partial", _ours)
        patch.setattr(gpu, "attend", _ours)
        if flash3 is not None:
            module = SimpleNamespace(flash_attn_func=flash3.flash_attn_func)
            patch.setitem(sys.modules, "flash_attn_interface", module)
            patch.setattr("attention.local.flash.module", lambda names: "flash_attn_interface")
        if flashinfer is not None:
            module = SimpleNamespace(single_prefill_with_kv_cache=flashinfer.single_prefill_with_kv_cache)
            patch.setitem(sys.modules, "flashinfer", module)
        if cudnn is None:
            yield
            return
        implementation = torch.library.Library("aten", "IMPL", "CPU")
        try:
            implementation.impl("_scaled_dot_product_cudnn_attention", cudnn)
            yield
        finally:
            implementation._destroy()


class OursError(Exception):
    """A kernel of this package was chosen."""


def _ours(*arguments, **options):
    raise OursError
