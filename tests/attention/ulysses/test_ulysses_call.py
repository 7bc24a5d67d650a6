"""Calls of one communicator: several before their backward, and rings and exchanges that are shared."""

import numpy as np
import pytest
import torch

from attention.decode.communicators import state_of
from attention.ulysses.group_tokens import GroupTokens
from attention.ulysses.head_rows import HeadRows
from attention.ulysses.ulysses_attention import ulysses_attention
from attention.ulysses.ulysses_call import STATE
from tests.attention.gradients import spec_of
from tests.attention.ring_cases import case, check, exact_of, held, run
from topocomm import run_local


@pytest.mark.parametrize("ring", [1, 2])
def test_several_calls_before_their_backward(ring):
    """Layers of a model: all forward, then all backward in turn, over buffers that are shared."""
    made = [case(n, seed=n) for n in (30, 44, 13)]
    spec = spec_of("softcap", 6)
    parts = [held("zigzag", tensors[0].shape[2], 4) for tensors, _ in made]

    def on_rank(comm):
        losses, leaves = [], []
        for (tensors, arriving), part in zip(made, parts, strict=True):
            mine = torch.from_numpy(part[comm.rank])
            own = [x[:, :, mine].requires_grad_() for x in tensors]
            result = ulysses_attention(*own, comm, ring=ring, spec=spec, layout="zigzag", return_lse=True)
            losses.append(sum((x * d[:, :, mine]).sum() for x, d in zip(result, arriving, strict=True)))
            leaves.append(own)
        sum(losses).backward()
        assert set(state_of(comm)[STATE]) == ({"pairs"} if ring == 1 else {"pairs", ring}), "one ring, made once"
        return [[x.grad for x in own] for own in leaves]

    for call, per_rank in enumerate(zip(*run_local(on_rank, ranks=4), strict=True)):
        order = torch.from_numpy(np.argsort(np.concatenate(parts[call])))
        whole = [torch.cat(x, 2)[:, :, order] for x in zip(*per_rank, strict=True)]
        tensors, arriving = made[call]
        for found, wanted in zip(whole, exact_of(tensors, spec, arriving)[2:], strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


def wrong_order(monkeypatch):
    monkeypatch.setattr(GroupTokens, "as_received", lambda tokens, table: tokens.sorted(table))


def heads_of_the_first(name):
    def fault(monkeypatch):
        right = HeadRows.heads
        monkeypatch.setattr(
            HeadRows, "heads", lambda rows, part, place: right(rows, part, 0 if part == name else place)
        )

    return fault


@pytest.mark.every_case
@pytest.mark.parametrize(
    "fault", [wrong_order, *map(heads_of_the_first, ("q", "k", "v", "out"))], ids=["order", "q", "k", "v", "out"]
)
def test_planted_faults_are_found(fault, monkeypatch):
    tensors, arriving = case(20)
    spec = spec_of("causal", 6)
    given = {"arriving": arriving, "attend": ulysses_attention, "spec": spec, "layout": "zigzag"}
    check(run(tensors, held("zigzag", 20, 2), **given), exact_of(tensors, spec, arriving))
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=r"out|d[qkv]"):
        check(run(tensors, held("zigzag", 20, 2), **given), exact_of(tensors, spec, arriving))
