"""The ring where it hides more than it costs, by the planner's time of the all-gather."""

from types import SimpleNamespace

import pytest
import torch

from attention.huggingface import ring_or_gather
from attention.huggingface.ring_or_gather import GATHER, GATHERED_BYTES, Exchange
from attention.ulysses.sequence_cost import SequenceCost, SequenceShape
from topocomm import run_local


def ranks_of(size, us_per_byte):
    def explain(collective, *, like):
        assert collective == "allgather"
        return SimpleNamespace(call_us=like.nbytes * (size - 1) * us_per_byte)

    return SimpleNamespace(size=size, explain=explain)


def exchange(tokens, place="cpu"):
    return Exchange(tokens, batch=1, heads=9, width=128, token_bytes=3 * 128 * 4, place=place)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_ring_where_messages_take_long_and_there_is_much_to_attend(size):
    assert not exchange(100).by_ring(ranks_of(size, 1.0)), "nothing to hide behind"
    assert not exchange(5000).by_ring(ranks_of(size, 1e-5)), "nothing to hide"
    assert exchange(5000).by_ring(ranks_of(size, 1e-1))


def test_the_ring_where_all_are_too_many_for_a_rank():
    least = GATHERED_BYTES // exchange(1).token_bytes + 1
    assert not exchange(least - 1).by_ring(ranks_of(2, 0.0)) and exchange(least).by_ring(ranks_of(2, 0.0))


def test_what_hides_is_the_smaller_one():
    """By hand: 5,000 tokens of 9 heads on 2 ranks are 288,000 us of attention each; a hop costs 540 us."""
    one = exchange(5000)
    assert one.attention_us(2) == pytest.approx(2 * 5000**2 / 2 * 9 * 128 / 2 / 5e4)
    assert one.hop_us(2) == pytest.approx(50 + 3 * 2500 * 9 * 65 * 4 / 1e4)
    gather_us = one.hop_us(2) / (2500 * one.token_bytes)
    assert one.by_ring(ranks_of(2, gather_us * 1.01)) and not one.by_ring(ranks_of(2, gather_us * 0.99))


def test_heads_where_they_are_to_take_less_than_what_is_chosen_without_them(monkeypatch):
    """By hand: gathered, 5,000 tokens on 2 ranks take 288,000 us and the time of the all-gather."""
    one, shape = exchange(5000), SequenceShape(5000, 1, 9, 3, 64, 64, torch.float32, "cpu")

    def chosen(ring, total_us, us_per_byte=0.0):
        monkeypatch.setattr(ring_or_gather, "best_cost", lambda *_: SequenceCost(ring, total_us, 0.0, 0.0, 0.0))
        return one.ring_size(ranks_of(2, us_per_byte), shape)

    assert one.attention_us(2) == pytest.approx(288000)
    assert chosen(1, 287999) == 1 and chosen(1, 288001) == GATHER
    assert chosen(2, 0) == GATHER, "the ring alone is compared by what it hides"
    assert chosen(2, 1e9, 1.0) == 2 and chosen(1, 1e9, 1.0) == 1, "where it is too slow to gather"


@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_all_ranks_choose_alike(place):
    def choose(comm):
        return [exchange(tokens, place).by_ring(comm) for tokens in (7, 100, 3000, 60000)]

    chosen = run_local(choose, ranks=3)
    assert chosen == [chosen[0]] * 3
    assert not chosen[0][0]
