"""Products block by block: sizes of blocks, and what is skipped."""

import pytest
import torch

from attention import Partial, Spec, reference_attention
from attention.arrays import check_inputs
from attention.local import blocks
from attention.visibility import Masking
from tests.attention.cases import arrays, assert_close


def test_temporaries_are_bounded():
    like = torch.empty(1, dtype=torch.bfloat16)
    for batch, kv_heads, group, q_len, n, d in [
        (1, 8, 4, 1, 131072, 128),
        (2, 3, 3, 2000, 500, 64),
        (1, 1, 64, 4096, 9, 576),
    ]:
        q, k = like.expand(batch, kv_heads * group, q_len, d), like.expand(batch, kv_heads, n, d)
        inputs = check_inputs("test", q, k, k, spec=Spec(), masking=Masking())
        keys, queries = blocks.block_sizes(inputs)
        heads = kv_heads * group
        for floats in (heads * queries * keys, kv_heads * keys * d, heads * queries * d):
            assert floats <= blocks.BLOCK_FLOATS


@pytest.mark.parametrize("floats", [1, 200, 4096])
def test_blocks_of_any_size_write_into_any_strides(monkeypatch, floats):
    monkeypatch.setattr(blocks, "BLOCK_FLOATS", floats)
    q, k, v = arrays((2, 2, 3, 5, 37, 8, 12))
    spec = Spec(causal=True, window=9, alibi_slopes=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    positions = {"q_positions": [4, 30, 7, -1, 36], "kv_positions": range(37)}
    inputs = check_inputs("test", q, k, v, spec=spec, masking=Masking(*(list(x) for x in positions.values())))
    result = Partial(torch.empty(2, 5, 6, 12).transpose(1, 2), torch.empty(5, 6, 2).permute(2, 1, 0))
    calls = []
    blocks.attend_blocks(inputs, result, lambda: calls.append(1))
    exact = reference_attention(q, k, v, spec=spec, **{name: list(x) for name, x in positions.items()})
    assert_close(result.out, exact.out, atol=1e-6)
    assert_close(result.lse, exact.lse, atol=1e-6)
    keys, queries = blocks.block_sizes(inputs)
    assert len(calls) == 2 * -(-5 // queries) * -(-37 // keys)


def test_blocks_that_no_query_sees_are_not_read():
    q, k, v = (torch.from_numpy(x) for x in arrays((1, 1, 1, 2, 30, 8, 8)))
    masking = Masking([12, 13], list(range(30)))
    inputs = check_inputs("test", q, k, v, spec=Spec(causal=True, window=4), masking=masking)
    seen = [blocks.visible_block(inputs, 0, slice(0, 2), slice(start, start + 2)) for start in range(0, 30, 2)]
    assert [x is None for x in seen] == [True] * 4 + [False] * 3 + [True] * 8
    assert seen[5] is True and seen[4].tolist() == [[False, True], [False, False]]
