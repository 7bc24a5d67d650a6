"""Bound steps: rows of one memory, with the bits of a step that is given them."""

from types import SimpleNamespace

import pytest
import torch

from attention import DecodeOptions, Spec, prepare_decode
from attention.cache.storage_run import StorageRun
from attention.decode.bound_step import RESULTS, Alike
from attention.decode.communicators import PREPARED_LIMIT
from attention.decode.reductions import AllReduce
from tests.attention.cases import case_of
from topocomm import run_local

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def run(bound, q, first, end, *, mask=None, options=None, firsts=None):
    bound.begin(*StorageRun(first, end, firsts))
    return bound.attend(q, mask, options or {})


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
            kept.append((run(bound, q, first, end), wanted))
        assert all(x.dtype == dtype and torch.equal(x, y) for x, y in kept)  # results are the caller's own

    run_local(on_rank, ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_entries_that_begin_at_rows_of_their_own(ranks):
    q, k, v = case_of((2, 4, 2, 1, 300, 24, 24))

    def on_rank(comm):
        prepared = prepare_decode(comm, q, like_kv=(k, v))
        bound, end = prepared.bind(k, v), 250 - comm.rank
        for firsts in ((0, 0), (40, 120), (120, 250), (300, 7)):
            shown = torch.arange(300)[None] >= torch.tensor(firsts)[:, None]
            wanted = prepared.step(q, k[:, :, :end], v[:, :, :end], kv_mask=shown[:, :end])
            assert torch.allclose(run(bound, q, 0, end, firsts=firsts), wanted, atol=1e-6)

    run_local(on_rank, ranks=ranks)


def test_rows_that_are_written_later_are_seen():
    q, k, v = case_of((1, 4, 2, 1, 30, 24, 24))

    def on_rank(comm):
        memory_k, memory_v = torch.zeros_like(k), torch.zeros_like(v)
        prepared = prepare_decode(comm, q, like_kv=(k, v))
        bound = prepared.bind(memory_k, memory_v)
        memory_k[:], memory_v[:] = k, v
        assert torch.equal(run(bound, q, 0, 30), prepared.step(q, k, v))

    run_local(on_rank, ranks=2)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dim", [8, 20_000])
def test_memory_of_results_is_made_for_several_and_belongs_to_the_caller(ranks, dim, monkeypatch):
    q, k, v = case_of((1, 4, 2, 1, 30, dim, dim))
    made, empty = [], AllReduce.empty
    monkeypatch.setattr(AllReduce, "empty", lambda self: made.append(1) or empty(self))

    def on_rank(comm):
        bound = prepare_decode(comm, q, like_kv=(k, v)).bind(k, v)
        with torch.inference_mode():
            last = [run(bound, q, 0, 30)]
        last += [run(bound, q, 0, 30) for _ in range(RESULTS)]  # the first of them in memory made in that mode
        weight = torch.ones(dim, requires_grad=True)
        (last[1] * weight).sum().backward()
        last[0].zero_()
        assert all(torch.equal(x, last[1]) for x in last[2:])
        assert all(x.untyped_storage().nbytes() == 4 * x.numel() and x._base is None for x in last)

    before = len(made)
    run_local(on_rank, ranks=ranks)
    steps = RESULTS + 1
    assert len(made) - before <= ranks * (2 * RESULTS + 4 if dim == 8 else steps + 4)


def test_what_is_of_another_kind_is_left_to_other_ways():
    q, k, v = case_of((1, 4, 2, 1, 30, 24, 24))
    mask, scale = SimpleNamespace(kind=object()), 0.25
    options = {"scaling": scale, "position_ids": 1}

    def on_rank(comm):
        prepared = prepare_decode(comm, q, like_kv=(k, v))
        bound = prepared.bind(k, v, alike=Alike(mask.kind, {"scaling": scale}, ("position_ids",), 2))
        others = q.double(), q[:, :2], q.clone().requires_grad_(), torch.nn.Parameter(q), q.to("meta"), q[0]
        assert [run(bound, other, 0, 30, mask=mask, options=options) for other in others] == [None] * 6
        masks = None, q, SimpleNamespace(kind=object()), SimpleNamespace()
        assert [run(bound, q, 0, 30, mask=other, options=options) for other in masks] == [None] * 4
        for other in ({}, {**options, "x": 1}, {**options, "scaling": 0.5}, {"scaling": scale, "softcap": 2.0}):
            assert run(bound, q, 0, 30, mask=mask, options=other) is None
        assert run(bound, q, 0, 30, mask=mask, options={**options, "position_ids": 2}) is not None
        assert bound.attend(q, mask, options) is None  # once

    run_local(on_rank, ranks=2)


def test_a_reduction_that_was_freed_for_others():
    q, k, v = case_of((1, 4, 2, 1, 30, 24, 24))

    def on_rank(comm):
        bound = prepare_decode(comm, q, like_kv=(k, v)).bind(k, v)
        assert run(bound, q, 0, 30) is not None
        for batch in range(1, PREPARED_LIMIT + 2):
            like = torch.zeros(batch, 1, 1, 24)
            prepare_decode(comm, like, like_kv=(like, like))
        assert run(bound, q, 0, 30) is None

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
        assert torch.equal(run(bound, q, 500, 8000), prepared.step(q, k[:, :, 500:8000], v[:, :, 500:8000]))

    run_local(on_rank, ranks=1)
