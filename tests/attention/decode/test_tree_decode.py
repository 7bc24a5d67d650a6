"""What `tree_decode` does beyond the plain reduction: orders, results, wires, sinks, pages, verification."""

import numpy as np
import pytest
import torch

from attention import ShardMap, Spec, local_attention, reference_attention, ring_decode, tree_decode
from attention.decode.sharded import part_of
from attention.decode.three_allreduce import three_allreduce_decode
from tests.attention.cases import arrays, assert_close, by_map, case_of, cuts
from topocomm import OperatorError, run_local

RANKS = (1, 2, 3, 4, 8)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"order": "sorted"}, 'order must be "any" or "canonical"'),
        ({"result": "mine"}, 'result must be "all" or "heads"'),
        ({"wire": "float16"}, "wire must be one of float32, bfloat16"),
        ({"shards": ShardMap(1)}, "shards belong to"),
        ({"verify": 0}, "verify must be True, False or a number"),
        ({"verify": 1.5}, "verify must be True, False or a number"),
    ],
)
def test_choices_that_do_not_exist_are_named(options, part):
    q, k, v = case_of((1, 2, 1, 1, 6, 8, 8))
    with pytest.raises(OperatorError, match=part):
        run_local(lambda comm: tree_decode(q, k, v, comm, **options), ranks=1)


@pytest.mark.parametrize("options", [{}, {"wire": "bfloat16"}, {"order": "canonical"}], ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 17])
def test_result_heads_gives_each_rank_its_heads(ranks, options):
    """12 heads: some ranks of 17 get none."""
    q, k, v = case_of((2, 3, 4, 2, 300, 16, 24))
    exact = reference_attention(q.numpy(), k.numpy(), v.numpy())

    def on_rank(comm):
        k_shard, v_shard, positions = by_map((k, v), ShardMap(ranks, virtual_shards=96), comm.rank, 300)
        given = options | ({"kv_positions": positions} if "order" in options else {})
        return tree_decode(q, k_shard, v_shard, comm, result="heads", return_lse=True, verify=1, **given)

    found = run_local(on_rank, ranks=ranks)
    for rank, one in enumerate(found):
        mine = part_of(12, ranks, rank)
        assert one.out.shape == (2, mine.stop - mine.start, 2, 24)
        assert_close(one.out, exact.out[:, mine], atol=(2**-8 if "wire" in options else 1e-5) * np.abs(exact.out).max())
        assert_close(one.lse, exact.lse[:, mine], atol=1e-4)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_sixteen_bits_on_the_wire_round_once(ranks):
    """As near as rounding every partial once: 2^-9 of the largest partial value; the same bits on every rank."""
    q, k, v = case_of((2, 3, 4, 1, 517, 16, 24), peak=1.0)
    pieces = cuts(517, ranks)
    exact = reference_attention(q.numpy(), k.numpy(), v.numpy())
    found = run_local(
        lambda comm: tree_decode(
            q, k[:, :, pieces[comm.rank]], v[:, :, pieces[comm.rank]], comm, wire="bfloat16", return_lse=True
        ),
        ranks=ranks,
    )
    parts = [local_attention(q, k[:, :, piece], v[:, :, piece]) for piece in pieces]
    largest = max(float(part.out.abs().max()) for part in parts)
    assert_close(found[0].out, exact.out, atol=(2**-9 + 1e-5) * largest)
    assert np.abs(found[0].out.numpy() - exact.out).max() > 1e-5, "float32 went over the wire"
    assert_close(found[0].lse, exact.lse, atol=1e-5 * 20)
    assert all(torch.equal(one.out, found[0].out) and torch.equal(one.lse, found[0].lse) for one in found)


@pytest.mark.parametrize("method", [tree_decode, ring_decode, three_allreduce_decode])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sinks_are_counted_once_over_all_ranks(method, ranks):
    q, k, v = arrays((2, 3, 2, 2, 67, 16, 24), peak=0.3)
    sinks = np.linspace(-2, 6, 6)
    pieces = cuts(67, ranks)
    exact = reference_attention(q, k, v, spec=Spec(sinks=sinks))
    found = run_local(
        lambda comm: method(
            q, k[:, :, pieces[comm.rank]], v[:, :, pieces[comm.rank]], comm, spec=Spec(sinks=sinks), return_lse=True
        ),
        ranks=ranks,
    )
    for one in found:
        assert_close(one.out, exact.out, atol=1e-5)
        assert_close(one.lse, exact.lse, atol=1e-5)
    without = reference_attention(q, k, v)
    assert np.abs(without.out - exact.out).max() > 0.1


def test_pages_over_ranks():
    """Each rank has pages of its own, and sequences of other lengths."""
    q, k, v = case_of((3, 2, 2, 1, 96, 16, 24))
    lengths = torch.tensor([96, 0, 33])

    def on_rank(comm):
        low, high = 48 * comm.rank, 48 * (comm.rank + 1)
        mine = (lengths.clamp(max=high) - low).clamp(min=0)
        pages = [x[:, :, low:high].unflatten(2, (6, 8)).transpose(1, 2).flatten(0, 1) for x in (k, v)]
        return tree_decode(q, *pages, comm, block_tables=torch.arange(18).view(3, 6), kv_lengths=mine)

    exact = reference_attention(q, k, v, kv_mask=(torch.arange(96) < lengths[:, None]).numpy())
    for one in run_local(on_rank, ranks=2):
        assert_close(one, exact.out, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"result": "heads"}, {"wire": "bfloat16"}, {"order": "canonical"}], ids=str)
@pytest.mark.parametrize("shape", [(0, 2, 3, 1, 5, 8, 4), (2, 2, 3, 0, 5, 8, 4)], ids=str)
def test_no_batch_entry_and_no_query(shape, options):
    q, k, v = case_of(shape)

    def on_rank(comm):
        k_shard, v_shard, positions = by_map((k, v), ShardMap(2, block_size=2), comm.rank, 5)
        given = {"kv_positions": positions, "shards": ShardMap(2, block_size=2)} if "order" in options else {}
        return tree_decode(q, k_shard, v_shard, comm, verify=1, **given, **options)

    for one in run_local(on_rank, ranks=2):
        assert one.numel() == 0 and one.shape[0] == shape[0] and one.shape[2:] == (shape[3], 4)


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("shape", [(2, 3, 4, 1, 517, 64, 48), (3, 2, 2, 5, 700, 128, 128)], ids=str)
def test_bfloat16_errs_at_most_twice_as_much_as_torch_does_in_bfloat16(shape, ranks, wire):
    q, k, v = case_of(shape, torch.bfloat16, peak=1.0)
    exact = torch.from_numpy(reference_attention(*(x.double().numpy() for x in (q, k, v))).out)
    group = shape[2]
    weights = ((q @ k.repeat_interleave(group, 1).transpose(2, 3)) * shape[5] ** -0.5).softmax(-1)
    theirs = ((weights @ v.repeat_interleave(group, 1)).double() - exact).abs().max()
    pieces = cuts(shape[4], ranks)

    def on_rank(comm):
        piece = pieces[comm.rank]
        return tree_decode(q, k[:, :, piece], v[:, :, piece], comm, wire=wire)

    for one in run_local(on_rank, ranks=ranks):
        assert one.dtype == torch.bfloat16
        assert (one.double() - exact).abs().max() <= 2 * theirs
