"""Prepared steps: the shortest way gives the bits of the general one, and leaves to that what it does not take."""

import numpy as np
import pytest
import torch

import attention.decode.communicators
import attention.decode.tree_decode
from attention import DecodeOptions, Spec, prepare_decode, tree_decode
from attention.decode.communicators import PREPARED_LIMIT
from tests.attention.cases import case_of
from tests.attention.decode.ways import both_ways
from topocomm import Communicator, MismatchError, OperatorError, run_local

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_the_general_way(taken, ranks, dtype):
    q, k, v = case_of((2, 4, 2, 1, 300, 24, 40), dtype)

    def on_rank(comm):
        for n in (7, 100, 60 * comm.rank, 300):
            mine = slice(n // 4, n) if comm.rank % 2 else slice(0, n)
            found, wanted = both_ways(comm, q + n / 300, k[:, :, mine], v[:, :, mine])
            for x, y in zip(found, wanted, strict=True):
                assert x.dtype == y.dtype and torch.equal(x, y)

    run_local(on_rank, ranks=ranks)
    assert taken == [True] * 4 * ranks


def test_results_are_the_callers_own(taken):
    q, k, v = case_of((1, 4, 2, 3, 50, 16, 16))

    def on_rank(comm):
        outs = [tree_decode(q * i, k, v, comm, return_lse=True) for i in range(6)]
        kept = [(x.out.clone(), x.lse.clone()) for x in outs]
        for i, (out, lse) in enumerate(kept):
            again = tree_decode(q * i, k, v, comm, return_lse=True)
            assert torch.equal(again.out, out) and torch.equal(again.lse, lse)
            assert torch.equal(outs[i].out, out)

    run_local(on_rank, ranks=2)
    assert sum(taken) == 2 * 12


def test_kept_steps_serve_several_shapes_and_specs(taken):
    cases = [case_of((1, heads, 1, q_len, 30, 8, 8)) for heads, q_len in ((2, 1), (4, 1), (4, 3))]
    specs = [None, Spec(softcap=3.0)]

    def on_rank(comm):
        for q, k, v in cases * 2:
            found, wanted = both_ways(comm, q, k, v, spec=specs[1])
            assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
        assert not torch.equal(tree_decode(q, k, v, comm), found.out)
        assert not torch.equal(tree_decode(q, k, v, comm), found.out)

    run_local(on_rank, ranks=2)
    assert sum(taken) == 2 * (6 + 2)


def test_everything_else_goes_the_general_way(taken):
    q, k, v = case_of((1, 4, 2, 1, 30, 8, 8))
    wide = torch.zeros(1, 4, 30, 16)

    def on_rank(comm):
        plain = tree_decode(q, k, v, comm)
        taken.clear()
        calls = [
            lambda: tree_decode(q.numpy(), k.numpy(), v.numpy(), comm),
            lambda: tree_decode(q.double(), k, v, comm),
            lambda: tree_decode(q, k, v[:, :, :29], comm),
            lambda: tree_decode(q, k[0], v, comm),
            lambda: tree_decode(q, k[:, :1], v, comm),
            lambda: tree_decode(q, wide[..., ::2], v, comm),
            lambda: tree_decode(q, k.half(), v, comm),
            lambda: tree_decode(q, k, v, comm, result="heads"),
            lambda: tree_decode(q, k, v, comm, out=torch.empty_like(plain)),
            lambda: tree_decode(q, k, v, comm, verify=1),
            lambda: tree_decode(q, k, v, comm, block_tables=[[0]], kv_lengths=[7]),
        ]
        refused = 0
        for call in calls:
            try:
                call()
            except OperatorError:
                refused += 1
        assert refused == 5 and not any(taken)
        assert torch.equal(tree_decode(q, k, v, comm), plain) and taken == [*taken[:-1], True]

    run_local(on_rank, ranks=1)


def test_a_prepared_step_plans_and_agrees_once(monkeypatch, taken):
    q, k, v = case_of((1, 4, 2, 1, 30, 8, 8))
    plans, told = [], []
    prepare, tell = Communicator.prepare, Communicator.allgather_bytes
    monkeypatch.setattr(Communicator, "prepare", lambda self, *x, **y: plans.append(x) or prepare(self, *x, **y))
    monkeypatch.setattr(Communicator, "allgather_bytes", lambda self, x: told.append(1) or tell(self, x))

    def on_rank(comm):
        at = np.arange(comm.rank, 30, 2)
        spec = Spec(causal=True)
        prepared = prepare_decode(comm, q, spec, like_kv=(k[:, :, :0], v[:, :, :0]), like_positions=([29], at[:0]))
        comm.barrier()
        before = len(plans), len(told)
        comm.barrier()
        for n in (3, 9, 15):
            out = prepared.step(q, k[:, :, at[:n]], v[:, :, at[:n]], q_positions=[29], kv_positions=at[:n])
        comm.barrier()
        assert (len(plans), len(told)) == before
        comm.barrier()
        exact = tree_decode(q, k[:, :, at], v[:, :, at], comm, spec=spec, q_positions=[29], kv_positions=at)
        assert torch.equal(out, exact)

    run_local(on_rank, ranks=2)
    assert len(taken) == 2 * 4 and all(taken)


def test_a_step_of_another_kind_is_refused():
    q, k, v = case_of((1, 4, 2, 1, 30, 8, 8))

    def on_rank(comm):
        prepared = prepare_decode(comm, q, like_kv=(k, v))
        for given, said in (
            ((q[:, :4], k, v), r"PreparedDecode.step: prepared for q \[1, 8, 1, 8\], got \[1, 4, 1, 8\]"),
            ((q, k[:, :1], v[:, :1]), "prepared for kv_heads 4, got 1"),
            ((q, k.half(), v.half()), "prepared for dtype of k and v torch.float32, got torch.float16"),
            ((q, k, v[..., :4]), "prepared for d_v 8, got 4"),
        ):
            with pytest.raises(OperatorError, match=said):
                prepared.step(*given)
        at = np.arange(30 * comm.rank, 30 * comm.rank + 30)
        with pytest.raises(OperatorError, match="prepared for steps without kv_positions"):
            prepared.step(q, k, v, kv_positions=at)
        with pytest.raises(OperatorError, match="prepare_decode: wire must be one of"):
            prepare_decode(comm, q, like_kv=(k, v), options=DecodeOptions(wire="int8"))
        with pytest.raises(MismatchError, match=r"the key at position 0 is on ranks \[0, 1\]"):
            prepare_decode(comm, q, like_kv=(k, v), like_positions=([29], np.arange(30)))

    run_local(on_rank, ranks=2)


def test_gradients_are_there_after_steps_without():
    tensors = case_of((1, 4, 2, 1, 30, 8, 8))

    def on_rank(comm):
        plain = tree_decode(*tensors, comm)
        for which in range(3):
            given = [x.clone().requires_grad_(i == which) for i, x in enumerate(tensors)]
            out = tree_decode(*given, comm)
            assert torch.equal(out, plain)
            out.sum().backward()
            assert given[which].grad.abs().max() > 0

    run_local(on_rank, ranks=1)


def test_steps_whose_reduction_was_given_back_plan_again(monkeypatch, taken):
    monkeypatch.setattr(attention.decode.communicators, "PREPARED_LIMIT", 3)
    q, k, v = case_of((1, 1, 1, 1, 10, 8, 8))

    def on_rank(comm):
        prepared = prepare_decode(comm, q, like_kv=(k, v))
        first = prepared.step(q, k, v)
        for heads in range(2, 6):
            tree_decode(q[:, :1].expand(1, heads, 1, 8), k, v, comm, result="heads")
        taken.clear()
        for _ in range(2):
            assert torch.equal(tree_decode(q, k, v, comm), first)
            assert torch.equal(prepared.step(q, k, v), first)

    run_local(on_rank, ranks=2)
    assert taken == [True] * 8
    assert attention.decode.tree_decode.STEPS_LIMIT == PREPARED_LIMIT
