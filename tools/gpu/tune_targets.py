"""What tune.py tunes: the problems of the kernels' tables in order of worth, with calls that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from card import Card, randn

from attention import Partial, Spec
from attention.gpu import decode, decode_table, prefill, prefill_table
from attention.gpu.archs import arch_of
from attention.gpu.prefill_kernel import prefill_kernel

Call = Callable[[], Partial]


@dataclass(frozen=True)
class Target:
    """One problem.

    Attributes:
        table: The module `decode_table` or `prefill_table`.
        kernel: Whose launches are watched.
        problem: Of the table.
        calls: Makes calls that meet the problem, on tensors of the card.
    """

    table: Any
    kernel: Any
    problem: Any
    calls: Callable[[], Sequence[Call]]

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.table.__name__.split('.')[-1].removesuffix('_table')}: {self.problem.key}"

    def candidates(self, most: int) -> list[Any]:
        """The rules' own first, then others by chance, so many in all."""
        rule, *others = self.table.candidates(self.problem)
        order = np.random.default_rng(0).permutation(len(others))[: most - 1]
        return [rule, *(others[i] for i in order)]


@cache
def targets(card: Card) -> tuple[Target, ...]:
    """All of them."""
    return (*_of_decode(card, plain=True), *_of_prefill(card), *_of_decode(card, plain=False))


@cache
def pieces(card: Card) -> list[tuple[Target, Any]]:
    """Every target with every candidate, as workers compile them."""
    return [(target, one) for target in targets(card) for one in target.candidates(card.sizes.candidates)]


def _of_decode(card: Card, *, plain: bool) -> Iterator[Target]:
    """(heads, key heads, head dim, of values), dtype: those of the goals, latents, narrow ones, float32."""
    heads, kv_heads, dim = card.sizes.heads
    kinds = [((heads, kv_heads, dim, dim), torch.bfloat16), (card.sizes.latent, torch.bfloat16)]
    kinds += [((heads, kv_heads, dim // 2, dim // 2), torch.bfloat16), ((heads, kv_heads, dim, dim), torch.float32)]
    for (wide, few, d, d_v), dtype in kinds:
        shared, arch = d_v < d, decode.machine_of(card.place)[0]
        itemsize = 4 if dtype == torch.float32 else 2
        problem = decode_table.problem_of(arch, itemsize, d, wide // few, plain=plain, shared=shared)

        def calls(sizes: Any = (wide, few, d, d_v), dtype: torch.dtype = dtype, shared: bool = shared) -> list[Call]:
            return [_decode_call(card, batch, sizes, dtype, shared, plain) for batch in card.sizes.batches]

        yield Target(decode_table, decode._kernel(), problem, calls)


def _decode_call(card: Card, batch: int, sizes: Any, dtype: torch.dtype, shared: bool, plain: bool) -> Call:
    wide, few, d, d_v = sizes
    n = card.sizes.tokens[0]
    q, k = randn(card, batch, wide, 1, d, dtype=dtype), randn(card, batch, few, n, d, dtype=dtype, seed=1)
    v = k[..., :d_v] if shared else randn(card, batch, few, n, d_v, dtype=dtype, seed=2)
    lengths = None if plain else torch.full((batch,), n, device=card.place)
    return lambda: decode.decode_partial(q, k, v, kv_lengths=lengths)


def _of_prefill(card: Card) -> Iterator[Target]:
    heads, kv_heads, dim = card.sizes.heads
    n = card.sizes.prompts[0]
    if card.interpreted:
        arch = "interpreter"
    else:
        import triton

        target = triton.runtime.driver.active.get_current_target()
        arch = arch_of(target.backend, target.arch)
    for d, q_len, lists in ((dim, n, False), (dim // 2, n, False), (dim, 64, False), (dim, n, True)):
        problem = prefill_table.problem_of(arch, 16, d, q_len=q_len, lists=lists)

        def calls(d: int = d, q_len: int = q_len, lists: bool = lists) -> list[Call]:
            shapes = ((1, heads, q_len, d), (1, kv_heads, n, d), (1, kv_heads, n, d))
            q, k, v = (randn(card, *shape, seed=seed) for seed, shape in enumerate(shapes))
            where: dict[str, Any] = {}
            if lists:
                order = torch.arange(n, device=card.place)
                where = {"q_positions": order[n - q_len :], "kv_positions": order}
            return [lambda: prefill.prefill_partial(q, k, v, spec=Spec(causal=True), **where)]

        yield Target(prefill_table, prefill_kernel, problem, calls)
