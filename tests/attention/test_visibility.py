"""Which query sees which key, from positions, masks and lengths: against the rule of a Spec, key by key."""

import itertools

import numpy as np
import pytest
import torch

from attention import Spec
from attention.visibility import HIDDEN, Masking, Visibility, present_keys, visibility_of
from topocomm import OperatorError

SPECS = [Spec(), Spec(causal=True), Spec(window=3), Spec(causal=True, window=3), Spec(alibi_slopes=[1.0])]


@pytest.mark.parametrize("spec", SPECS)
def test_the_rule_of_a_spec(spec):
    at_q, at_k = [5, -1, 40], [4, 5, 3, 9, -3]
    seen = Visibility.of(spec, torch.tensor([at_q]), torch.tensor([[*at_k, HIDDEN]]))
    for (i, q), (j, k) in itertools.product(enumerate(at_q), enumerate(at_k)):
        wanted = (not spec.causal or k <= q) and (spec.window is None or abs(q - k) < spec.window)
        assert bool(seen.low[0, i] <= seen.keys[0, j] <= seen.high[0, i]) == wanted, (q, k)
    assert not (seen.keys[0, -1] <= seen.high).any(), "a hidden key is seen by none"


def test_without_positions_the_queries_are_the_last_keys():
    seen = visibility_of("f", (2, 1, 2, 8), 6, Spec(causal=True), Masking(kv_lengths=[6, 3]))
    assert seen.high.tolist() == [[4, 5], [1, 2]]
    assert seen.keys.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, HIDDEN, HIDDEN, HIDDEN]]
    low, high, queries, keys = seen.entry(1, slice(1, 2), slice(2, 4))
    assert (high.tolist(), queries.tolist(), keys.tolist()) == ([2], [2], [2, HIDDEN]) and low.shape == (1,)


def test_where_all_is_seen_there_is_nothing_to_check():
    assert visibility_of("f", (2, 1, 2, 8), 6, Spec(), Masking(q_positions=[1, 2])) is None
    assert visibility_of("f", (2, 1, 2, 8), 6, Spec(), Masking(kv_lengths=[6, 6])) is None
    assert present_keys("f", 2, 3, Masking(kv_mask=np.ones(3, bool))) is None


def test_masks_and_lengths_hold_together():
    present = present_keys("f", 2, 3, Masking(kv_mask=[True, False, True], kv_lengths=np.array([3, 1])))
    assert present.tolist() == [[True, False, True], [True, False, False]]


@pytest.mark.parametrize(
    ("masking", "said"),
    [
        (Masking(q_positions=[0]), "attention that is causal, or has a window or slopes, .* kv_positions is missing"),
        (Masking([0.5], [0, 1, 2]), "q_positions must be integers, got torch.float32"),
        (Masking([0], [0, 1]), r"kv_positions must be \[3\] or \[batch, 3\] with batch 2, got \[2\]"),
        (Masking(kv_mask=[1, 0, 1]), "kv_mask must be bool, True where a key exists, got torch.int64"),
        (Masking(kv_lengths=[4, 0]), r"kv_lengths must be 2 integers from 0 to 3, the keys given; got \[4, 0\]"),
    ],
)
def test_what_does_not_fit_is_named(masking, said):
    with pytest.raises(OperatorError, match=f"^f: {said}"):
        visibility_of("f", (2, 1, 1, 8), 3, Spec(causal=True), masking)
