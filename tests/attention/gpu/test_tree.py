"""tree_decode on GPUs: where its numbers are written, its shortest way, its bits, its gradients, what it refuses."""

from tests.attention.gpu.playing import playing, run_in, run_on_gpus  # isort: skip

import numpy as np
import pytest
import torch

from attention import Partial, ShardMap, Spec, gpu, reference_attention, ring_attention, ring_decode, tree_decode
from attention.arrays import check_inputs
from attention.decode.communicators import state_of, stream_order_of
from attention.decode.sharded import ShardedCall
from attention.gpu import placement as where
from attention.gpu.decode import decode
from attention.gpu.prefill import prefill
from attention.visibility import HIDDEN, Masking, Visibility
from tests.attention.cases import assert_close, by_map, case_of, cuts
from tests.attention.gpu.inputs import paged
from tests.attention.gradients import gradients64
from topocomm import MismatchError, OperatorError

SHAPE = (2, 2, 2, 1, 29, 16, 24)
CAUSAL = Spec(causal=True)


def mine(tensors, comm, n=SHAPE[4]):
    q, k, v = tensors
    part = cuts(n, comm.size)[comm.rank]
    return q, k[:, :, part].contiguous(), v[:, :, part].contiguous()


def bits(partial):
    return b"".join(x.contiguous().view(torch.uint8).numpy().tobytes() for x in partial)


def test_buffers_made_in_inference_mode_serve_outside_of_it():
    tensors = case_of(SHAPE)

    def on_rank(comm):
        with torch.inference_mode():
            inside = tree_decode(*mine(tensors, comm), comm).clone()
        return torch.equal(tree_decode(*mine(tensors, comm), comm), inside)

    assert run_on_gpus(on_rank, 2) == [True, True]


def test_the_kernel_writes_into_the_send_buffer(monkeypatch):
    written = []
    kernel = decode.decode_partial
    monkeypatch.setattr(decode, "decode_partial", lambda *x, out, **y: written.append(out) or kernel(*x, out=out, **y))
    tensors = case_of(SHAPE)

    def body(comm):
        for _ in range(3):
            tree_decode(*mine(tensors, comm), comm)
        ((_, reduction),) = state_of(comm)["calls"].items()
        return [reduction.input[name].data_ptr() for name in ("out", "lse")]

    for places in run_on_gpus(body, 2):
        same = [[x.data_ptr() for x in out] == places for out in written]
        assert sum(same) == 3 and len(same) == 2 * 3  # of either rank


def test_equal_steps_take_the_shortest_way(monkeypatch):
    q, k, v = case_of(SHAPE)
    begun = []
    begin = ShardedCall.begin
    monkeypatch.setattr(ShardedCall, "begin", lambda *told: begun.append(told) or begin(*told))

    def body(comm):
        grows = [(q, k[:, :, :n], v[:, :, :n]) for n in (5, 6, 29, 0, 29)]
        found = [tree_decode(*one, comm, return_lse=True) for one in grows]
        before = len(begun)
        others = [
            (q, k.transpose(2, 3).contiguous().transpose(2, 3), v),
            (q.half(), k.half(), v.half()),
            (q, k, v[..., :8].contiguous()),
        ]
        found += [tree_decode(*one, comm, return_lse=True) for one in others]
        return found, before, len(begun)

    ((found, before, after),) = run_on_gpus(body, 1)
    assert (before, after) == (1, 4)
    for one, n in zip(found, (5, 6, 29, 0, 29, 29), strict=False):
        exact = reference_attention(q, k[:, :, :n], v[:, :, :n])
        assert_close(one.out, exact.out, atol=1e-5)
        assert_close(one.lse, exact.lse, atol=1e-5)


def test_the_shortest_way_refuses_what_the_common_way_refuses():
    def body(comm):
        q, k, v = mine(case_of(SHAPE), comm)
        tree_decode(q, k, v, comm)
        with pytest.raises(OperatorError, match="k and v must agree in"):
            tree_decode(q, k, v[:, :, 1:], comm)
        with pytest.raises(OperatorError, match="k and v must have one dtype"):
            tree_decode(q, k, v.half(), comm)
        return tree_decode(q, k, v, comm).shape

    assert run_on_gpus(body, 1) == [(2, 4, 1, 24)]


@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(5, marks=pytest.mark.long)])
def test_empty_shards_and_no_key_at_all(ranks):
    q, k, v = case_of(SHAPE)

    def body(comm):
        all_here = comm.rank == comm.size - 1
        some = tree_decode(q, k if all_here else k[:, :, :0], v if all_here else v[:, :, :0], comm, return_lse=True)
        none = [tree_decode(q, k[:, :, :0], v[:, :, :0], comm, return_lse=True, **x) for x in ({}, {"spec": CAUSAL})]
        return some, none

    exact = reference_attention(q, k, v)

    def with_positions(comm):
        given = {"spec": CAUSAL, "q_positions": [0], "kv_positions": np.arange(1, 30)[cuts(29, ranks)[comm.rank]]}
        return tree_decode(*mine((q, k, v), comm), comm, return_lse=True, **given)

    if ranks == 1:
        for some, none in run_on_gpus(body, ranks):
            assert_close(some.out, exact.out, atol=1e-5)
            assert all((x.out == 0).all() and (x.lse == -torch.inf).all() for x in none)
    for hidden in run_on_gpus(with_positions, ranks):
        assert (hidden.out == 0).all() and (hidden.lse == -torch.inf).all()


@pytest.mark.parametrize("ranks", [2, 3])
def test_pages(ranks):
    q, k, v = case_of((2, 2, 2, 3, 29, 16, 24))
    lengths = [[7, 0, 8][rank] + np.array([0, 1]) for rank in range(ranks)]

    def body(comm):
        part = slice(10 * comm.rank, 10 * comm.rank + 9 + (comm.rank < 2))
        *pages, tables = paged(np.random.default_rng(comm.rank), k[:, :, part], v[:, :, part], 4)
        given = {"kv_lengths": torch.as_tensor(lengths[comm.rank]), "block_tables": tables}
        return [tree_decode(q, *pages, comm, return_lse=True, **given) for _ in range(2)][1]

    there = np.zeros((2, 29), bool)
    for rank, entry in np.ndindex(ranks, 2):
        there[entry, 10 * rank : 10 * rank + lengths[rank][entry]] = True
    exact = reference_attention(q, k, v, kv_mask=there)
    for one in run_on_gpus(body, ranks):
        assert_close(one.out, exact.out, atol=1e-5)
        assert_close(one.lse, exact.lse, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_into_out(dtype):
    tensors = case_of(SHAPE, dtype)

    def body(comm):
        q, k, v = mine(tensors, comm)
        out = torch.full((2, 4, 1, 24), torch.nan, dtype=dtype)
        strided = torch.full((2, 4, 24, 1), torch.nan, dtype=dtype).transpose(2, 3)
        fresh = tree_decode(q, k, v, comm)
        for target in (out, strided):
            assert tree_decode(q, k, v, comm, out=target) is target
            assert torch.equal(target, fresh)
        with pytest.raises(OperatorError, match="out must be"):
            tree_decode(q, k, v, comm, out=out[:1])
        return comm.rank

    assert run_on_gpus(body, 2) == [0, 1]


def test_canonical_bits_do_not_depend_on_the_number_of_ranks():
    n, tensors = 45, case_of((1, 2, 2, 1, 45, 16, 24))
    found = set()
    for ranks in (1, 2, 3, 5):

        def body(comm, ranks=ranks):
            shards = ShardMap(ranks, 6, block_size=2)
            k, v, at = by_map(tensors[1:], shards, comm.rank, n)
            options = {"order": "canonical", "shards": shards, "return_lse": True}
            given = [tree_decode(tensors[0], k, v, comm, kv_positions=x, **options) for x in (at, at.numpy(), at)]
            shuffled = torch.randperm(len(at), generator=torch.Generator().manual_seed(1))
            mixed = (x.index_select(2, shuffled) for x in (k, v))
            given.append(tree_decode(tensors[0], *mixed, comm, kv_positions=at[shuffled], **options))
            assert len({bits(x) for x in given}) == 1
            return bits(given[0])

        found |= set(run_on_gpus(body, ranks))
    assert len(found) == 1


@pytest.mark.parametrize("spec", [Spec(), Spec(causal=True, window=9, softcap=3.0, alibi_slopes=[0.1, 0.2, 0.3, 0.4])])
def test_gradients(spec):
    n, tensors = SHAPE[4], case_of((2, 2, 2, 3, 29, 16, 24))
    rng = torch.Generator().manual_seed(5)
    arriving = torch.randn((2, 4, 3, 24), generator=rng), torch.randn((2, 4, 3), generator=rng)
    at = torch.arange(n - 3, n), torch.arange(n)

    def body(comm):
        own = [x.clone().requires_grad_() for x in mine(tensors, comm)]
        where_ = {"q_positions": at[0], "kv_positions": at[1][cuts(n, 3)[comm.rank]]} if spec.causal else {}
        result = tree_decode(*own, comm, spec=spec, return_lse=True, **where_)
        return torch.autograd.grad(result, own, arriving)

    _, exact = gradients64(tensors, spec, at, *arriving)
    found = run_on_gpus(body, 3)
    for dq, _, _ in found:
        torch.testing.assert_close(dq.double(), exact[0], rtol=1e-5, atol=1e-5)
    for number in (1, 2):
        whole = torch.cat([one[number] for one in found], 2)
        torch.testing.assert_close(whole.double(), exact[number], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", [CAUSAL, Spec()])
@pytest.mark.parametrize("q_len", [1, 5, 16, 17])
def test_few_queries_go_to_the_decode_kernel_whatever_they_see(monkeypatch, q_len, spec):
    monkeypatch.setattr(prefill if q_len <= 16 else decode, "_launch", None)
    q, k, v = case_of((2, 1, 2, q_len, 21, 16, 16))
    keys = torch.arange(21).where(torch.arange(21) != 3, HIDDEN)
    inputs = check_inputs("test", q, k, v, spec=spec, masking=Masking())
    object.__setattr__(inputs, "visibility", Visibility.of(spec, torch.arange(5, 5 + q_len)[None], keys[None]))
    result = Partial(torch.full((2, 2, q_len, 16), torch.nan), torch.full((2, 2, q_len), torch.nan))
    gpu.attend(inputs, result)
    given = {"q_positions": np.arange(5, 5 + q_len), "kv_positions": np.arange(21), "kv_mask": np.arange(21) != 3}
    exact = reference_attention(q, k, v, spec=spec, **given)
    assert_close(result.out, exact.out, atol=1e-5)
    assert_close(result.lse, exact.lse, atol=1e-5)


def test_keys_hidden_far_away_of_negative_positions():
    """HIDDEN less a negative position is more than 64 bits hold."""
    q, k, v = case_of((1, 1, 1, 1, 9, 16, 16))
    spec = Spec(window=1 << 40)
    seen = Visibility.of(spec, torch.tensor([[-7]]), torch.arange(9).where(torch.arange(9) < 6, HIDDEN)[None] - 0)
    inputs = check_inputs("test", q, k, v, spec=Spec(), masking=Masking())
    object.__setattr__(inputs, "visibility", seen)
    object.__setattr__(inputs, "spec", spec)
    result = inputs.empty_partial()
    gpu.attend(inputs, result)
    exact = reference_attention(q, k[:, :, :6], v[:, :, :6])
    assert_close(result.out, exact.out, atol=1e-5)


def test_ranks_that_are_not_all_on_gpus_are_named(monkeypatch):
    tensors = case_of(SHAPE)

    def body(comm):
        arguments = mine(tensors, comm)
        for method, said in (
            (tree_decode, "rank 0 has memory a GPU's, rank 1 has memory the host's"),
            (lambda *x: ring_attention(x[1], *x[1:]), "ranks .1. differ from rank 0; rank 1 in memory"),
        ):
            with pytest.raises(MismatchError, match=said):
                method(*arguments, comm)
        return True

    with playing(2) as world, monkeypatch.context() as patch:  # undone before what it stands on is
        patch.setattr(where, "_held", lambda x: world.rank_here() == 0)
        assert all(run_in(world, body))


def test_what_no_graph_records_is_refused(monkeypatch):
    q, k, v = case_of(SHAPE)
    at = torch.arange(29)

    def body(comm):
        part = slice(0, 15) if comm.rank == 0 else slice(15, 29)
        arguments = q, k[:, :, part].contiguous(), v[:, :, part].contiguous(), comm
        canonical = {
            "order": "canonical",
            "shards": ShardMap(2, 2, block_size=1, capacity=30),
            "kv_positions": at[part],
        }
        fine = tree_decode(*arguments), tree_decode(*arguments, **canonical), ring_decode(*arguments)
        comm.barrier()
        monkeypatch.setattr(where, "capturing", lambda device: True)
        for name in (
            "decode.agreement",
            "ring.ring_decode",
            "decode.verification",
            "gpu.masks",
            "decode.canonical",
        ):
            monkeypatch.setattr(f"attention.{name}.capturing", lambda device: True)
        comm.barrier()
        again = tree_decode(*arguments)
        assert list(stream_order_of(comm).captured.values()) == [state_of(comm)["calls"][(2, 4, 1, 24), q.device]]
        for refused, told in (
            ("agreed upon by the ranks", {"spec": Spec(scale=0.5)}),
            ("verify reads results back", {"verify": 1}),
            ("orders keys on the host", canonical),
        ):
            with pytest.raises(OperatorError, match=refused):
                tree_decode(*arguments, **told)
        with pytest.raises(OperatorError, match="no CUDA graph records; use tree_decode"):
            ring_decode(*arguments)
        return torch.equal(fine[0], again)

    assert run_on_gpus(body, 2) == [True, True]


@pytest.mark.long
def test_through_host_memory_where_no_wire_takes_the_ranks(monkeypatch):
    from topocomm.execute.transports.device import nccl_library

    q, k, v = tensors = case_of(SHAPE)
    exact = reference_attention(q, k, v)
    with playing(2) as world:
        monkeypatch.setattr(nccl_library, "refusal", lambda facts: "none here")
        found = run_in(
            world,
            lambda comm: [method(*mine(tensors, comm), comm) for method in (tree_decode, ring_decode, tree_decode)],
        )
    for outs in found:
        for out in outs:
            assert_close(out, exact.out, atol=1e-5)
