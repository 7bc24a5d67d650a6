"""How the attention kernels of other libraries return (out, lse), one entry a family: plain data, without torch.

Axes are letters: b batch, h heads, q query rows (of all sequences one after another where b is missing), d head dim,
1 an axis of size 1. What a family does not document was read in its source, which is named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Convention:
    """How one family of kernels returns the result of attention over some keys.

    Attributes:
        base: Base of the logarithm that is lse: "e" or 2.
        empty_lse: Values of lse that mark a row without keys. None at all, (): lse does not tell, so the caller must.
        empty_out: What out holds in such a row. "zero": zeros, and anything else beside that lse is no empty row but
            a result that was lost, such as NaN from NaN in the data; "any": whatever it holds, the row is empty.
        source: Where this is documented, or the file and function it was read in.
        lse_dtype: Dtype of lse, a name of torch.
        lse_rows_multiple: The q axis of lse may be padded to a multiple of this.
    """

    base: Literal["e", 2]
    out_layout: str
    lse_layout: str
    empty_lse: tuple[float, ...]
    empty_out: Literal["zero", "any"]
    source: str
    lse_dtype: str = "float32"
    lse_rows_multiple: int = 1


INF = math.inf
UNMARKED: tuple[float, ...] = ()

CONVENTIONS: dict[str, Convention] = {
    # (0, 0.0): a row without keys looks like a key of score 0 and value 0.
    "torch flash, CPU": Convention(
        "e", "bhqd", "bhq", UNMARKED, "zero", "pytorch aten/src/ATen/native/cpu/FlashAttentionKernel.cpp"
    ),
    # torch may run FlashAttention 2 (+inf) or, once activated, 3 and 4 (-inf).
    "torch flash, CUDA": Convention(
        "e", "bhqd", "bhq", (INF, -INF), "zero", "pytorch aten/src/ATen/native/transformers/cuda/attention.cu"
    ),
    # (0, 0.0) since pull request 133882, NaN before; rows of the padding hold +inf.
    "torch efficient": Convention(
        "e",
        "bhqd",
        "bhq",
        UNMARKED,
        "zero",
        "pytorch aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h",
        lse_rows_multiple=32,
    ),
    "torch cuDNN": Convention(
        "e", "bhqd", "bhq1", UNMARKED, "any", "cudnn-frontend docs/operations/Attention.md, generate_stats"
    ),
    "FlexAttention": Convention(
        "e", "bhqd", "bhq", (-INF,), "any", "torch.nn.attention.flex_attention, return_aux; pytorch pull request 134650"
    ),
    # Also lse of a row with NaN among its scores is +inf, beside NaN in out.
    "flash_attn 2": Convention(
        "e", "bqhd", "bhq", (INF,), "zero", "flash-attention csrc/flash_attn/src/softmax.h, normalize_softmax_lse"
    ),
    "flash_attn 2 varlen": Convention(
        "e", "qhd", "hq", (INF,), "zero", "flash-attention flash_attn/flash_attn_interface.py, flash_attn_varlen_func"
    ),
    # +inf only where there are no keys at all.
    "flash_attn 3": Convention(
        "e", "bqhd", "bhq", (-INF, INF), "zero", "flash-attention hopper/softmax.h, finalize; hopper/flash_api.cpp"
    ),
    "flash_attn 4": Convention(
        "e", "bqhd", "bhq", (-INF,), "zero", "flash-attention flash_attn/cute/softmax.py, finalize"
    ),
    "FlashMLA decode": Convention(
        "e", "bqhd", "bhq", (INF,), "zero", "FlashMLA csrc/sm90/decode/dense/splitkv_mla.cuh; decode/combine/combine.cu"
    ),
    # Its README says base 2; its kernels multiply by ln 2, and its tests compare with torch.logsumexp.
    "FlashMLA sparse prefill": Convention(
        "e", "qhd", "qh", (INF,), "zero", "FlashMLA csrc/sm90/prefill/sparse/phase1.cuh; tests/ref.py"
    ),
    # Merging two empty states left NaN in out before issue 4051 was closed.
    "FlashInfer": Convention(
        2, "qhd", "qh", (-INF,), "any", "flashinfer include/flashinfer/attention/cascade.cuh; pull request 4401"
    ),
    # Masked scores were -5e4 before pull request 4401 (20 August 2026), so a row without keys has a finite lse near it.
    "FlashInfer, finite mark": Convention(
        2, "qhd", "qh", UNMARKED, "any", "flashinfer include/flashinfer/math.cuh up to 0.6.18rc7; issue 4452"
    ),
}
"""The families known, by name."""
