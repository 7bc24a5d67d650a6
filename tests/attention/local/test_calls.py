"""What the choice asks about a call, from tensors, positions and masks."""

import numpy as np
import pytest
import torch

from attention import Spec
from attention.arrays import Inputs, check_inputs
from attention.gpu.masks import device_visibility
from attention.local.calls import call_of, call_of_inputs, well_formed
from attention.visibility import Masking


def arrays(q_len=3, n=40, d=64, d_v=64, dtype=torch.bfloat16):
    shapes = (2, 6, q_len, d), (2, 3, n, d), (2, 3, n, d_v)
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("sizes", "spec", "where", "seen"),
    [
        ((20, 40), Spec(), {}, "all"),
        ((20, 40), Spec(causal=True), {}, "last"),
        ((40, 40), Spec(causal=True), {}, "square"),
        ((1, 40), Spec(causal=True), {}, "all"),
        ((41, 40), Spec(causal=True), {}, None),
        ((20, 40), Spec(causal=True), {"q_positions": range(20, 40), "kv_positions": range(40)}, "last"),
        ((20, 40), Spec(causal=True), {"q_positions": range(40, 60), "kv_positions": [*range(40)][::-1]}, "all"),
        ((20, 40), Spec(causal=True), {"q_positions": range(39, 59), "kv_positions": range(40)}, "all"),
        ((20, 40), Spec(causal=True), {"q_positions": range(21, 41), "kv_positions": range(40)}, None),
        ((20, 40), Spec(causal=True), {"q_positions": range(20, 40), "kv_positions": range(39, -1, -1)}, None),
        ((3, 40), Spec(causal=True), {"q_positions": range(37, 40), "kv_positions": range(40)}, None),  # not looked at
        ((20, 40), Spec(causal=True), {"q_positions": range(20, 40)}, None),
        ((20, 40), Spec(causal=True), {"q_positions": range(20, 39), "kv_positions": range(40)}, None),
        ((20, 40), Spec(causal=True), {"q_positions": np.ones(20), "kv_positions": np.zeros(40)}, None),
    ],
    ids=str,
)
def test_which_query_sees_which_key(sizes, spec, where, seen):
    where = {name: list(x) for name, x in where.items()}
    call = call_of(tuple(arrays(*sizes)), spec, Masking(**where), exact=False)
    assert ("positions" in call.features) == (seen is None)
    assert seen is None or call.seen == seen


def test_what_a_call_asks():
    q, k, v = arrays()
    spec = Spec(causal=True, window=3, softcap=2.0, alibi_slopes=[1.0] * 6)
    call = call_of((q, k, v), spec, Masking(kv_mask=[True] * 40, kv_lengths=[1, 2]), exact=True)
    assert call.features == {"window", "softcap", "alibi_slopes", "kv_mask", "kv_lengths"} and call.exact
    for odd in ([0, 1], [1, 41], [1, 2, 3], [1.0, 2.0]):
        found = call_of((q, k, v), Spec(), Masking(kv_lengths=odd), exact=True)
        assert found.features == {"kv_lengths", "device_lengths"}
    mixed = k.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    assert call_of((q, mixed, mixed), Spec(), Masking(), exact=False).features == {"interleaved"}
    assert (call.batch, call.heads, call.kv_heads, call.q_len, call.n, call.d, call.d_v) == (2, 6, 3, 3, 40, 64, 64)
    pages = call_of((q, k, v), Spec(), Masking(block_tables=torch.zeros(2, 5, dtype=torch.int64)), exact=False)
    assert pages.n == 200 and pages.features == {"block_tables"}
    assert call_of((q, k, v.transpose(2, 3).contiguous().transpose(2, 3)), Spec(), Masking(), exact=False).features == {
        "strided",
        "unaligned",
        "apart",
    }
    assert call_of((q[..., 1:], k[..., 1:], v), Spec(), Masking(), exact=False).features == {"unaligned"}
    wide = torch.zeros(2, 3, 40, 576)
    assert call_of((wide[:, :, :1], wide, wide[..., :512]), Spec(), Masking(), exact=False).latents
    assert not call_of((q, k, v), Spec(), Masking(), exact=False).latents


def test_well_formed(monkeypatch):
    monkeypatch.setattr("attention.gpu.placement._held", lambda x: True)
    q, k, v = arrays()
    assert well_formed(q, k, v)
    for wrong in (
        (q, k, v[:, :, 1:]),
        (q[:1], k, v),
        (q[..., 1:], k, v),
        (q[:, :5], k, v),
        (q, k.float(), v),
        (q[0], k, v),
    ):
        assert not well_formed(*wrong)
    assert not well_formed(q, k[:, :0], v[:, :0]) and not well_formed(q, k.numpy, v)
    assert not well_formed(q.requires_grad_(), k, v)


def test_a_position_that_hides_a_key_on_the_cpu():
    q, k, v = arrays(20, 40)
    positions = {"q_positions": range(20, 40), "kv_positions": range(40)}
    inputs = check_inputs("test", q, k, v, spec=Spec(causal=True), masking=Masking(*map(list, positions.values())))
    assert call_of_inputs(inputs, exact=False).seen == "last" and not call_of_inputs(inputs, exact=False).features
    lengths = Masking(*map(list, positions.values()), kv_lengths=[40, 39])
    inputs = check_inputs("test", q, k, v, spec=Spec(causal=True), masking=lengths)
    assert {"kv_mask", "positions"} <= call_of_inputs(inputs, exact=False).features


def test_what_was_given_on_a_gpu_is_asked_about_and_not_computed():
    q, k, v = arrays(1)
    for lengths, features in (([40, 39], {"kv_lengths"}), ([40, 0], {"kv_lengths", "device_lengths"})):
        visibility = device_visibility("test", q.shape, 40, Spec(), Masking(kv_lengths=lengths), q.device)
        inputs = Inputs(q, k, v, Spec(), visibility)
        assert call_of_inputs(inputs, exact=False).features == features and "_computed" not in vars(visibility)
