"""Canonical order on devices."""

import numpy as np
import torch

from attention import LOGSUMEXP
from tests.execute.device.test_device_engine import MATRICES, matrix, product
from tests.execute.device_jobs import run_on_devices


def test_canonical_order_has_the_same_bits_whoever_owns_the_shards():
    shards = 11
    draw = torch.Generator().manual_seed(5)
    out, lse = torch.randn((shards, 4, 8), generator=draw), torch.randn((shards, 4), generator=draw)

    def body(comm):
        seen = set()
        for seed in range(4):
            cuts = np.sort(np.random.default_rng(seed).integers(0, shards + 1, comm.size - 1)).tolist()
            low, high = [0, *cuts, shards][comm.rank : comm.rank + 2]
            x = {"out": out[low:high], "lse": lse[low:high]}
            merged = comm.allreduce(x, LOGSUMEXP, order="canonical", shards=(low, high))
            seen.add(merged["out"].numpy().tobytes() + merged["lse"].numpy().tobytes())
            matrices = torch.tensor(np.array([matrix(shard) for shard in range(low, high)]).reshape(-1, 5, 2, 2))
            found = comm.allreduce({"m": matrices}, MATRICES, order="canonical", shards=(low, high))
            np.testing.assert_array_equal(found["m"].numpy(), product(range(shards)))
        return seen

    together = set().union(*(seen for ranks in (1, 2, 3, 6) for seen in run_on_devices(body, ranks)))
    assert len(together) == 1
