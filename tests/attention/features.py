"""Cases of sharded attention by their features: arrays, what every rank gets of them, and the formula in float64."""

from dataclasses import dataclass

import numpy as np
import torch

from attention import ShardMap, Spec, reference_attention
from attention.cache.shards import VIRTUAL_SHARDS
from attention.decode.sharded import part_of
from tests.attention.cases import assert_close

FEATURES = {
    "layout": ("dealt", "ranges", "one rank has all"),
    "causal": (False, True),
    "window": (None, 11),
    "softcap": (None, 3.0),
    "slopes": (False, True),
    "sinks": (False, True),
    "hidden": ("none", "mask", "lengths"),
    "dtype": (torch.float32, torch.bfloat16, torch.float16),
}
EPSILON = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}


def layout_of(case, n):
    ranks, virtual = case["ranks"], case.get("virtual_shards", VIRTUAL_SHARDS)
    if case["layout"] == "dealt":
        return ShardMap(ranks, virtual, block_size=3)
    if case["layout"] == "ranges":
        return ShardMap(ranks, virtual, capacity=n + 30)
    return ShardMap(ranks, virtual, block_size=1 << 20)  # all keys lie in the first block


@dataclass
class Made:
    """What a case asks for: `arguments(rank)` are q, k, v of a rank, `given(rank)` the keyword arguments."""

    case: dict
    arrays: tuple
    spec: Spec
    shards: ShardMap
    exists: np.ndarray
    queries: np.ndarray

    @property
    def n(self):
        return self.arrays[1].shape[2]

    def owned(self, rank):
        return self.shards.owned(rank, 0, self.n).copy()

    def arguments(self, rank):
        q, k, v = self.arrays
        return q, k[:, :, self.owned(rank)], v[:, :, self.owned(rank)]

    def given(self, rank):
        mine = self.owned(rank)
        given = {"spec": self.spec, "q_positions": self.queries, "kv_positions": mine}
        if self.case["hidden"] == "mask":
            given["kv_mask"] = self.exists[:, mine]
        if self.case["hidden"] == "lengths":
            given["kv_lengths"] = self.exists[:, mine].sum(1)
        return given

    def check(self, results, options, tolerance):
        """The results of all ranks, by the options with which they were made."""
        q, k, v = (x.double().numpy() for x in self.arrays)
        where = {"kv_mask": self.exists, "q_positions": self.queries, "kv_positions": np.arange(self.n)}
        exact = reference_attention(q, k, v, spec=self.spec, **where)
        tolerance = max(EPSILON[self.case["dtype"]], tolerance) * max(1.0, abs(v).max())
        for rank, one in enumerate(results):
            heads = part_of(q.shape[1], len(results), rank) if options.get("result") == "heads" else slice(None)
            assert_close(one.out.double(), exact.out[:, heads], atol=tolerance)
            assert_close(one.lse, exact.lse[:, heads], atol=2e-5)


def made(case):
    """The arrays and masks of a case."""
    batch, kv_heads, group, q_len, n, d, d_v = case["shape"]
    heads, rng = kv_heads * group, np.random.default_rng(3)
    arrays = tuple(
        torch.from_numpy(rng.normal(0, spread, size).astype(np.float32)).to(case["dtype"])
        for spread, size in (
            (1, (batch, heads, q_len, d)),
            (2, (batch, kv_heads, n, d)),
            (1, (batch, kv_heads, n, d_v)),
        )
    )
    spec = Spec(
        causal=case["causal"],
        window=case["window"],
        softcap=case["softcap"],
        alibi_slopes=rng.uniform(0.05, 0.5, heads) if case["slopes"] else None,
        sinks=rng.normal(0, 2, heads) if case["sinks"] else None,
    )
    shards = layout_of(case, n)
    exists = rng.random((batch, n)) < 0.7 if case["hidden"] == "mask" else np.ones((batch, n), bool)
    if case["hidden"] == "lengths":  # the last keys of the first entry of every rank are not there
        for rank in range(case["ranks"]):
            exists[0, shards.owned(rank, 0, n)[-3:]] = False
    return Made(case, arrays, spec, shards, exists, np.arange(n - q_len, n))
