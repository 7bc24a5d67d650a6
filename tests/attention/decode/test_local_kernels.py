"""The local kernel of a prepared step gives the bits of the general way: by position, mask, length, cut and thread."""

import numpy as np
import pytest
import torch

from attention import Spec, tree_decode
from tests.attention.cases import case_of
from tests.attention.decode.ways import both_ways
from topocomm import run_local

RULES = {
    "causal": (Spec(causal=True), {}),
    "window": (Spec(causal=True, window=9), {}),
    "slopes and a cap": (Spec(causal=True, alibi_slopes=[0.1, 0.2] * 4, softcap=5.0), {}),
    "sinks": (Spec(sinks=[0.5, -1.0, 0.0, 2.0] * 2), {}),
    "mask": (Spec(causal=True), {"kv_mask": np.arange(20) % 3 > 0}),
    "lengths": (Spec(), {"kv_lengths": [7, 20]}),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_masks_and_sinks_take_the_shortest_way(taken, rule, dtype):
    q, k, v = case_of((2, 4, 2, 2, 40, 8, 8), dtype)
    spec, given = RULES[rule]

    def on_rank(comm):
        at = np.arange(comm.rank, 40, 2)
        positions = {"q_positions": torch.tensor([38, 39]), "kv_positions": torch.from_numpy(at)}
        for _ in range(2):
            found, wanted = both_ways(comm, q, k[:, :, at], v[:, :, at], spec=spec, **positions, **given)
            assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
            assert found.out.dtype == dtype

    run_local(on_rank, ranks=2)
    assert taken == [True] * 4


@pytest.mark.parametrize("keys", [1, 2, 4095, 8191, 8192, 20000])
@pytest.mark.parametrize("heads", [(1, 1), (8, 8)])
@pytest.mark.parametrize("threads", [1, 2])
def test_cuts_by_keys_and_threads_are_those_of_the_general_way(keys, heads, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        q, k, v = case_of((1, *heads, 1, keys, 8, 8))

        def on_rank(comm):
            tree_decode(q, k[:, :, :1], v[:, :, :1], comm)
            found, wanted = both_ways(comm, q, k, v)
            assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))

        run_local(on_rank, ranks=1)
    finally:
        torch.set_num_threads(before)
