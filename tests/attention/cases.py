"""Inputs for attention tests: odd shapes, shards of uneven length, and the bound on errors."""

import numpy as np
import torch

# batch, kv_heads, query heads per key head, q_len, n, d, d_v: sizes differ, so that swapped axes cannot pass.
SHAPES = [
    (1, 1, 1, 1, 1, 8, 8),
    (2, 3, 4, 1, 37, 16, 24),
    (3, 2, 1, 5, 129, 24, 16),
    (2, 1, 8, 7, 600, 32, 8),
    (1, 3, 3, 2, 300, 64, 64),
]


def arrays(shape, *, seed=0, peak=3.0):
    """(q, k, v) float32; `peak` widens the scores, so that lse and weights vary."""
    batch, kv_heads, group, q_len, n, d, d_v = shape
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batch, kv_heads * group, q_len, d), dtype=np.float32)
    k = rng.standard_normal((batch, kv_heads, n, d), dtype=np.float32) * np.float32(peak)
    v = rng.standard_normal((batch, kv_heads, n, d_v), dtype=np.float32)
    return q, k, v


def cuts(n, ranks, *, seed=0):
    """Contiguous shards as slices: uneven, some empty."""
    edges = np.sort(np.random.default_rng(seed).integers(0, n + 1, ranks - 1)).tolist()
    return [slice(a, b) for a, b in zip([0, *edges], [*edges, n], strict=True)]


def assert_close(got, exact, *, atol):
    """Equal within atol, infinities included."""
    np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=0, atol=atol, equal_nan=False)


def pairwise(factors):
    """Few combinations in which every two values of two factors meet: one after the other, the best of some tries."""
    names = list(factors)
    rng = np.random.default_rng(0)
    missing = _pairs(factors)
    while missing:
        (a, x), (b, y) = min(missing)
        tries = [{name: int(rng.integers(len(factors[name]))) for name in names} | {a: x, b: y} for _ in range(60)]
        best = max(tries, key=lambda one: sum(one[a] == x and one[b] == y for (a, x), (b, y) in missing))
        missing -= {pair for pair in missing if all(best[name] == value for name, value in pair)}
        yield {name: factors[name][best[name]] for name in names}


def covered(cases, factors):
    """Whether every two values of two factors meet in one of the cases."""
    met = {((a, str(one[a])), (b, str(one[b]))) for one in cases for a in factors for b in factors}
    wanted = _pairs(factors)
    return all(((a, str(factors[a][x])), (b, str(factors[b][y]))) in met for (a, x), (b, y) in wanted)


def _pairs(factors):
    names = list(factors)
    return {
        ((a, x), (b, y))
        for place, a in enumerate(names)
        for b in names[place + 1 :]
        for x in range(len(factors[a]))
        for y in range(len(factors[b]))
    }


def by_map(tensors, shards, rank, length):
    """This rank's keys, values and their positions."""
    mine = torch.from_numpy(shards.owned(rank, 0, length).copy())
    return (*(x.index_select(2, mine) for x in tensors), mine)


def case_of(shape, dtype=torch.float32, **options):
    """`arrays` as tensors of a dtype."""
    return tuple(torch.from_numpy(x).to(dtype) for x in arrays(shape, **options))
