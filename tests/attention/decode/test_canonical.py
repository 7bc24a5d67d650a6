"""Canonical order: the same bits for every number of ranks, layout of whole virtual shards, and order of keys."""

import numpy as np
import pytest
import torch

import attention.decode.tree_decode
from attention import ShardMap, Spec, reference_attention, tree_decode
from tests.attention.cases import assert_close, by_map, case_of
from topocomm import OperatorError, run_local

RANKS = (1, 2, 3, 4, 8)


def canonical(case, shards, ranks, **options):
    """The result bytes of every rank."""
    q, k, v = case

    def on_rank(comm):
        k_shard, v_shard, positions = by_map((k, v), shards, comm.rank, k.shape[2])
        return tree_decode(
            q,
            k_shard,
            v_shard,
            comm,
            kv_positions=positions,
            order="canonical",
            shards=shards,
            return_lse=True,
            **options,
        )

    return run_local(on_rank, ranks=ranks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 4, 1, 1037, 16, 24), (1, 2, 2, 5, 700, 24, 16)], ids=str)
def test_canonical_order_has_the_same_bits_for_every_rank_count(shape, dtype):
    case = case_of(shape, dtype)
    spec = Spec(causal=True, window=900)
    options = {"spec": spec, "q_positions": torch.arange(shape[4] - shape[3], shape[4])}
    found = [one for ranks in RANKS for one in canonical(case, ShardMap(ranks), ranks, **options)]
    for other in found[1:]:
        assert torch.equal(other.out, found[0].out) and torch.equal(other.lse, found[0].lse)
    exact = reference_attention(
        *(x.double().numpy() for x in case),
        spec=spec,
        kv_positions=np.arange(shape[4]),
        q_positions=options["q_positions"],
    )
    tolerance = 1e-5 if dtype == torch.float32 else 2**-8
    assert_close(found[0].out.float(), exact.out, atol=tolerance * np.abs(exact.out).max())


LAYOUTS = [
    ((64, 16, None), [(1, None), (2, (5, 1)), (3, (0, 3, 2)), (4, (1, 1, 1, 9)), (8, None)]),
    ((64, 16, 600), [(1, None), (3, None), (4, (7, 0, 1, 2)), (8, None)]),
    ((8, 3, None), [(1, None), (2, None), (3, (1, 5, 0)), (8, None), (8, (0, 0, 0, 0, 0, 0, 0, 1))]),
]
"""(virtual shards, block size, capacity): which key is of which virtual shard; (ranks, weights): who owns these."""


@pytest.mark.parametrize(("rule", "owners"), LAYOUTS, ids=str)
def test_canonical_order_has_the_same_bits_for_every_layout_of_whole_virtual_shards(rule, owners):
    case = case_of((2, 2, 3, 1, 515, 16, 24))
    found = []
    for ranks, weights in owners:
        found += canonical(case, ShardMap(ranks, *rule, weights=weights), ranks)
    assert all(torch.equal(one.out, found[0].out) and torch.equal(one.lse, found[0].lse) for one in found)


def test_canonical_order_needs_ranges_of_virtual_shards():
    dealt = ShardMap(2, holders=tuple((shard % 2,) for shard in range(64)))
    with pytest.raises(ValueError, match="virtual_range"):
        canonical(case_of((2, 2, 3, 1, 515, 16, 24)), dealt, 2)


def test_the_plain_order_may_differ_in_bits():
    """Else the tests above would show nothing."""
    q, k, v = case_of((2, 3, 4, 1, 1037, 16, 24))
    found = [
        run_local(
            lambda comm, ranks=ranks: tree_decode(q, *by_map((k, v), ShardMap(ranks), comm.rank, 1037)[:2], comm),
            ranks=ranks,
        )[0]
        for ranks in RANKS
    ]
    assert len({one.numpy().tobytes() for one in found}) > 1


def test_canonical_order_in_any_order_of_keys_and_without_the_kernel(monkeypatch):
    q, k, v = case_of((2, 2, 3, 2, 400, 16, 24))
    whole = canonical((q, k, v), ShardMap(1), 1)[0]

    def shuffled(comm):
        k_shard, v_shard, positions = by_map((k, v), ShardMap(2), comm.rank, 400)
        turn = torch.randperm(len(positions), generator=torch.Generator().manual_seed(comm.rank))
        return tree_decode(
            q, k_shard[:, :, turn], v_shard[:, :, turn], comm, kv_positions=positions[turn], order="canonical"
        )

    assert all(torch.equal(one, whole.out) for one in run_local(shuffled, ranks=2))
    monkeypatch.setattr(attention.decode.canonical, "covers", lambda inputs: False)
    plain = [canonical((q, k, v), ShardMap(ranks), ranks)[0].out for ranks in (1, 3)]
    torch.testing.assert_close(plain[0], whole.out)
    torch.testing.assert_close(plain[1], whole.out)


def test_canonical_order_names_what_is_wrong():
    q, k, v = case_of((1, 2, 1, 1, 64, 8, 8))
    halves = [np.arange(64), np.arange(64, 128)]
    for positions, options, part in (
        (None, {}, "needs kv_positions"),
        ([np.arange(3)] * 2, {}, "kv_positions must be \\[64\\]"),
        (halves, {"shards": ShardMap(3)}, "shards are for 3 ranks, the communicator has 2"),
        (halves, {"wire": "bfloat16"}, 'canonical order needs wire="float32"'),
        (
            halves,
            {},
            r"rank 0 owns the virtual shards 0 to 47, but position 16 belongs to 48; keys must lie where shards= "
            r"says, by default ShardMap\(2, virtual_shards=96\)",
        ),
    ):

        def call(comm, positions=positions, options=options):
            mine = positions and positions[comm.rank]
            return tree_decode(q, k, v, comm, order="canonical", kv_positions=mine, **options)

        with pytest.raises(OperatorError, match=part):
            run_local(call, ranks=2)


def test_pages_in_canonical_order_have_the_bits_of_the_same_keys_in_a_row(monkeypatch):
    q, k, v = case_of((2, 2, 2, 1, 96, 16, 24))
    whole = canonical((q, k, v), ShardMap(1, block_size=4), 1)[0].out
    pages = [x.unflatten(2, (12, 8)).transpose(1, 2).flatten(0, 1) for x in (k, v)]
    given = {"block_tables": torch.arange(24).view(2, 12), "kv_lengths": [96, 96], "kv_positions": torch.arange(96)}

    def on_rank(comm):
        return tree_decode(q, *pages, comm, order="canonical", shards=ShardMap(1, block_size=4), **given)

    assert torch.equal(run_local(on_rank, ranks=1)[0], whole)
    monkeypatch.setattr(attention.decode.canonical, "covers", lambda inputs: False)
    with pytest.raises(OperatorError, match="block_tables with order"):
        run_local(on_rank, ranks=1)
