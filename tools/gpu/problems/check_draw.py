"""Random attention problems for checks: inputs on the card, NaN wherever nothing may be read, and what they are worth.

What is never seen (keys beyond lengths, masked ones, pages that nobody has) holds NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from card import Card

from attention import Partial, Spec, local_attention, reference_attention

Where = dict[str, Any]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
EIGHT_BITS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
HEAD_DIMS = ((64, 64), (80, 80), (96, 96), (128, 128), (128, 128), (192, 128), (256, 256), (24, 72), (40, 88))
EMPTY = float("-inf")
MOST_WORK = 1 << 30
"""Products that the formula makes of a problem, at most: a nanosecond each, or less, on one core, in float64."""
ROW_WORK = 1 << 15
"""Fixed cost of a row, in products."""


@dataclass
class Problem:
    """One call.

    Attributes:
        q, k, v: On the card, [batch, heads, rows, head dim]; k and v as wide as q even where they are stored in 8 bits.
        spec: Which attention.
        where: What the formula and the CPU are told of positions, masks and lengths: tensors on the card, or ints.
        stored: The k and v that the kernel gets.
        more: What it is told beyond `where`, or in place of it: tables, scales.
        what: All of it in words.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    spec: Spec
    where: Where
    stored: tuple[torch.Tensor, torch.Tensor]
    more: Where = field(default_factory=dict)
    what: str = ""

    def formula(self) -> Partial:
        """Evaluate the float64 formula."""
        batch, _, q_len, _ = self.q.shape
        n = self.k.shape[2]
        given = {name: _numpy(x) for name, x in self.where.items()}
        lengths = given.pop("kv_lengths", None)
        ends = np.full(batch, n) if lengths is None else lengths
        for name, count in (("q_positions", q_len), ("kv_positions", n)):
            if isinstance(given.get(name), int):
                given[name] = given[name] + np.arange(count)
        if self.spec.needs_positions and "q_positions" not in given:
            given |= {"q_positions": ends[:, None] - q_len + np.arange(q_len), "kv_positions": np.arange(n)}
        if lengths is not None:
            there = np.arange(n) < ends[:, None]
            given["kv_mask"] = there & np.atleast_2d(given.get("kv_mask", True))
        q, k, v = (x.cpu().double().numpy() for x in (self.q, self.k, self.v))
        return reference_attention(q, k, v, spec=self.spec, **given)

    def on_cpu(self) -> Partial:
        """Run the project's CPU path on the same inputs."""
        where: Where = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in self.where.items()}
        for name, count in (("q_positions", self.q.shape[2]), ("kv_positions", self.k.shape[2])):
            if isinstance(where.get(name), int):
                where[name] = where[name] + torch.arange(count)
        q, k, v = (x.cpu().to(self.k.dtype) for x in (self.q, self.k, self.v))
        return local_attention(q, k, v, spec=self.spec, exact="float32", **where)


def draw(rng: np.random.Generator, card: Card, *, decoding: bool) -> Problem:
    """Draw a problem of few queries, or of many."""
    batch, kv_heads = int(rng.integers(1, 4)), int(rng.choice(card.sizes.key_heads))
    group = int(rng.choice(card.sizes.groups))
    most = card.sizes.most_keys
    n = int(np.exp(rng.uniform(0, np.log(most)))) - int(rng.random() < 0.03)
    d, d_v = HEAD_DIMS[rng.integers(len(HEAD_DIMS))]
    if decoding:
        q_len = 1 if rng.random() < 0.6 else int(rng.integers(2, 17))
    else:
        q_len = int(np.exp(rng.uniform(np.log(17), np.log(max(most // 4, 18)))))
    batch, kv_heads, q_len, n = _affordable(batch, kv_heads, group, q_len, n, d + d_v)
    name = str(rng.choice([*DTYPES, *(EIGHT_BITS if decoding else ())]))
    dtype = DTYPES.get(name, torch.bfloat16)
    shapes = ((batch, kv_heads * group, q_len, d), (batch, kv_heads, n, d), (batch, kv_heads, n, d_v))
    q, k, v = (_normal(rng, card, shape, dtype) for shape in shapes)
    spec = Spec(
        causal=bool(rng.random() < 0.4),
        window=int(rng.integers(1, max(2, n))) if rng.random() < 0.25 else None,
        softcap=float(rng.uniform(1, 30)) if rng.random() < 0.2 else None,
        alibi_slopes=tuple(2.0 ** -rng.uniform(1, 8, kv_heads * group)) if rng.random() < 0.2 else None,
    )
    what = f"{name}, {batch} x {group} x {kv_heads} heads, {q_len} x {n}, {d} x {d_v}, {_words(spec)}"
    problem = Problem(q, k, v, spec, _where(rng, card, batch, q_len, n, spec), (k, v), what=what)
    if name in EIGHT_BITS:
        _in_eight_bits(rng, problem, EIGHT_BITS[name])
    hide(problem)
    if decoding and "kv_lengths" in problem.where and rng.random() < 0.6 and n:
        _in_pages(rng, problem)
    problem.what += "".join(f", {one}" for one in dict.fromkeys((*problem.where, *problem.more)))
    return problem


def _affordable(batch: int, kv_heads: int, group: int, q_len: int, n: int, width: int) -> tuple[int, int, int, int]:
    """The same sizes, or smaller ones of which the formula takes no more than seconds: (batch, kv_heads, q_len, n).

    Width is d + d_v. Batch and key heads give way first, then the longer one of queries and keys.
    """
    while batch * kv_heads * group * q_len * (n * width + ROW_WORK) > MOST_WORK:
        if batch > 1:
            batch -= 1
        elif kv_heads > 1:
            kv_heads //= 2
        elif n > q_len:
            n //= 2
        else:
            q_len //= 2
    return batch, kv_heads, q_len, n


def latent(rng: np.random.Generator, card: Card) -> Problem:
    """One key head whose first columns are the values (MLA), read once."""
    d, d_v = (64, 48) if card.interpreted else card.sizes.latent[2:]
    heads, n = int(rng.choice([4, 16])), int(rng.integers(1, card.sizes.most_keys))
    q = _normal(rng, card, (2, heads, 1, d), torch.bfloat16)
    k = _normal(rng, card, (2, 1, n, d), torch.bfloat16)
    v = k[..., :d_v]
    return Problem(
        q, k, v, Spec(scale=192**-0.5), {}, (k, v), what=f"bf16, latent, {heads} heads, {n} keys, {d} x {d_v}"
    )


def hide(problem: Problem) -> None:
    """Put NaN into all keys and values that no query may see, and into their stored form."""
    batch, n = problem.k.shape[0], problem.k.shape[2]
    hidden = torch.zeros((batch, n), dtype=torch.bool, device=problem.k.device)
    if "kv_lengths" in problem.where:
        hidden |= torch.arange(n, device=hidden.device) >= problem.where["kv_lengths"][:, None]
    if "kv_mask" in problem.where:
        hidden |= ~problem.where["kv_mask"]
    for x in {id(x): x for x in (problem.k, problem.v, *problem.stored)}.values():
        poison = torch.full((), torch.nan, device=x.device).to(x.dtype)
        x.view(_as_bits(x.dtype)).masked_fill_(hidden[:, None, :, None], int(poison.view(_as_bits(x.dtype))))


def _where(rng: np.random.Generator, card: Card, batch: int, q_len: int, n: int, spec: Spec) -> Where:
    found: Where = {}
    if rng.random() < 0.4:
        found["kv_lengths"] = torch.from_numpy(rng.integers(0, n + 1, batch)).to(card.place)
    if rng.random() < 0.2:
        found["kv_mask"] = torch.from_numpy(rng.random((batch, n)) < 0.6).to(card.place)
    if spec.needs_positions and rng.random() < 0.4:
        positions = rng.integers(0, n + q_len + 1, (batch, q_len)), rng.permutation(2 * n + 1)[:n]
        found |= {"q_positions": torch.from_numpy(positions[0]).to(card.place)}
        found |= {"kv_positions": torch.from_numpy(positions[1]).to(card.place)}
    return found


def _in_eight_bits(rng: np.random.Generator, problem: Problem, dtype: torch.dtype) -> None:
    """The keys and values stored in 8 bits, with scales; the problem's own become what they are worth."""
    stored = []
    for name, x in (("k", problem.k), ("v", problem.v)):
        scales = torch.from_numpy(rng.uniform(0.5, 2, x.shape[1]).astype(np.float32)).to(x.device)
        stored.append(x.to(dtype))
        setattr(problem, name, stored[-1].float() * scales[:, None, None])
        problem.more[f"{name}_scales"] = scales
    problem.stored = stored[0], stored[1]


def _in_pages(rng: np.random.Generator, problem: Problem) -> None:
    """The stored keys and values in pages in a random order; what no entry has is NaN."""
    batch, kv_heads, n, _ = problem.k.shape
    page = int(rng.choice([1, 16, 20, 64]))
    pages = -(-n // page)
    order = torch.from_numpy(rng.permutation(batch * pages + 2)[: batch * pages]).to(problem.k.device)
    held = []
    for x in problem.stored:
        bits = x.view(_as_bits(x.dtype))
        poison = int(torch.full((), torch.nan).to(x.dtype).view(_as_bits(x.dtype)))
        whole = bits.new_full((batch, kv_heads, pages * page, x.shape[3]), poison)
        whole[:, :, :n] = bits
        store = bits.new_full((batch * pages + 2, kv_heads, page, x.shape[3]), poison)
        parts = whole.view(batch, kv_heads, pages, page, x.shape[3]).transpose(1, 2)
        store[order] = parts.reshape(batch * pages, kv_heads, page, x.shape[3])
        held.append(store.view(x.dtype))
    problem.stored = held[0], held[1]
    problem.more["block_tables"] = order.view(batch, pages)
    for name in ("kv_positions", "kv_mask"):
        if name in problem.where:  # they go to the end of the last page
            x = problem.where[name]
            problem.more[name] = torch.nn.functional.pad(x, (0, pages * page - n))


def _normal(rng: np.random.Generator, card: Card, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(card.place).to(dtype)


def _as_bits(dtype: torch.dtype) -> torch.dtype:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]


def _numpy(x: Any) -> Any:
    return x.cpu().numpy() if isinstance(x, torch.Tensor) else x


def _words(spec: Spec) -> str:
    said = ["causal"] if spec.causal else []
    said += [f"window {spec.window}"] if spec.window else []
    said += ["softcap"] if spec.softcap else []
    said += ["slopes"] if spec.alibi_slopes else []
    return " ".join(said) or "plain"
