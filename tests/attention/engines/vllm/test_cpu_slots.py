"""The rule by which tokens go to ranks, against one token after the other."""

from types import SimpleNamespace

import pytest
import torch

from attention.engines.vllm.cpu_slots import KERNEL, Share, compute_slots, register_slots

BLOCK = 8


def shares(ranks, interleave):
    return [Share(ranks, rank, interleave) for rank in range(ranks)]


def by_turns(length, ranks, interleave):
    """The tokens of each rank, in order: dealt out one after the other."""
    dealt = [[] for _ in range(ranks)]
    for token in range(length):
        dealt[token // interleave % ranks].append(token)
    return dealt


@pytest.mark.parametrize("interleave", [1, 2, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_rank_keeps_what_it_was_dealt_in_its_blocks(ranks, interleave):
    """Tokens of two sequences whose blocks have no order lie one after the other in them, on one rank each."""
    lengths = torch.tensor([61, 100])
    tables = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:26].view(2, 13).to(torch.int32)
    for row, length in enumerate(lengths.tolist()):
        positions = torch.arange(length)
        for share, tokens in zip(shares(ranks, interleave), by_turns(length, ranks, interleave), strict=True):
            slots = share.slots(positions, torch.full((length,), row), tables, BLOCK)
            expected = torch.full((length,), -1)
            at = torch.arange(len(tokens))
            expected[tokens] = tables[row, at // BLOCK].long() * BLOCK + at % BLOCK
            assert torch.equal(slots, expected)


@pytest.mark.parametrize("interleave", [1, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_kept_counts_tokens_of_every_length(ranks, interleave):
    lengths = torch.arange(60)
    expected = [[len(x) for x in by_turns(n, ranks, interleave)] for n in lengths.tolist()]
    assert torch.equal(
        torch.stack([share.kept(lengths) for share in shares(ranks, interleave)], 1), torch.tensor(expected)
    )


@pytest.mark.parametrize("pad", [-1, -7])
def test_compute_slots_fills_the_step(pad):
    """Requests with 3, none and 2 new tokens, on rank 1 of 2; behind them padding."""
    tables = torch.tensor([[4, 9], [1, 1], [2, 7], [0, 0]], dtype=torch.int32)
    starts, positions = torch.tensor([0, 3, 3, 5], dtype=torch.int32), torch.tensor([15, 16, 17, 0, 1])
    slots = torch.full((8,), 99)
    compute_slots(5, 8, starts, positions, tables, 2, slots, BLOCK, 2, 1, 1, pad, 1024)
    assert slots.tolist() == [4 * BLOCK + 7, pad, 9 * BLOCK, pad, 2 * BLOCK, pad, pad, pad]


def test_it_is_registered_under_the_name_of_vllms_kernel():
    given = {}
    register_slots(SimpleNamespace(register_kernels=given.update))
    assert given == {KERNEL: compute_slots}
