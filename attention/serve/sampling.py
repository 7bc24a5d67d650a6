"""The choice of a token from its logits, by one answer's settings."""

from __future__ import annotations

import torch


class Sampler:
    """Chooses the tokens of one answer; what else is in the batch does not matter.

    Args:
        temperature: Logits are divided by it; 0: the most likely token is taken.
        top_p: The most likely tokens, as few as have this probability together, are drawn from; one at least.
        seed: Of the generator; None: a seed of its own.
        penalty: Divides positive logits of tokens that were there, and multiplies negative ones (transformers'
            `repetition_penalty`); 1: none.
        prompt: The tokens that are there already.
    """

    def __init__(self, temperature: float, top_p: float, seed: int | None, penalty: float, prompt: list[int]) -> None:
        self._temperature, self._top_p, self._penalty = temperature, top_p, penalty
        self._generator = torch.Generator()
        self._generator.manual_seed(seed) if seed is not None else self._generator.seed()
        self._seen = sorted(set(prompt)) if penalty != 1 else []

    def choose(self, logits: torch.Tensor) -> int:
        """Return the next token, from its logits [vocabulary], float32 on the CPU, which are left alone."""
        if self._penalty != 1:
            logits = logits.clone()
            seen = logits[self._seen]
            logits[self._seen] = torch.where(seen < 0, seen * self._penalty, seen / self._penalty)
        token = self._draw(logits)
        if self._penalty != 1:
            self._seen.append(token)
        return token

    def _draw(self, logits: torch.Tensor) -> int:
        if self._temperature == 0:
            return int(logits.argmax())
        # From the largest on, so that a small temperature does not overflow.
        weights = ((logits - logits.max()).double() / self._temperature).softmax(-1)
        if self._top_p == 1:
            return int(torch.multinomial(weights, 1, generator=self._generator))
        weights, order = weights.sort(descending=True, stable=True)
        before = weights.cumsum(-1) - weights
        weights[1:][before[1:] >= self._top_p] = 0
        return int(order[torch.multinomial(weights, 1, generator=self._generator)])
