"""The shortest way through tree_decode gives the bits of the common one, and leaves to that what it does not know."""

import numpy as np
import pytest
import torch

import attention.plain_step
from attention import Spec, tree_decode
from attention.communicators import PREPARED_LIMIT
from attention.plain_step import PlainStep
from tests.attention.cases import case_of
from topocomm import OperatorError, run_local

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def taken(monkeypatch):
    """Whether each call went the shortest way (True) or was left to the common one."""
    found = []
    run = PlainStep.run

    def counted(self, q, k, v):
        merged = run(self, q, k, v)
        found.append(merged is not None)
        return merged

    monkeypatch.setattr(PlainStep, "run", counted)
    return found


def both_ways(comm, q, k, v, **options):
    """What the call gives, and what the common way gives for it."""
    return tree_decode(q, k, v, comm, return_lse=True, **options), tree_decode(
        q, k, v, comm, return_lse=True, kv_mask=np.ones(k.shape[2], bool), **options
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_the_common_way(taken, ranks, dtype):
    q, k, v = case_of((2, 4, 2, 1, 300, 24, 40), dtype)

    def on_rank(comm):
        for n in (7, 100, 60 * comm.rank, 300):
            mine = slice(n // 4, n) if comm.rank % 2 else slice(0, n)
            found, wanted = both_ways(comm, q + n / 300, k[:, :, mine], v[:, :, mine])
            for x, y in zip(found, wanted, strict=True):
                assert x.dtype == y.dtype and torch.equal(x, y)

    run_local(on_rank, ranks=ranks)
    assert sum(taken) == 3 * ranks  # the first call left the step


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
    assert sum(taken) == 2 * 11


@pytest.mark.parametrize("keys", [1, 2, 4095, 8191, 8192, 20000])
@pytest.mark.parametrize("heads", [(1, 1), (8, 8)])
@pytest.mark.parametrize("threads", [1, 2])
def test_cuts_by_keys_and_threads_are_those_of_the_common_way(keys, heads, threads):
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
    assert sum(taken) == 2 * (3 + 1)


def test_everything_else_goes_the_common_way(taken):
    q, k, v = case_of((1, 4, 2, 1, 30, 8, 8))
    wide = torch.zeros(1, 4, 30, 16)

    def on_rank(comm):
        tree_decode(q, k, v, comm)
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
            lambda: tree_decode(q, k.half(), v.half(), comm),
            lambda: tree_decode(q, k, v, comm, spec=Spec(scale=2.0)),
            lambda: tree_decode(q, k, v, comm, result="heads"),
            lambda: tree_decode(q, k, v, comm, out=torch.empty_like(plain)),
            lambda: tree_decode(q, k, v, comm, verify=1),
            lambda: tree_decode(q, k, v, comm, kv_lengths=[7]),
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


def test_gradients_are_there_after_plain_steps():
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


def test_steps_whose_reduction_was_given_back_are_left_alone(taken):
    q, k, v = case_of((1, 1, 1, 1, 10, 8, 8))

    def on_rank(comm):
        first = tree_decode(q, k, v, comm)
        for heads in range(2, 3 + PREPARED_LIMIT):
            tree_decode(q[:, :1].expand(1, heads, 1, 8), k, v, comm, result="heads")
        taken.clear()
        assert torch.equal(tree_decode(q, k, v, comm), first) and not any(taken)
        assert torch.equal(tree_decode(q, k, v, comm), first) and any(taken)

    run_local(on_rank, ranks=1)
    assert attention.plain_step.STEPS_LIMIT == PREPARED_LIMIT
