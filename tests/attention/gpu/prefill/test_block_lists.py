"""The lists of blocks against every query and key by itself; no kernel runs here."""

import numpy as np
import pytest
import torch

from attention import Spec
from attention.gpu.prefill.block_lists import block_lists_of
from attention.visibility import HIDDEN, Visibility

SPECS = [Spec(), Spec(causal=True), Spec(causal=True, window=5), Spec(window=9)]


def kinds(visibility, batch, rows, keys):
    """(all, some) bool [batch, query blocks, key blocks], from the definition."""
    low, high, _, at = (
        x.expand(batch, -1).numpy() for x in (*(vars(visibility)[y] for y in ("low", "high", "queries", "keys")),)
    )
    seen = (low[:, :, None] <= at[:, None]) & (at[:, None] <= high[:, :, None])
    cut = [
        [seen[:, i : i + rows, j : j + keys] for j in range(0, seen.shape[2], keys)]
        for i in range(0, seen.shape[1], rows)
    ]
    full = [[b.all((1, 2)) & (b.shape[2] == keys) for b in line] for line in cut]
    some = [[b.any((1, 2)) for b in line] for line in cut]
    return np.moveaxis(np.array(full), 2, 0), np.moveaxis(np.array(some), 2, 0)


@pytest.mark.parametrize("order", ["ascending", "descending", "any"])
@pytest.mark.parametrize("spec", SPECS, ids=["plain", "causal", "sliding", "both"])
@pytest.mark.parametrize("sizes", [(1, 1), (8, 4), (7, 33), (30, 16)], ids=str)
def test_every_block_that_is_seen_is_listed_once(spec, sizes, order):
    rng = np.random.default_rng(0)
    q_len, n, (rows, keys) = sizes[0] * 3 + 1, 37, (8, 4)
    queries, at = np.arange(q_len) + 11, np.arange(n)
    if order == "any":
        queries, at = rng.permutation(queries), rng.permutation(at)
    elif order == "descending":
        queries, at = queries[::-1].copy(), at[::-1].copy()
    batch_at = np.where(rng.random((2, n)) < 0.2, HIDDEN, at)
    batch_at[1, 8:16] = HIDDEN
    visibility = Visibility.of(spec, torch.from_numpy(queries)[None], torch.from_numpy(batch_at))
    found = block_lists_of(visibility, rows, keys)
    full, some = kinds(visibility, 2, rows, keys)
    assert found.numbers.shape == full.shape and found.numbers.dtype == found.keys.dtype == torch.int32
    for entry, block in np.ndindex(full.shape[:2]):
        whole, part = found.counts[entry, block].tolist()
        numbers = found.numbers[entry, block].tolist()
        assert numbers[:whole] == np.flatnonzero(full[entry, block]).tolist()
        listed = numbers[whole : whole + part]
        needed = np.flatnonzero(some[entry, block] & ~full[entry, block]).tolist()
        assert listed == sorted(listed) and set(needed) <= set(listed)
        assert sorted(numbers) == list(range(full.shape[2]))


@pytest.mark.parametrize("shift", [-(1 << 50), 0, (1 << 50)])
def test_positions_are_relative(shift):
    at = torch.arange(20)[None] + shift
    found = block_lists_of(Visibility.of(Spec(causal=True), at, at), 4, 4)
    assert found.counts.tolist() == [[[block, 1] for block in range(5)]]
    assert found.queries.tolist() == found.keys.tolist() == [list(range(20))]


def test_what_is_beyond_32_bits_counts_as_far():
    queries, keys = torch.tensor([[0]]), torch.tensor([[-(1 << 60), 1 << 60]])
    assert block_lists_of(Visibility.of(Spec(causal=True), queries, keys), 1, 1).counts.tolist() == [[[1, 0]]]
    assert block_lists_of(Visibility.of(Spec(window=3), queries, keys), 1, 1).counts.tolist() == [[[0, 0]]]
    hidden = Visibility.of(Spec(), queries, torch.tensor([[-(1 << 60), HIDDEN]]))
    assert block_lists_of(hidden, 1, 1).counts.tolist() == [[[1, 0]]]
