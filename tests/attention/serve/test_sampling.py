"""Draws follow the probabilities of the logits, cut as top_p says."""

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, TopPLogitsWarper

from attention.serve.sampling import Sampler
from tests.thinning import alternating

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.5, 0.0])


def counts(logits, draws=4000, **settings):
    options = {"temperature": 1.0, "top_p": 1.0, "seed": 1, "penalty": 1.0, "prompt": [], **settings}
    sampler = Sampler(**options)
    return torch.bincount(torch.tensor([sampler.choose(logits) for _ in range(draws)]), minlength=len(logits)) / draws


@pytest.mark.parametrize(("temperature", "top_p"), alternating([0.5, 1.0, 1.7], [1.0, 0.9, 0.6, 0.0]))
def test_frequencies_are_probabilities(temperature, top_p):
    """Among the tokens that transformers keeps; the deviation of a frequency is 0.008 at most."""
    scaled = LOGITS[None] / temperature
    kept = TopPLogitsWarper(top_p)(None, scaled) if top_p < 1 else scaled
    assert (counts(LOGITS, temperature=temperature, top_p=top_p) - kept[0].softmax(-1)).abs().max() < 0.04


def test_no_temperature_is_greedy_and_a_small_one_nearly():
    for temperature in (0.0, 1e-300):
        assert counts(LOGITS, draws=20, temperature=temperature)[1] == 1


def test_seeds():
    settings = {"temperature": 1.0, "top_p": 0.9, "penalty": 1.0, "prompt": []}
    one, two, other, own = (Sampler(seed=seed, **settings) for seed in (-7, -7, 8, None))
    draws = [[sampler.choose(torch.zeros(1000)) for _ in range(5)] for sampler in (one, two, other, own)]
    assert draws[0] == draws[1]
    assert len({*map(tuple, draws)}) == 3


def test_repetition_penalty_is_that_of_transformers():
    sampler, tokens = Sampler(0.0, 1.0, None, 3.0, [1, 1, 2]), [1, 1, 2]
    for _ in range(6):
        expected = RepetitionPenaltyLogitsProcessor(3.0)(torch.tensor([tokens]), LOGITS[None].clone()).argmax()
        tokens.append(sampler.choose(LOGITS))
        assert tokens[-1] == expected
    assert len(set(tokens[3:])) > 1
