"""What callers of attention functions give: arrays on the same memory, and what does not fit is named."""

import warnings

import numpy as np
import pytest
import torch

from attention import Spec
from attention.arrays import as_tensor, check_inputs, check_out, to_caller
from attention.visibility import Masking
from topocomm import OperatorError

Q, K, V = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8), torch.zeros(2, 2, 5, 6)
CPU = torch.device("cpu")


def test_arrays_become_tensors_on_their_memory():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert as_tensor("f", "q", x).data_ptr() == x.ctypes.data
    assert torch.equal(as_tensor("f", "q", x[:, ::-1]), torch.from_numpy(x[:, ::-1].copy()))
    read_only = x.copy()
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_tensor("f", "q", read_only).data_ptr() == read_only.ctypes.data
    assert to_caller(x, torch.ones(2)).dtype == np.float32 and isinstance(to_caller(Q, Q), torch.Tensor)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1.0], "f: q must be a NumPy array or torch tensor, got list"),
        (np.zeros(2, np.dtype("U3")), "f: q has dtype <U3, which torch does not know"),
    ],
)
def test_what_is_no_array_is_named(given, said):
    with pytest.raises(OperatorError) as error:
        as_tensor("f", "q", given)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"q": Q[0]}, "q must be [batch, heads, q_len, d], got shape [4, 3, 8]"),
        ({"k": K[0]}, "k must be [batch, kv_heads, n, d], got shape [2, 5, 8]"),
        ({"v": V.double()}, "v must be float32, float16 or bfloat16, got torch.float64; convert it first"),
        ({"k": K.to("meta")}, "k is on meta, and q on cpu; q, k and v must all be in host memory, or all on one GPU"),
        ({"q": Q.clone().requires_grad_()}, "q requires gradients; pass q.detach() or use torch.no_grad()"),
        ({"v": V[:, :, 1:]}, "k and v must agree in [batch, kv_heads, n], got q [2, 4, 3, 8]"),
        ({"q": Q[..., 1:]}, "q and k must agree in batch and head dim"),
        ({"q": Q[:, 1:]}, "the heads of q must be a multiple of those of k and v"),
        ({"q": Q[..., :0], "k": K[..., :0]}, "the head dim must be at least 1"),
        ({"k": K.half()}, "k and v must have one dtype, not torch.float16 and torch.float32"),
        ({"spec": Spec(sinks=[0.0])}, "spec.sinks has 1 values, q has 4 heads"),
        ({"masking": Masking(block_tables=[0])}, "block_tables must be integers [batch, pages of an entry] with batch"),
        ({"masking": Masking(block_tables=[[0], [1]])}, "block_tables need kv_lengths [batch]"),
        (
            {"masking": Masking(block_tables=[[0, 9], [1, 2]], kv_lengths=[5, 6])},
            "block_tables[1, 1] is 2, but k has pages 0 to 1; entries beyond kv_lengths may be anything",
        ),
    ],
)
def test_what_does_not_fit_is_named(changed, said):
    given = {"q": Q, "k": K, "v": V, "spec": Spec(), "masking": Masking(), **changed}
    with pytest.raises(OperatorError) as error:
        check_inputs("f", given["q"], given["k"], given["v"], spec=given["spec"], masking=given["masking"])
    assert str(error.value).startswith(f"f: {said}")


def test_keys_of_an_entry_by_pages():
    k = torch.arange(3 * 2 * 4).view(3, 1, 2, 4).float()
    masking = Masking(block_tables=[[2, 0]], kv_lengths=[3])
    inputs = check_inputs("f", torch.zeros(1, 1, 1, 4), k, k, spec=Spec(), masking=masking)
    assert (inputs.n, inputs.rows, inputs.out_shape) == (4, 1, (1, 1, 1, 4))
    keys, _ = inputs.entry(0, slice(1, 3))
    assert torch.equal(keys[0], torch.stack([k[2, 0, 1], k[0, 0, 0]]))


def test_results_are_written_where_they_fit():
    out = np.zeros((2, 3), np.float32)
    assert check_out("f", "out", out, (2, 3), torch.float32, CPU).data_ptr() == out.ctypes.data
    for bad, said in (
        (out.astype(np.float64), r"out must be torch.float32 \[2, 3\] on the CPU, got torch.float64 \[2, 3\] on cpu"),
        (out[:, ::-1], "out must be writable and have no negative strides"),
        (out[:1], r"got torch.float32 \[1, 3\]"),
    ):
        with pytest.raises(OperatorError, match=said):
            check_out("f", "out", bad, (2, 3), torch.float32, CPU)
