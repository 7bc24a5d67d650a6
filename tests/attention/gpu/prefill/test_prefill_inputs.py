import numpy as np
import pytest
import torch

from attention import Partial, Spec
from attention.gpu.prefill import prefill
from attention.gpu.prefill.prefill import prefill_partial
from tests.attention.gpu.prefill_cases import tensors
from topocomm import OperatorError

CAUSAL = Spec(causal=True)
ROOM = Partial(torch.zeros(2, 4, 20, 24), torch.zeros(2, 4, 20))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"q": np.zeros((2, 4, 20, 16))}, "q must be a torch tensor [batch, heads, q_len, d], got ndarray"),
        ({"q": torch.zeros(4, 20, 16)}, "q must be [batch, heads, q_len, d], got shape [4, 20, 16]"),
        ({"k": torch.zeros(2, 30, 16)}, "k must be [batch, kv_heads, n, d], got shape [2, 30, 16]"),
        (
            {"v": torch.zeros(2, 2, 30, 24).double()},
            "v must be float32, float16 or bfloat16, got torch.float64; convert",
        ),
        ({"k": torch.zeros(2, 2, 30, 16, device="meta")}, "q, k and v must be on one device, got cpu and meta"),
        ({"k": torch.zeros(2, 2, 30, 16, requires_grad=True)}, "k requires gradients; pass k.detach()"),
        ({"k": torch.zeros(2, 2, 31, 16)}, "k and v must agree in [batch, kv_heads, n], got q"),
        ({"q": torch.zeros(2, 4, 20, 8)}, "q and k must agree in batch and head dim"),
        ({"q": torch.zeros(3, 4, 20, 16)}, "q and k must agree in batch and head dim"),
        ({"q": torch.zeros(2, 3, 20, 16)}, "the heads of q must be a multiple of those of k and v"),
        ({"k": torch.zeros(2, 2, 30, 16).half()}, "k and v must have one dtype, not torch.float16 and torch.float32"),
        ({"v": torch.zeros(2, 2, 30, 513)}, "the head dim of v must be 1 to 512"),
        ({"spec": Spec(sinks=(1.0,) * 4)}, "spec.sinks are counted once, after the partials are merged"),
        ({"spec": Spec(alibi_slopes=(1.0, 2.0))}, "spec.alibi_slopes has 2 values, q has 4 heads"),
        ({"spec": CAUSAL, "q_positions": 3}, "kv_positions is missing"),
        ({"spec": CAUSAL, "kv_positions": torch.arange(30)}, "q_positions is missing"),
        (
            {"spec": CAUSAL, "q_positions": True, "kv_positions": 0},
            "q_positions must be integers, or the first as an int",
        ),
        (
            {"spec": CAUSAL, "q_positions": 0, "kv_positions": 1.5},
            "kv_positions must be integers, or the first as an int",
        ),
        (
            {"spec": CAUSAL, "q_positions": torch.arange(19), "kv_positions": 0},
            "q_positions must be [20] or [batch, 20]",
        ),
        (
            {"spec": CAUSAL, "q_positions": torch.rand(20), "kv_positions": 0},
            "q_positions must be integers, got torch.fl",
        ),
        ({"spec": CAUSAL, "q_positions": 1 << 40, "kv_positions": 0}, "starts must be less than 268435456 apart"),
        (
            {"spec": CAUSAL, "q_positions": torch.arange(20).flip(0), "kv_positions": torch.arange(30) + (1 << 40)},
            "q_positions and kv_positions must lie within 1073741824 of each other",
        ),
        ({"kv_mask": torch.ones(30)}, "kv_mask must be bool, True where a key exists, got torch.float32"),
        ({"kv_mask": torch.ones(3, 30, dtype=torch.bool)}, "kv_mask must be [30] or [batch, 30] with batch 2, got"),
        ({"kv_lengths": [30, 31]}, "kv_lengths must be 2 integers from 0 to 30, the keys given; got [30, 31]"),
        ({"kv_lengths": [30]}, "kv_lengths must be 2 integers from 0 to 30"),
        ({"kv_lengths": torch.tensor([1, 2], dtype=torch.int8)}, "kv_lengths must be 2 integers (int32 or int64)"),
        ({"merge_into": torch.zeros(3)}, "merge_into must be a Partial of two tensors, got Tensor"),
        ({"merge_into": ROOM._replace(out=ROOM.out.half())}, "merge_into.out must be float32 [2, 4, 20, 24] on cpu"),
        ({"merge_into": ROOM._replace(lse=ROOM.lse[:1])}, "merge_into.lse must be float32 [2, 4, 20] on cpu"),
        (
            {"merge_into": ROOM._replace(out=torch.zeros(2, 4, 24, 20).transpose(2, 3))},
            "merge_into.out must be dense in its last axis",
        ),
    ],
)
def test_errors_name_the_argument(changed, said):
    q, k, v = tensors(2, 2, 2, 20, 30, 16, 24)
    with pytest.raises(OperatorError) as error:
        prefill_partial(**{"q": q, "k": k, "v": v, **changed})
    assert str(error.value).startswith("prefill_partial: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_cpu_tensors_need_the_interpreter(monkeypatch):
    monkeypatch.setattr(prefill, "INTERPRETED", False)
    with pytest.raises(OperatorError, match="q is on cpu, this kernel needs a GPU; on the CPU use local_attention"):
        prefill_partial(*tensors(1, 1, 1, 20, 30, 16))
