import math

import numpy as np
import pytest

from attention import Spec, reference_attention


def test_two_keys_by_hand():
    # Scores ln 2 and ln 8: weights 0.2 and 0.8, sum 10.
    q = [[[[1.0, 0.0]]]]
    k = [[[[math.log(2), 5.0], [math.log(8), -7.0]]]]
    v = [[[[10.0, 0.0, 1.0], [0.0, 10.0, 1.0]]]]
    got = reference_attention(q, k, v, spec=Spec(scale=1.0))
    np.testing.assert_allclose(got.out, [[[[2, 8, 1]]]], rtol=1e-14)
    np.testing.assert_allclose(got.lse, [[[math.log(10)]]], rtol=1e-14)


def test_the_default_scale():
    q, k, v = np.full((1, 1, 1, 4), 1.0), np.full((1, 1, 1, 4), 3.0), np.ones((1, 1, 1, 1))
    assert reference_attention(q, k, v).lse.item() == 6  # 12 / sqrt(4)


def test_zero_scores_give_the_mean_and_the_log_of_the_count():
    v = np.arange(1000.0).reshape(1, 1, 1000, 1)
    got = reference_attention(np.zeros((1, 1, 1, 2)), np.ones((1, 1, 1000, 2)), v)
    np.testing.assert_allclose(got.out, [[[[499.5]]]])
    np.testing.assert_allclose(got.lse, [[[math.log(1000)]]])


def test_neighbouring_query_heads_share_a_key_head():
    v = np.array([1.0, 2.0]).reshape(1, 2, 1, 1)
    got = reference_attention(np.zeros((1, 6, 1, 2)), np.zeros((1, 2, 1, 2)), v)
    assert got.out.ravel().tolist() == [1, 1, 1, 2, 2, 2]


def test_causal_by_position_and_masks():
    v = np.array([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1)
    v = np.concatenate([v, v])
    q, k = np.zeros((2, 1, 3, 1)), np.zeros((2, 1, 3, 1))
    options = {"spec": Spec(causal=True), "q_positions": [4, 0, 9], "kv_positions": [9, 4, 0]}
    got = reference_attention(q, k, v, **options)
    assert got.out[0].ravel().tolist() == [55, 100, 37]
    got = reference_attention(q, k, v, kv_mask=[[True, False, True], [False] * 3], **options)
    assert got.out[0].ravel().tolist() == [100, 100, 50.5]
    assert got.out[1].ravel().tolist() == [0, 0, 0]
    assert got.lse[1].ravel().tolist() == [-np.inf] * 3


def test_causal_needs_positions():
    x = np.zeros((1, 1, 1, 1))
    with pytest.raises(ValueError, match="needs q_positions and kv_positions"):
        reference_attention(x, x, x, spec=Spec(causal=True))
