"""What the callers of the decode kernel give: each thing that does not fit is named."""

import pytest
import torch

from attention import Spec
from attention.gpu.decode.decode import decode_partial
from attention.partial import Partial
from tests.attention.gpu.inputs import DEVICE, made
from topocomm import OperatorError


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": None}, r"q must be a torch tensor .* got NoneType"),
        ({"q": torch.zeros(1, 4, 17, 32)}, "q_len must be 1 to 16, got 17"),
        ({"q": torch.zeros(1, 3, 1, 32)}, "heads of q must be a multiple"),
        ({"q": torch.zeros(1, 4, 1, 31)}, "agree in batch and head dim"),
        ({"q": torch.zeros(1, 4, 1, 32, dtype=torch.float64)}, "q must be float32, .* got torch.float64"),
        ({"q": torch.zeros(1, 4, 1, 32, dtype=torch.float16)}, "must have q's dtype torch.float16"),
        ({"v": torch.zeros(1, 2, 9, 32)}, "k and v must agree"),
        ({"v": torch.zeros(1, 2, 10, 300)}, "head dims of torch.float32 must be 1 to 256"),
        ({"k": torch.zeros(1, 2, 32, 10).transpose(2, 3)}, "last axis of k must be dense"),
        ({"spec": Spec(sinks=(0.0,) * 4)}, "sinks are counted once"),
        ({"spec": Spec(alibi_slopes=(1.0,))}, "alibi_slopes has 1 values, q has 4 heads"),
        ({"spec": Spec(causal=True), "q_positions": torch.zeros(1, dtype=torch.int64)}, "kv_positions is missing"),
        ({"kv_positions": torch.zeros(10)}, r"kv_positions must be torch.int64 \[10\]"),
        ({"kv_mask": torch.zeros(9, dtype=torch.bool)}, r"kv_mask must be torch.bool \[10\] or \[1, 10\]"),
        ({"kv_lengths": torch.zeros(2, dtype=torch.int64)}, r"kv_lengths must be integers \[1\]"),
        ({"block_tables": torch.zeros(1, 1, dtype=torch.int64)}, "block_tables need kv_lengths"),
        ({"k_scales": torch.zeros(1)}, r"k_scales must be float32 \[2\]"),
        ({"out": (torch.zeros(1, 4, 1, 31), torch.zeros(1, 4, 1))}, r"out.out must be .* float32 \[1, 4, 1, 32\]"),
        ({"out": (torch.zeros(1, 4, 1, 32), torch.zeros(1, 4, 1, dtype=torch.float64))}, "out.lse must be"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(change, message):
    q, k, v = made(14, 1, 4, 2, 1, 10, 32, 32)
    given = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in change.items()}
    if "out" in given:
        given["out"] = Partial(*(x.to(DEVICE) for x in given["out"]))
    arrays = [given.pop(name, x) for name, x in (("q", q), ("k", k), ("v", v))]
    with pytest.raises(OperatorError, match=f"decode_partial: .*{message}"):
        decode_partial(*arrays, **given)
