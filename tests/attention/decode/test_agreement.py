"""Keys on two ranks, or on none, are named on every rank: at the first call of a kind, without verification."""

import numpy as np
import pytest
import torch

from attention import Spec, ring_decode, three_allreduce_decode, tree_decode
from attention.decode.agreement import coverage_fault
from tests.attention.cases import case_of
from topocomm import MismatchError, OperatorError, run_local

METHODS = [tree_decode, three_allreduce_decode, ring_decode]


def outcome(pieces, method=tree_decode, *, batch=1, spec=None, at=39, **masks):
    """What each rank's call raises; None where it returns."""
    q, k, v = case_of((batch, 2, 1, 1, 64, 8, 8))
    found = [None] * len(pieces)

    def on_rank(comm):
        mine = pieces[comm.rank]
        n = mine.shape[-1]
        given = {name: value[comm.rank] for name, value in masks.items()}
        try:
            method(
                q, k[:, :, :n], v[:, :, :n], comm,
                spec=spec or Spec(causal=True), kv_positions=mine, q_positions=[at], **given,
            )  # fmt: skip
        except MismatchError as error:
            found[comm.rank] = str(error)

    run_local(on_rank, ranks=len(pieces))
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("last", "part"),
    [
        (np.r_[30:40, 12:14], "the key at position 12 is on ranks [1, 2]: it would count twice"),
        (np.r_[30:40, 31], "the key at position 31 is on rank 2 twice"),
        (np.r_[32:40], "the keys at positions 30 to 31 are on no rank, though keys before and behind are"),
        (np.r_[30:35, 36:40], "the key at position 35 is on no rank"),
    ],
)
def test_a_key_on_two_ranks_or_on_none_is_named_on_every_rank(method, last, part):
    pieces = [np.r_[0:10, 20:30], np.r_[10:20], last]
    for rank, text in enumerate(outcome(pieces, method)):
        assert text is not None and text.startswith(f"rank {rank}: {method.__name__}: ") and part in text
    assert outcome([*pieces[:2], np.r_[30:40]], method) == [None] * 3


def test_ranks_without_keys_and_any_order_of_keys_are_right():
    shuffled = np.random.default_rng(3).permutation(40)
    assert outcome([shuffled[:17], np.r_[0:0], shuffled[17:]]) == [None] * 3
    assert outcome([np.r_[0:0], np.r_[0:0]]) == [None] * 2
    assert outcome([np.r_[7:20], np.r_[20:40]]) == [None] * 2  # what came before 7 is nobody's


def test_keys_that_no_query_sees_may_be_missing():
    behind = [np.r_[0:4, 30:35], np.r_[35:40]]  # the first ones and a window, as StreamingLLM keeps them
    assert outcome(behind, spec=Spec(causal=True, window=10)) == [None] * 2
    found = outcome(behind, spec=Spec(causal=True, window=11))
    assert all("position 29 is on no rank" in text for text in found)
    beyond = [np.r_[0:20], np.r_[20:40, 50:55]]
    assert outcome(beyond) == [None] * 2
    assert all("positions 40 to 49 are" in text for text in outcome(beyond, at=52))
    assert all("positions 40 to 49 are" in text for text in outcome(beyond, spec=Spec()))


def test_masked_keys_are_neither_missing_nor_twice():
    pieces = [np.r_[0:12], np.r_[10:40]]
    there = [np.arange(12) < 10, np.ones(30, bool)]
    assert outcome(pieces, kv_mask=there) == [None] * 2
    assert outcome(pieces, kv_lengths=[[10], [30]]) == [None] * 2
    assert outcome([np.r_[0:20], np.r_[20:40]], kv_mask=[np.arange(20) < 10, np.arange(20) > 3]) == [None] * 2
    found = outcome(pieces, kv_mask=[np.ones(12, bool), there[1]])
    assert all("position 10 is on ranks [0, 1]" in text for text in found)


def test_batch_entries_are_looked_at_one_by_one():
    right = np.stack([np.r_[0:20], np.r_[5:25], np.r_[0:20]])
    rest = np.stack([np.r_[20:40], np.r_[25:45], np.r_[20:40]])
    assert outcome([right, rest], batch=3) == [None] * 2
    rest[1] = np.r_[24:44]
    found = outcome([right, rest], batch=3)
    assert all("batch entry 1: the key at position 24 is on ranks [0, 1]" in text for text in found)
    # Shared positions on one rank stand for all entries.
    found = outcome([right, np.r_[20:40]], batch=3)
    assert all("batch entry 1: the key at position 20 is on ranks [0, 1]" in text for text in found)


def test_one_rank_without_positions_is_named():
    q, k, v = case_of((1, 2, 1, 1, 20, 8, 8))
    found = []

    def on_rank(comm):
        try:
            tree_decode(q, k, v, comm, kv_positions=None if comm.rank == 1 else np.arange(20) + 20 * comm.rank)
        except MismatchError as error:
            found.append(str(error))

    run_local(on_rank, ranks=3)
    assert len(found) == 3 and all("rank 0 has kv_positions given, rank 1 has kv_positions none" in x for x in found)


def test_too_few_positions_are_an_error_where_positions_do_not_matter():
    q, k, v = case_of((1, 2, 1, 1, 20, 8, 8))
    with pytest.raises(OperatorError, match=r"kv_positions must be \[20\]"):
        run_local(lambda comm: tree_decode(q, k, v, comm, kv_positions=np.arange(19)), ranks=2)


def test_it_is_looked_at_once_a_kind(monkeypatch):
    import attention.decode.agreement

    calls = []
    counted = lambda *given: calls.append(1) or coverage_fault(*given)  # noqa: E731
    monkeypatch.setattr(attention.decode.agreement, "coverage_fault", counted)
    q, k, v = case_of((1, 2, 1, 1, 20, 8, 8))

    def on_rank(comm):
        for _ in range(3):
            tree_decode(q, k, v, comm, kv_positions=torch.arange(20) + 20 * comm.rank)

    run_local(on_rank, ranks=2)
    assert len(calls) == 2
