"""Tokens of groups in the order of the sequence."""

import numpy as np
import torch

from attention import Spec
from attention.ring.ring_layout import Parts, pieces_of
from attention.ulysses.group_tokens import GroupTokens
from attention.ulysses.head_grid import HeadGrid
from tests.attention.ring_cases import dealt, held


def grouped(positions, rank, ring):
    parts = Parts(rank, Spec(), [torch.from_numpy(x) for x in positions], [pieces_of(x) for x in positions])
    return GroupTokens.of(parts, HeadGrid(len(positions), ring, 4, 4))


def test_one_group_has_the_whole_sequence():
    for positions in (held("zigzag", 23, 4), held("contiguous", 23, 4), dealt(23, 4)):
        tokens = grouped(positions, 1, 1)
        assert tokens.positions[0].tolist() == list(range(23))
        arrived = torch.from_numpy(np.concatenate(positions))[:, None]
        assert torch.equal(tokens.sorted(arrived)[:, 0], tokens.positions[0])
        assert torch.equal(tokens.as_received(tokens.sorted(arrived)), arrived)
    assert grouped(held("contiguous", 23, 4), 1, 1).order is None, "nothing is copied"


def test_zigzag_over_ranks_is_zigzag_over_groups():
    """So that the work of a ring stays balanced."""
    tokens = grouped(held("zigzag", 48, 6), 4, 3)
    assert [x.tolist() for x in tokens.positions] == [x.tolist() for x in held("zigzag", 48, 3)]
    parts = tokens.parts(2, Spec(causal=True))
    assert parts.pieces == [[slice(0, 8), slice(8, 16)], [slice(0, 8), slice(8, 16)], [slice(0, 16)]]
