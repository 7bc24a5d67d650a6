"""One check of each kind of kernel on a random problem.

Every element is compared with the float64 formula and with the CPU's; a second run, and a CUDA graph, must give equal
bits. Memory that torch hands out is full of NaN meanwhile, so what a kernel does not write shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from card import Card

from attention import Partial, Spec, bench, merge_states
from attention.gpu import local_partial
from attention.gpu.decode.decode import decode_partial
from attention.gpu.gpu_merge import merge_on_device
from attention.gpu.prefill.prefill import prefill_partial
from attention.visibility import Masking
from problems.check_draw import Problem, draw, latent
from topocomm import OperatorError

EXACT = 3e-6
"""Tolerance of float32 results against the formula, relative to the largest value, or to lse."""
AS_CPU = 1e-6
"""How far from the CPU's, likewise; an lse of heads wider than 64 relative to WIDE x d x scale, where that is more: a
float32 sum of d products errs by its terms, whatever they leave of each other, and |q| |k| of normal numbers is d."""
WIDE = 1 / 4
BIASED = 2.0**-24
"""What a score with a slope adds to both, by slope x distance: that is rounded to float32 before softmax, and where
all keys of a row are far, their weights err by it."""
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""What the prefill kernel adds by rounding weights to the dtype of V, of the weighted mean of |v|: half a unit in the
last of 8 and of 11 digits."""
SPLIT = {torch.float32: (0.0, 0.0), torch.bfloat16: (2.0**-17, 0.0), torch.float16: (2.0**-23, 2.0**-40)}
"""What the decode kernel adds, by the dtype in which it multiplies (float16 for 8-bit keys and values): it multiplies
a weight in two parts, the second the rounded rest of the first. Of a weight in [1, 2) the rest is 2^-8 at most in
bfloat16, and rounding it to 8 digits errs by 2^-17 at most; in float16 2^-11 and 2^-23. These are shares of the
weighted mean of |v|. Weights of float16 are multiplied by 2^15 before; those still below its normal numbers err by
as much as 2^-40 each, beside a largest weight of 1: that is a share for every key."""
Calls = Callable[[], Partial]


@dataclass
class Found:
    """What a check found; `wrong` is None where all is as it should be.

    Attributes:
        off: Largest difference from the formula, relative.
        off_cpu: From the CPU; None: not compared.
        graph: Whether a graph was tried.
    """

    kind: str
    what: str
    wrong: str | None = None
    off: float | None = None
    off_cpu: float | None = None
    graph: bool = False

    def record(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def check(card: Card, kind: str, seed: int) -> Found:
    """Run one check, drawn from the seed."""
    rng = np.random.default_rng([seed, sorted(KINDS).index(kind)])
    with poisoned():
        return KINDS[kind](rng, card)


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill all memory that torch allocates with NaN."""
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        memory.fill_uninitialized_memory = before[1]


def _decode(rng: np.random.Generator, card: Card) -> Found:
    problem = latent(rng, card) if rng.random() < 0.05 else draw(rng, card, decoding=True)
    told = {**problem.where, **problem.more}

    def run() -> Partial:
        return decode_partial(problem.q, *problem.stored, spec=problem.spec, **told)

    return _compared(card, "decode", problem, run, split(card, problem), graph=bool(rng.random() < 0.3))


def _prefill(rng: np.random.Generator, card: Card) -> Found:
    problem = draw(rng, card, decoding=False)

    def run() -> Partial:
        return prefill_partial(problem.q, problem.k, problem.v, spec=problem.spec, **problem.where)

    return _compared(card, "prefill", problem, run, rounded(card, problem.v), graph=bool(rng.random() < 0.3))


def _merging(rng: np.random.Generator, card: Card) -> Found:
    """Attend the later keys and merge onto the earlier ones' partial."""
    problem = draw(rng, card, decoding=False)
    spec = Spec(causal=problem.spec.causal, window=problem.spec.window, softcap=problem.spec.softcap)
    q_len, n = problem.q.shape[2], problem.k.shape[2]
    first = int(rng.integers(-q_len, n + 1))
    problem.spec, problem.where = spec, {"q_positions": first, "kv_positions": 0} if spec.needs_positions else {}
    problem.k, problem.v = torch.nan_to_num(problem.k), torch.nan_to_num(problem.v)
    cut = int(rng.integers(0, n + 1))

    def run() -> Partial:
        partial = None
        for keys in (slice(0, cut), slice(cut, n)):
            where = {**problem.where, "kv_positions": keys.start} if problem.where else {}
            arrays = problem.q, problem.k[:, :, keys], problem.v[:, :, keys]
            partial = prefill_partial(*arrays, spec=spec, merge_into=partial, **where)
        assert partial is not None
        return partial

    problem.what += f", merged at key {cut}"
    return _compared(card, "merging", problem, run, rounded(card, problem.v), graph=False)


def _seam(rng: np.random.Generator, card: Card) -> Found:
    """`local_attention` itself: it chooses the kernel."""
    problem = draw(rng, card, decoding=bool(rng.random() < 0.5))
    if "k_scales" in problem.more:  # it takes none
        problem.k, problem.v = (x.to(problem.q.dtype) for x in (problem.k, problem.v))
        problem.stored, problem.more = (problem.k, problem.v), {}
    (k, v), few = problem.stored, problem.q.shape[2] <= 16
    where = Masking(**{**problem.where, **problem.more})

    def run() -> Partial:
        return local_partial("local_attention", (problem.q, k, v), problem.spec, where)

    weights = split(card, problem) if few else rounded(card, v)
    return _compared(card, "local_attention", problem, run, weights, graph=False)


def _states(rng: np.random.Generator, card: Card) -> Found:
    """The n-way merge; with the bits of the CPU's."""
    count, dim = int(rng.integers(1, 18)), int(rng.choice([1, 3, 64, 80, 128, 256, 512]))
    rows = tuple(int(x) for x in rng.integers(1, 9, int(rng.integers(1, 4))))
    outs = torch.from_numpy(rng.standard_normal((count, *rows, dim), dtype=np.float32))
    outs = outs.to([torch.float32, torch.float32, torch.bfloat16, torch.float16][rng.integers(4)])
    lses = torch.from_numpy((20 * rng.standard_normal((count, *rows))).astype(np.float32))
    empty = torch.from_numpy(rng.random((count, *rows)) < 0.3)
    lses[empty], outs[empty] = -torch.inf, torch.nan
    there = outs.to(card.place), lses.to(card.place)

    def run() -> Partial:
        if card.interpreted:  # the CPU has a fold of its own
            return Partial(*merge_on_device(list(there[0]), list(there[1])))
        return merge_states(*there)

    values = zip(outs.double().nan_to_num(), lses.double(), strict=True)
    flat = [{"out": out.reshape(-1, dim).numpy(), "lse": lse.reshape(-1).numpy()} for out, lse in values]
    with np.errstate(all="ignore"):
        exact = bench.exact(flat)
    partial = Partial(exact["out"].reshape(*rows, dim), exact["lse"].reshape(rows))
    found = Found("states", f"{count} states {list(rows)} x {dim}, {outs.dtype}")
    return _judged(card, found, run, partial, merge_states(outs, lses), 1.0, 0.0, graph=bool(rng.random() < 0.3))


def rounded(card: Card, v: torch.Tensor) -> float:
    """Return the tolerance for the prefill kernel's rounded weights."""
    return ROUNDING[v.dtype] * (1 + card.interpreted)  # the interpreter cuts off, a GPU rounds


def split(card: Card, problem: Problem) -> float:
    """What the decode kernel's weights add; nothing to speak of in the interpreter, which multiplies in float32."""
    eight = problem.stored[0].element_size() == 1 and problem.q.element_size() == 2
    whole, each = SPLIT[torch.float16 if eight else problem.q.dtype]
    return 0.0 if card.interpreted else whole + each * problem.k.shape[2]


def _compared(card: Card, kind: str, problem: Problem, run: Calls, rounding: float, *, graph: bool) -> Found:
    found = Found(kind, problem.what)
    d = problem.q.shape[3]
    level = max(1.0, WIDE * d * problem.spec.scale_for(d))
    rounding += BIASED * max(problem.spec.alibi_slopes or [0.0]) * (problem.q.shape[2] + 2 * problem.k.shape[2])
    exact, on_cpu = problem.formula(), problem.on_cpu()
    return _judged(card, found, run, exact, on_cpu, _scale(problem.v), rounding, graph=graph, level=level)


def _judged(
    card: Card,
    found: Found,
    run: Calls,
    exact: Partial,
    on_cpu: Partial | None,
    scale: float,
    rounding: float,
    *,
    graph: bool = False,
    level: float = 1.0,
) -> Found:
    """Run twice and by a graph, and compare."""
    try:
        first, second = run(), run()
    except OperatorError as error:
        found.wrong = f"refused: {error}"
        return found
    card.synchronize()
    got = Partial(*(x.cpu().double().numpy() for x in first))
    faults = [_emptiness(got, exact)]
    found.off = distance(got, exact, scale)
    allowed = EXACT + rounding
    faults.append(None if found.off <= allowed else f"{found.off:.2e} from the formula, {allowed:.1e} allowed")
    if on_cpu is not None:
        found.off_cpu = distance(got, Partial(*(x.double().numpy() for x in on_cpu)), scale, level)
        near = AS_CPU + rounding
        faults.append(None if found.off_cpu <= near else f"{found.off_cpu:.2e} from the CPU, {near:.1e} allowed")
    faults.append(None if same_bits(first, second) else "two runs differ in bits")
    if graph:
        found.graph = True
        held: list[Partial] = []
        replay = card.graph(lambda: held.append(run()))
        replay()
        card.synchronize()
        faults.append(None if same_bits(first, held[-1]) else "a replayed graph differs in bits")
    found.wrong = "; ".join(fault for fault in faults if fault) or None
    return found


def distance(got: Partial, wanted: Partial, scale: float, level: float = 1.0) -> float:
    """The largest difference: of out relative to the scale, of lse to itself or to the level; NaN is infinite."""
    filled = np.isfinite(np.asarray(wanted.lse))
    out = np.abs(np.asarray(got.out) - wanted.out).max(initial=0.0) / scale
    lse = np.abs(np.asarray(got.lse)[filled] - np.asarray(wanted.lse)[filled])
    lse = (lse / np.maximum(level, np.abs(np.asarray(wanted.lse)[filled]))).max(initial=0.0)
    most = max(float(out), float(lse)) if not np.isnan(out) and not np.isnan(lse) else np.inf
    return float(most)


def same_bits(one: Partial, other: Partial) -> bool:
    """Return whether two float32 partials have the same bits."""
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(one, other, strict=True))


def _emptiness(got: Partial, exact: Partial) -> str | None:
    """Check that the same rows are empty, and exactly (0, -inf)."""
    empty = np.isneginf(np.asarray(exact.lse))
    if not (np.isneginf(np.asarray(got.lse)) == empty).all():
        return "other rows are empty than by the formula"
    return None if (np.asarray(got.out)[empty] == 0).all() else "an empty row is not 0"


def _scale(v: torch.Tensor) -> float:
    return max(1.0, float(v.float().nan_to_num().abs().max())) if v.numel() else 1.0


KINDS: dict[str, Callable[[np.random.Generator, Card], Found]] = {
    "decode": _decode,
    "prefill": _prefill,
    "merging": _merging,
    "states": _states,
    "local_attention": _seam,
}
