"""Each collective that merges partials gives through a prepared step what it gives through `tree_decode`."""

import pytest
import torch

from attention import DecodeOptions, ShardMap, prepare_decode, tree_decode
from tests.attention.cases import case_of
from topocomm import run_local

OPTIONS = [
    DecodeOptions(result="heads"),
    DecodeOptions(wire="bfloat16"),
    DecodeOptions(order="canonical"),
    DecodeOptions(order="canonical", shards=ShardMap(3, 8), result="heads"),
    DecodeOptions(verify=1),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_prepared_step_has_every_option(options):
    q, k, v = case_of((1, 4, 2, 1, 300, 8, 8))

    def on_rank(comm):
        at = (options.shards or ShardMap(3)).owned(comm.rank, 0, 300).copy()
        mine = q, k[:, :, at], v[:, :, at]
        prepared = prepare_decode(comm, q, like_kv=mine[1:], like_positions=(None, at), options=options)
        wanted = tree_decode(*mine, comm, kv_positions=at, return_lse=True, **vars(options))
        for _ in range(2):
            found = prepared.step(*mine, kv_positions=at, return_lse=True)
            assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
        out = torch.empty_like(wanted.out)
        assert prepared.step(*mine, kv_positions=at, out=out) is out and torch.equal(out, wanted.out)

    run_local(on_rank, ranks=3)
