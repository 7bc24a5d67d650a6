"""Problems of the kernels' tables that tune.py tunes, in order of worth, with calls that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from card import Card, randn

from attention import Partial, Spec
from attention.gpu.decode import decode, decode_table
from attention.gpu.limits import arch_of
from attention.gpu.prefill import prefill, prefill_table
from attention.gpu.prefill.prefill_kernel import prefill_kernel

PAGE = 16
Call = Callable[[], Partial]
Sizes = tuple[int, int, int, int]


@dataclass(frozen=True)
class Target:
    """One problem.

    Attributes:
        table: The module `decode_table` or `prefill_table`.
        kernel: Whose launches are watched.
        problem: Of the table.
        calls: What makes each call that meets the problem, on tensors of the card; the first takes the least memory.
    """

    table: Any
    kernel: Any
    problem: Any
    calls: Sequence[Callable[[], Call]]

    @property
    def name(self) -> str:
        """Describe the target."""
        return f"{self.table.__name__.split('.')[-1].removesuffix('_table')}: {self.problem.key}"

    def candidates(self, most: int) -> list[Any]:
        """The rules' own first, then others by chance, so many in all."""
        rule, *others = self.table.candidates(self.problem)
        order = np.random.default_rng(0).permutation(len(others))[: most - 1]
        return [rule, *(others[i] for i in order)]


@cache
def targets(card: Card) -> tuple[Target, ...]:
    """Return all targets."""
    heads, kv_heads, dim = card.sizes.heads
    main = heads, kv_heads, dim, dim
    narrow, wide, half, single = (heads, kv_heads, dim // 2, dim // 2), card.sizes.latent, torch.bfloat16, torch.float32
    first = [(main, half, "plain"), (wide, half, "plain"), (main, half, "usual"), (main, half, "paged")]
    later = [(wide, half, "usual"), (narrow, half, "plain"), (main, half, "full"), (main, single, "plain")]
    prompts, few = card.sizes.prompts[0], min(64, card.sizes.prompts[0])
    prefills = [(dim, prompts, "plain"), (dim // 2, prompts, "plain"), (dim, few, "plain")]
    prefills += [(dim, prompts, "full"), (dim, prompts, "lists")]
    return (
        *(_of_decode(card, *one) for one in first),
        *(_of_prefill(card, *one) for one in prefills),
        *(_of_decode(card, *one) for one in later),
    )


@cache
def pieces(card: Card) -> list[tuple[Target, Any]]:
    """Every target with every candidate, as workers compile them."""
    return [(target, one) for target in targets(card) for one in target.candidates(card.sizes.candidates)]


def _of_decode(card: Card, sizes: Sizes, dtype: torch.dtype, form: str) -> Target:
    """For (heads, key heads, head dim, that of values) and a form of call."""
    wide, few, d, d_v = sizes
    arch, itemsize = decode.machine_of(card.place)[0], 4 if dtype == torch.float32 else 2
    problem = decode_table.problem_of(arch, itemsize, d, wide // few, form=form, shared=d_v < d)
    calls = [partial(_decode_call, card, batch, sizes, dtype, form) for batch in sorted(card.sizes.batches)]
    return Target(decode_table, decode._kernel(), problem, calls)


def _decode_call(card: Card, batch: int, sizes: Sizes, dtype: torch.dtype, form: str) -> Call:
    wide, few, d, d_v = sizes
    n = card.sizes.tokens[0] // PAGE * PAGE
    q, k = randn(card, batch, wide, 1, d, dtype=dtype), randn(card, batch, few, n, d, dtype=dtype, seed=1)
    v = k[..., :d_v] if d_v < d else randn(card, batch, few, n, d_v, dtype=dtype, seed=2)
    where: dict[str, Any] = {}
    if form != "plain":
        where["kv_lengths"] = torch.full((batch,), n, device=card.place)
    if form == "paged":
        where["block_tables"] = torch.randperm(batch * n // PAGE, device=card.place).view(batch, -1)
        k, v = (x.view(-1, few, PAGE, x.shape[3]) for x in (k, v))
    if form == "full":
        where["kv_mask"] = torch.ones(n, dtype=torch.bool, device=card.place)
    return lambda: decode.decode_partial(q, k, v, **where)


def _of_prefill(card: Card, d: int, q_len: int, form: str) -> Target:
    heads, kv_heads, _ = card.sizes.heads
    n = card.sizes.prompts[0]
    problem = prefill_table.problem_of(_arch(card), 16, d, q_len=q_len, form=form)

    def call() -> Call:
        shapes = ((1, heads, q_len, d), (1, kv_heads, n, d), (1, kv_heads, n, d))
        q, k, v = (randn(card, *shape, seed=seed) for seed, shape in enumerate(shapes))
        where: dict[str, Any] = {}
        if form == "lists":
            order = torch.arange(n, device=card.place)
            where = {"q_positions": order[n - q_len :], "kv_positions": order}
        spec = Spec(causal=True, window=n if form == "full" else None)
        return lambda: prefill.prefill_partial(q, k, v, spec=spec, **where)

    return Target(prefill_table, prefill_kernel, problem, [call])


def _arch(card: Card) -> str:
    """Return the problem in the form of the prefill kernel's table."""
    if card.interpreted:
        return "interpreter"
    import triton

    target = triton.runtime.driver.active.get_current_target()
    return arch_of(target.backend, target.arch)
