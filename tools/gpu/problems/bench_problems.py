"""The problems of bench_kernels.py: shapes, tensors that are cold when they are read, and our calls on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from card import Card, Run, randn
from harness.turns import Way

from attention import LOGSUMEXP, Partial, Spec, merge_states
from attention.gpu.decode.decode import decode_partial
from attention.gpu.prefill.prefill import prefill_partial
from topocomm import bind_device_folds

MOST_SETS = 32
MEMORY_SHARE = 0.9
"""Share of free memory for inputs; the rest is for results, scratch and other allocations."""
ENTRIES = 8
"""Of a batch with lengths of its own."""


class TooLarge(Exception):
    """A problem does not fit the card's memory."""


class Set(NamedTuple):
    """Inputs of one call.

    Attributes:
        arrays: q, k, v.
        dense: What is read of keys and values, in dense buffers.
        scales: Of keys and values in 8 bits.
    """

    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    dense: tuple[torch.Tensor, ...]
    scales: tuple[torch.Tensor, torch.Tensor] | None


@dataclass(frozen=True)
class Shape:
    """One problem.

    Attributes:
        name: In words.
        batch, heads, kv_heads, dim, dim_v, n: Sizes; queries are 1, or n of prefill.
        dtype: Of keys and values.
        causal: Of prefill; None: decoding.
        latent: Whether the values are the first columns of the keys.
        goal: Whether a share of the read ceiling is to be reached.
        target: Whether the figures are those of the table of targets.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    dim: int
    dim_v: int
    n: int
    dtype: torch.dtype = torch.bfloat16
    causal: bool | None = None
    latent: bool = False
    goal: bool = False
    target: bool = False

    @property
    def rivals(self) -> bool:
        """Whether other libraries support it."""
        return self.dtype == torch.bfloat16

    @property
    def operations(self) -> float:
        """Multiplications and additions, counted as two."""
        whole = 2.0 * self.batch * self.heads * self.n * self.n * (self.dim + self.dim_v)
        return whole / 2 if self.causal else whole

    def bytes_of(self, one: Set) -> int:
        """Bytes of keys and values that a call must read."""
        return sum(x.nbytes for x in one.dense)

    @property
    def set_bytes(self) -> int:
        """Keys and values of one set."""
        width = self.dim if self.latent else self.dim + self.dim_v
        return self.batch * self.kv_heads * self.n * width * self.dtype.itemsize

    @property
    def needed_bytes(self) -> int:
        """Memory for one set: keys and values, the copy of the larger, queries, and results by two ways in float32."""
        rows = self.batch * self.heads * (1 if self.causal is None else self.n)
        copied = self.set_bytes * max(self.dim, self.dim_v) // (self.dim if self.latent else self.dim + self.dim_v)
        return self.set_bytes + copied + rows * (2 * self.dim + 2 * 4 * self.dim_v)

    def sets(self, card: Card) -> list[Set]:
        """As many inputs as it takes to read so much that none is in the cache when its turn comes.

        Raises:
            TooLarge: Not even one fits.
        """
        room = int(card.free_bytes() * MEMORY_SHARE) - self.needed_bytes
        if room < 0:
            free = room + self.needed_bytes
            raise TooLarge(f"needs {self.needed_bytes / 1e9:,.1f} GB, this card has {free / 1e9:,.1f} GB for it")
        wanted = 1 if self.causal is not None else -(-card.sizes.cold_bytes // self.set_bytes)
        return [self.one_set(card, seed) for seed in range(max(1, min(wanted, 1 + room // self.set_bytes, MOST_SETS)))]

    def one_set(self, card: Card, seed: int = 0) -> Set:
        """Inputs of random values."""
        q_len = 1 if self.causal is None else self.n
        q = randn(card, self.batch, self.heads, q_len, self.dim, seed=seed)
        k = randn(card, self.batch, self.kv_heads, self.n, self.dim, dtype=self.dtype, seed=1000 + seed)
        if self.latent:
            return Set((q, k, k[..., : self.dim_v]), (k,), None)
        v = randn(card, self.batch, self.kv_heads, self.n, self.dim_v, dtype=self.dtype, seed=2000 + seed)
        scales = None
        if self.dtype.itemsize == 1:
            ones = torch.ones(self.kv_heads, device=card.place)
            scales = ones, ones.clone()
        return Set((q, k, v), (k, v), scales)

    def result(self, one: Set) -> Any:
        """Make one call of ours."""
        return self._call(one, None).out

    def ours(self, sets: list[Set]) -> Mapping[str, Run]:
        """Make a run over all sets, into its own memory."""
        q, _, v = sets[0].arrays
        shape = (*q.shape[:3], v.shape[3])
        into = Partial(*(torch.empty(x, dtype=torch.float32, device=q.device) for x in (shape, shape[:3])))

        def run() -> None:
            for one in sets:
                self._call(one, into)

        return {"ours": run}

    def _call(self, one: Set, into: Partial | None) -> Partial:
        q, k, v = one.arrays
        if self.causal is not None:
            return prefill_partial(q, k, v, spec=Spec(causal=self.causal))
        given: dict[str, Any] = {} if one.scales is None else {"k_scales": one.scales[0], "v_scales": one.scales[1]}
        return decode_partial(q, k, v, out=into, **given)


def shapes(card: Card) -> list[Shape]:
    """All problems in order of worth: the figures of the table of targets, a prompt, then kind by kind and context."""
    prompts, first, *later = prefill_shapes(card), *(decode_shapes(card, n) for n in card.sizes.tokens)
    batches = len(card.sizes.batches)
    return [
        *first[:batches],
        *prompts[:1],
        *first[batches:],
        *prompts[1:],
        *(shape for some in later for shape in some),
    ]


def decode_shapes(card: Card, n: int) -> list[Shape]:
    """Decoding over so many keys: grouped heads, MLA, heads without groups, 8 bits; every batch of each."""
    sizes = card.sizes
    (heads, kv_heads, dim), (even, even_kv, even_dim), (wide, few, dim_k, dim_v) = (
        sizes.heads, sizes.even_heads, sizes.latent,
    )  # fmt: skip
    grouped = f"{heads}/{kv_heads} heads x {dim}"
    mla = f"MLA {wide}/{few} heads x {dim_k} ({dim_v} of values)"
    target, goal = n == sizes.tokens[0], n >= sizes.tokens[0]
    kinds: list[tuple[str, dict[str, Any]]] = [
        (f"bf16, {grouped}", _sized(heads, kv_heads, dim, dim) | {"goal": goal, "target": target}),
        (f"bf16, {mla}", _sized(wide, few, dim_k, dim_v) | {"latent": True}),
        (f"bf16, {even}/{even_kv} heads x {even_dim}", _sized(even, even_kv, even_dim, even_dim)),
        (f"fp8 e4m3, {grouped}", _sized(heads, kv_heads, dim, dim) | {"dtype": torch.float8_e4m3fn}),
    ]
    return [
        Shape(name=f"Decode, {kind}, batch {batch}, {n:,} tokens", batch=batch, n=n, **given)
        for kind, given in kinds
        for batch in sizes.batches
    ]


def prefill_shapes(card: Card) -> list[Shape]:
    """Return the prompts."""
    heads, kv_heads, dim = card.sizes.heads
    return [
        Shape(
            name=f"Prefill, bf16, {heads}/{kv_heads} heads x {dim}, {n:,} tokens{', causal' if causal else ''}",
            batch=1,
            n=n,
            causal=causal,
            **_sized(heads, kv_heads, dim, dim),
        )
        for n in card.sizes.prompts
        for causal in (True, False)
    ]


def _sized(heads: int, kv_heads: int, dim: int, dim_v: int) -> dict[str, Any]:
    return {"heads": heads, "kv_heads": kv_heads, "dim": dim, "dim_v": dim_v}


def lengths(card: Card) -> tuple[int, dict[str, Way]]:
    """Bytes of a call, and calls that read as many keys: cut in equal parts, or by ranges over lengths on the card."""
    heads, kv_heads, dim = card.sizes.heads
    batch, longest = ENTRIES, card.sizes.tokens[0]
    short = max(1, longest // 32)
    even = (longest + (batch - 1) * short) // batch
    shape = Shape("", batch, heads, kv_heads, dim, dim, longest)
    if shape.needed_bytes > card.free_bytes() * MEMORY_SHARE:
        raise TooLarge(f"needs {shape.needed_bytes / 1e9:,.1f} GB")
    q, k, v = shape.one_set(card).arrays
    into = Partial(*(torch.empty(x, dtype=torch.float32, device=q.device) for x in (q.shape, q.shape[:3])))
    equal, unequal = (torch.tensor(one, device=q.device) for one in ([even] * batch, [longest] + [short] * (batch - 1)))

    def ranges(kv_lengths: torch.Tensor) -> Run:
        return card.graph(lambda: decode_partial(q, k, v, out=into, kv_lengths=kv_lengths))

    ways = {
        f"{batch} x {even:,} keys, equal parts": Way(
            card.graph(lambda: decode_partial(q, k[:, :, :even], v[:, :, :even], out=into))
        ),
        f"{batch} x {even:,} keys, ranges": Way(ranges(equal)),
        f"1 x {longest:,} and {batch - 1} x {short:,} keys, ranges": Way(ranges(unequal)),
    }
    return 2 * batch * even * kv_heads * dim * k.element_size(), ways


def merges(card: Card) -> dict[str, Way]:
    """The merge of partials of a decode step by each of our ways, alone and many in a CUDA graph.

    They lie in the cache, as partials do that have just come.
    """
    heads, _, dim = card.sizes.heads
    count, repeats = card.sizes.merged, card.sizes.in_graph
    outs, lses = (randn(card, *shape, dtype=torch.float32) for shape in ((count, heads, dim), (count, heads)))
    layout = LOGSUMEXP.layout({"out": ((heads, dim), np.dtype("f4")), "lse": ((heads,), np.dtype("f4"))})
    step = -(-layout.packed_bytes(heads) // 256) * 256
    buffer = torch.zeros((count + 1) * step, dtype=torch.uint8, device=card.place)
    for slot in range(count):
        out_at, lse_at = layout.addresses(slot * step, heads)
        buffer[out_at : out_at + outs[0].nbytes].copy_(outs[slot].view(torch.uint8).view(-1))
        buffer[lse_at : lse_at + lses[0].nbytes].copy_(lses[slot].view(torch.uint8).view(-1))
    fold = bind_device_folds(LOGSUMEXP, layout, buffer, [(heads, [slot * step for slot in range(count)], count * step)])
    ways = {"merge_states": lambda: merge_states(outs, lses), "fold of packed partials": fold}

    def repeated(run: Run) -> Run:
        def runs() -> None:
            for _ in range(repeats):
                run()

        return runs

    made = {name: Way(run) for name, run in ways.items()}
    for name, run in ways.items():
        made[f"{name}, graph"] = Way(card.graph(repeated(run)), repeats)
    return made
