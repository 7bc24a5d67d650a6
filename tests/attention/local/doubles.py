"""Kernels of other libraries for the CPU: documented signature, convention and limits, computed by the formula."""

import math
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attention.local.dispatch
from attention import Spec, gpu, reference_attention
from attention.gpu import placement as where
from attention.local import flashinfer as adapter
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


class _Wrapper:
    """What both wrappers of `flashinfer` for batches do: a workspace, a plan, then runs by it."""

    def __init__(self, workspace, made):
        assert workspace.dtype == torch.uint8 and workspace.numel() >= 1 << 20
        self.workspace, self.made, self.planned = workspace, made, None
        made.wrappers.append(self)

    def plan_with(self, **planned):
        for name in ("indptr", "indices", "lengths"):
            assert planned[name].dtype == torch.int32 and planned[name].ndim == 1, name
        self.planned = planned
        self.made.plans.append(planned)

    def attended(self, q, keys_of, values_of):
        """Entry by entry, from the rows that its pages hold."""
        planned, results = self.planned, []
        for entry in range(len(planned["lengths"])):
            first, last = (int(planned["indptr"][at]) for at in (entry, entry + 1))
            pages = planned["indices"][first:last].long()
            count = int(planned["lengths"][entry])
            assert 0 < count <= len(pages) * planned["page_size"]
            k, v = (of(pages)[:, :count][None] for of in (keys_of, values_of))
            results.append(formula(q[entry][None, :, None], k, v, scale=planned["scale"], causal=False))
        self.made.calls.append(len(results))
        out, lse = (torch.cat(x)[:, :, 0] for x in zip(*results, strict=True))
        return out.to(q.dtype), (lse * self.made.ln).float()


class FlashInferDecode:
    """`flashinfer.decode`: the wrapper for batches, by flashinfer/decode.py and csrc/batch_prefill.cu of 0.6.18."""

    def __init__(self, *, ln=LOG2_E):
        self.ln, self.calls, self.plans, self.wrappers, made = ln, [], [], [], self

        class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
            def __init__(
                self,
                float_workspace_buffer,
                kv_layout="NHD",
                use_cuda_graph=False,
                use_tensor_cores=False,
                paged_kv_indptr_buffer=None,
                paged_kv_indices_buffer=None,
                paged_kv_last_page_len_buffer=None,
                backend="auto",
                jit_args=None,
            ):
                super().__init__(float_workspace_buffer, made)
                # Without tensor cores only groups of 1, 2, 3, 4 and 8 query heads are compiled.
                assert kv_layout == "HND" and use_tensor_cores and backend == "fa2" and not use_cuda_graph

            def plan(
                self,
                indptr,
                indices,
                last_page_len,
                num_qo_heads,
                num_kv_heads,
                head_dim,
                page_size,
                *,
                q_data_type="float16",
                kv_data_type=None,
                sm_scale=None,
            ):
                assert head_dim in (64, 128, 256) and num_qo_heads % num_kv_heads == 0
                assert q_data_type == kv_data_type and q_data_type in SIXTEEN_BITS
                held = indptr.diff()
                assert indptr[0] == 0 and (held >= 1).all() and indices.numel() == indptr[-1]
                assert last_page_len.dtype == torch.int32 and len(last_page_len) == len(held)
                assert ((last_page_len >= 1) & (last_page_len <= page_size)).all()
                lengths = (held - 1) * page_size + last_page_len
                sizes = num_qo_heads, num_kv_heads, head_dim
                self.plan_with(
                    indptr=indptr,
                    indices=indices,
                    lengths=lengths,
                    page_size=page_size,
                    sizes=sizes,
                    dtype=q_data_type,
                    scale=sm_scale,
                )

            def run(self, q, paged_kv_cache, *args, out=None, lse=None, return_lse=False):
                """(out [batch, heads, d], lse [batch, heads] to base 2) of pages [pages, kv_heads, page size, d]."""
                k, v = paged_kv_cache
                assert return_lse and self.planned is not None, "plan before run"
                heads, kv_heads, d = self.planned["sizes"]
                assert q.shape == (len(self.planned["lengths"]), heads, d) and q.stride(2) == 1
                assert q.dtype == k.dtype == v.dtype == self.planned["dtype"]
                assert k.shape == v.shape and k.shape[1:] == (kv_heads, self.planned["page_size"], d)
                assert k.stride() == v.stride() and k.stride(3) == 1 and _aligned(k) and _aligned(q)
                rows = [lambda pages, x=x: x[pages].transpose(0, 1).reshape(kv_heads, -1, d) for x in (k, v)]
                return self.attended(q, *rows)

        self.BatchDecodeWithPagedKVCacheWrapper = BatchDecodeWithPagedKVCacheWrapper


class FlashInferLatents:
    """`flashinfer.mla`: the wrapper for latents, by flashinfer/mla/_core.py and csrc/batch_mla_run.cu of 0.6.18."""

    def __init__(self, *, ln=LOG2_E):
        self.ln, self.calls, self.plans, self.wrappers, made = ln, [], [], [], self

        class BatchMLAPagedAttentionWrapper(_Wrapper):
            def __init__(
                self,
                float_workspace_buffer,
                use_cuda_graph=False,
                qo_indptr=None,
                kv_indptr=None,
                kv_indices=None,
                kv_len_arr=None,
                backend="auto",
            ):
                super().__init__(float_workspace_buffer, made)
                assert backend in ("auto", "fa2", "fa3") and not use_cuda_graph  # "cutlass" returns no lse

            def plan(
                self,
                qo_indptr,
                kv_indptr,
                kv_indices,
                kv_len_arr,
                num_heads,
                head_dim_ckv,
                head_dim_kpe,
                page_size,
                causal,
                sm_scale,
                q_data_type,
                kv_data_type,
                use_profiler=False,
            ):
                assert (head_dim_ckv, head_dim_kpe) == (512, 64) and not causal
                assert q_data_type == kv_data_type and q_data_type in SIXTEEN_BITS
                assert qo_indptr.dtype == torch.int32
                assert qo_indptr.tolist() == list(range(len(kv_len_arr) + 1))  # a query each
                assert kv_indices.numel() >= kv_indptr[-1] and kv_indptr[0] == 0
                self.plan_with(
                    indptr=kv_indptr,
                    indices=kv_indices,
                    lengths=kv_len_arr,
                    page_size=page_size,
                    sizes=num_heads,
                    dtype=q_data_type,
                    scale=sm_scale,
                )

            def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False):
                """(out [batch, heads, 512], lse [batch, heads] to base 2) of pages [pages, page size, 512 and 64]."""
                assert return_lse and self.planned is not None, "plan before run"
                rows, page_size = len(self.planned["lengths"]), self.planned["page_size"]
                for x, width in ((q_nope, 512), (q_pe, 64)):
                    assert x.shape == (rows, self.planned["sizes"], width) and x.dtype == self.planned["dtype"]
                for x, width in ((ckv_cache, 512), (kpe_cache, 64)):
                    assert x.shape[1:] == (page_size, width) and x.dtype == self.planned["dtype"]
                    assert x.stride(2) == 1 and _aligned(x)
                latents = torch.cat([ckv_cache, kpe_cache], 2)
                return self.attended(
                    torch.cat([q_nope, q_pe], 2),
                    lambda pages: latents[pages].reshape(1, -1, 576),
                    lambda pages: ckv_cache[pages].reshape(1, -1, 512),
                )

        self.BatchMLAPagedAttentionWrapper = BatchMLAPagedAttentionWrapper


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
    steps = [stride for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    return x.data_ptr() % 16 == 0 and all(step * x.element_size() % 16 == 0 for step in steps)


@contextmanager
def libraries(here, *, flash3=None, cudnn=None, flashinfer=None, decode=None, latents=None):
    """Tensors in host memory count as those of the machine's GPU, which has these libraries; no other kernel runs."""
    parts = {"flashinfer.decode": decode, "flashinfer.mla": latents}
    found = {"flash_attn_interface": flash3, "cuDNN": cudnn, **parts}
    if flashinfer is None and decode is None and latents is None:
        found["flashinfer"] = None
    missing = {name: "not here" for name, library in found.items() if library is None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, "_held", lambda x: True)
        there = Machine("cuda", here.name, here.capability, missing)
        patch.setattr(attention.local.dispatch, "machine_of", lambda device, *, gpu: there)
        patch.setattr(gpu, "local_partial", _ours)
        patch.setattr(gpu, "attend", _ours)
        if flash3 is not None:
            module = SimpleNamespace(flash_attn_func=flash3.flash_attn_func)
            patch.setitem(sys.modules, "flash_attn_interface", module)
            patch.setattr("attention.local.library_kernels.module", lambda names: "flash_attn_interface")
        patch.setattr(adapter, "_kept", adapter._Kept())
        patch.setattr(adapter, "WORKSPACE_BYTES", 1 << 20)
        for name, part in parts.items():
            if part is not None:
                patch.setitem(sys.modules, name, part)
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
