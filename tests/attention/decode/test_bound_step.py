"""Bound steps: rows of one memory, with the bits of a step that is given them."""

import pytest
import torch

from attention import DecodeOptions, Spec, prepare_decode
from tests.attention.cases import case_of
from topocomm import run_local

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", [Spec(), Spec(softcap=4.0, sinks=(0.5, -1.0, 2.0, 0.0) * 2)], ids=["plain", "sinks"])
def test_bits_are_those_of_a_step_with_these_rows(ranks, dtype, spec):
    q, k, v = case_of((2, 4, 2, 1, 300, 24, 40), dtype)

    def on_rank(comm):
        prepared = prepare_decode(comm, q, spec, like_kv=(k, v))
        bound = prepared.bind(k, v)
        kept = []
        for first, end in ((0, 0), (0, 1), (7, 100), (100 - comm.rank, 200), (0, 300)):
            wanted = prepared.step(q, k[:, :, first:end], v[:, :, first:end])
            kept.append((bound.run(q, first, end), wanted))
        assert all(x.dtype == dtype and torch.equal(x, y) for x, y in kept)  # results are the caller's own

    run_local(on_rank, ranks=ranks)


def test_rows_that_are_written_later_are_seen():
    q, k, v = case_of((1, 4, 2, 1, 30, 24, 24))

    def on_rank(comm):
        memory_k, memory_v = torch.zeros_like(k), torch.zeros_like(v)
        prepared = prepare_decode(comm, q, like_kv=(k, v))
        bound = prepared.bind(memory_k, memory_v)
        memory_k[:], memory_v[:] = k, v
        assert torch.equal(bound.run(q, 0, 30), prepared.step(q, k, v))

    run_local(on_rank, ranks=2)


def test_queries_of_another_kind_are_left_to_other_ways():
    q, k, v = case_of((1, 4, 2, 1, 30, 24, 24))

    def on_rank(comm):
        bound = prepare_decode(comm, q, like_kv=(k, v)).bind(k, v)
        others = q.double(), q[:, :2], q.clone().requires_grad_(), torch.nn.Parameter(q), q.to("meta"), q[0]
        assert [bound.run(other, 0, 30) for other in others] == [None] * 6

    run_local(on_rank, ranks=2)


def test_steps_without_a_shortest_way():
    q, k, v = case_of((1, 4, 2, 1, 30, 24, 24))

    def on_rank(comm):
        for options in (DecodeOptions(result="heads"), DecodeOptions(wire="bfloat16"), DecodeOptions(verify=True)):
            assert prepare_decode(comm, q, like_kv=(k, v), options=options).bind(k, v) is None
        places = torch.tensor([29]), torch.arange(30) + 30 * comm.rank
        causal = Spec(causal=True)
        assert prepare_decode(comm, q, causal, like_kv=(k, v), like_positions=places).bind(k, v) is None

    run_local(on_rank, ranks=2)


def test_more_keys_than_one_thread_attends_in_one_piece():
    q, k, v = case_of((1, 2, 1, 1, 9000, 8, 8))

    def on_rank(comm):
        prepared = prepare_decode(comm, q, like_kv=(k, v))
        bound = prepared.bind(k, v)
        assert 7500 <= bound.most_keys() < 9000
        assert torch.equal(bound.run(q, 500, 8000), prepared.step(q, k[:, :, 500:8000], v[:, :, 500:8000]))

    run_local(on_rank, ranks=1)
