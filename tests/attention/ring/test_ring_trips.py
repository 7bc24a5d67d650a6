"""The trips around the ring: how much each rank computes, and several of them one after the other."""

import threading
from collections import Counter

import numpy as np
import pytest
import torch

import attention.ring.ring_trips
from attention import LOGSUMEXP, Spec
from attention.arrays import Inputs
from attention.ring.ring_prefill import ring_attention
from attention.ring.ring_trips import Block, HostMerge
from tests.attention.gradients import spec_of
from tests.attention.ring_cases import case, exact_of, held, run
from topocomm import run_local

CAUSAL = Spec(causal=True)


def test_several_calls_before_their_backward():
    """Layers of a model: all forward, then all backward in turn, over buffers that are shared."""
    made = [case(n, seed=n) for n in (30, 44, 13)]
    spec = spec_of("softcap", 6)
    parts = [held("zigzag", tensors[0].shape[2], 3) for tensors, _ in made]

    def on_rank(comm):
        losses, leaves = [], []
        for (tensors, arriving), part in zip(made, parts, strict=True):
            mine = torch.from_numpy(part[comm.rank])
            own = [x[:, :, mine].requires_grad_() for x in tensors]
            result = ring_attention(*own, comm, spec=spec, layout="zigzag", return_lse=True)
            losses.append(sum((x * d[:, :, mine]).sum() for x, d in zip(result, arriving, strict=True)))
            leaves.append(own)
        sum(losses).backward()
        return [[x.grad for x in own] for own in leaves]

    for call, per_rank in enumerate(zip(*run_local(on_rank, ranks=3), strict=True)):
        order = torch.from_numpy(np.argsort(np.concatenate(parts[call])))
        whole = [torch.cat(x, 2)[:, :, order] for x in zip(*per_rank, strict=True)]
        tensors, arriving = made[call]
        for found, wanted in zip(whole, exact_of(tensors, spec, arriving)[2:], strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


def counted(monkeypatch, name):
    """Query-key pairs that each rank's calls of attention.ring.ring_trips' function take, and how many can overlap."""
    pairs, overlapped = Counter(), Counter()
    original = getattr(attention.ring.ring_trips, name)

    def counting(inputs, *args, between=None):
        rank = threading.current_thread().name
        pairs[rank] += inputs.q.shape[2] * inputs.k.shape[2]
        overlapped[rank] += between is not None
        return original(inputs, *args, between=between)

    monkeypatch.setattr(attention.ring.ring_trips, name, counting)
    return pairs, overlapped


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_zigzag_is_balanced(ranks, monkeypatch):
    """With chunks of c tokens every rank computes 2P + 1 pairs of chunks; contiguous 4 to 4P, later ranks more."""
    chunk = 3
    tensors, arriving = case(2 * ranks * chunk)
    for name in ("attend", "backward_block"):
        pairs, overlapped = counted(monkeypatch, name)
        run(tensors, held("zigzag", 2 * ranks * chunk, ranks), arriving=arriving, spec=CAUSAL, layout="zigzag")
        assert [pairs[f"rank{rank}"] for rank in range(ranks)] == [(2 * ranks + 1) * chunk**2] * ranks
        # Messages are under way during all work but that on the last shard; backward also then.
        least = 2 * ranks + 1 - (2 if name == "attend" else 0)
        assert [overlapped[f"rank{rank}"] for rank in range(ranks)] == [least] * ranks
        pairs.clear()
        run(tensors, held("contiguous", 2 * ranks * chunk, ranks), arriving=arriving, spec=CAUSAL)
        assert [pairs[f"rank{rank}"] for rank in range(ranks)] == [4 * (r + 1) * chunk**2 for r in range(ranks)]


def test_what_no_query_sees_is_not_computed(monkeypatch):
    """A window over 8 ranks of 10 tokens reaches one shard back."""
    tensors, _ = case(80)
    pairs, _ = counted(monkeypatch, "attend")
    run(tensors, held("contiguous", 80, 8), spec=Spec(causal=True, window=11))
    assert [pairs[f"rank{rank}"] for rank in range(8)] == [100] + [200] * 7


def test_blocks_of_host_memory_merge_one_after_the_other_onto_nothing(monkeypatch):
    random = torch.Generator().manual_seed(0)
    shape, parts = (1, 2, 3, 8), []

    def attend(inputs, result, *, between):
        out, lse = torch.randn(shape, generator=random), torch.randn(shape[:3], generator=random)
        result.out.copy_(out)
        result.lse.copy_(lse)
        parts.append({"out": out.numpy(), "lse": lse.numpy()})

    monkeypatch.setattr(attention.ring.ring_trips, "attend", attend)
    q = torch.zeros(shape)
    merge, rows = HostMerge(Inputs(q, q, q, Spec(), None), [slice(0, 3)]), slice(0, 3)
    for _ in range(3):
        merge.add(Block(rows, rows, None), None)
    merged = LOGSUMEXP.combine(LOGSUMEXP.combine(parts[0], parts[1]), parts[2])
    torch.testing.assert_close(merge.result().out, torch.from_numpy(merged["out"]))
    torch.testing.assert_close(merge.result().lse, torch.from_numpy(merged["lse"]))
