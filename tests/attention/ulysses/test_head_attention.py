"""Heads of a rank in runs, each with its own slopes and sinks."""

import pytest
import torch

from attention import Spec
from attention.ulysses import head_attention
from attention.ulysses.group_tokens import GroupTokens
from attention.ulysses.head_attention import HeadAttention, spec_of_heads
from attention.ulysses.head_grid import HeadGrid
from tests.attention.gradients import gradients64, spec_of
from tests.attention.ring_cases import case
from topocomm import run_local


def test_specs_of_heads():
    spec = Spec(causal=True, alibi_slopes=[1.0, 2.0, 3.0], sinks=[4.0, 5.0, 6.0])
    assert spec_of_heads(spec, 1, 3) == Spec(causal=True, alibi_slopes=[2.0, 3.0], sinks=[5.0, 6.0])
    assert spec_of_heads(Spec(window=3), 0, 1) == Spec(window=3)


@pytest.mark.parametrize("least", [128, 3], ids=["at once", "in steps"])
@pytest.mark.parametrize("name", ["all", "plain", "window", "causal"])
def test_runs_of_one_place_are_exact(name, least, monkeypatch):
    """9 heads over 3 key heads at 2 places: the first has 3 and 1 of them, the second 2 and 3."""
    monkeypatch.setattr(head_attention, "LEAST_QUERIES", least)
    (q, k, v), (d_out, d_lse) = case(19, kv_heads=3)
    spec, grid, at = spec_of(name, 9), HeadGrid(2, 1, 9, 3), torch.arange(19)
    exact, gradients = gradients64((q, k, v), spec, (at, at), d_out, d_lse)

    def on_rank(comm):
        heads, kv_heads = slice(*grid.heads_of(comm.rank)), slice(*grid.kv_heads_of(comm.rank))
        attention = HeadAttention(comm, None, grid, GroupTokens([at], None), spec)
        own = q[:, heads], k[:, kv_heads], v[:, kv_heads]
        result = attention.forward(*own, exact=True)
        return result, attention.backward(own, result, type(result)(d_out[:, heads], d_lse[:, heads]))

    results = run_local(on_rank, ranks=2)
    found = [torch.cat([result[index] for result, _ in results], 1) for index in range(2)]
    found.append(torch.cat([of_rank[0] for _, of_rank in results], 1))
    for index in (1, 2):  # the key head in the middle is at both places
        first, second = (of_rank[index] for _, of_rank in results)
        found.append(torch.cat([first[:, :1], first[:, 1:] + second[:, :1], second[:, 1:]], 1))
    for got, wanted in zip(found, (*exact, *gradients), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-5 * max(1.0, float(wanted.abs().max())))
