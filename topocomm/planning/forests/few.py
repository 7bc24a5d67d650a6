"""Few trees: as many of a root as it may have, chosen for what they carry together, and among equals for low height.

A packing by linear programming has about as many trees as links are full. Candidates with fewer are made of whole
units (`weights.py`), as many as there may be and with other ratios of their weights, then weighed again by the linear
program; on small machines single trees are exchanged as long as that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topocomm.planning.forests.packing import Column, pack, repack
from topocomm.planning.forests.pricers import Gathers, OutTrees
from topocomm.planning.forests.swaps import Parts, exchanged
from topocomm.planning.forests.weights import trees_in_units

SMALL = 16
"""Ranks up to which all these ratios are tried, and trees exchanged."""
MOST_UNITS = 64
"""Units of all roots together."""
LOW = 3
"""Edges between root and leaves that are few enough."""
ACCURATE = (1e-6, 600)
"""How near to its bound the packing comes from which trees are taken, and in how many turns."""
MORE = 4
"""Ratios tried, once one is enough, for lower trees."""
RATIOS = 3
"""Ratios of weights tried for every number of units above that of the trees."""


def few_trees(pricer: OutTrees | Gathers, roots: Sequence[int], most: int, bound_gb_per_s: float, loss: float) -> Parts:
    """The best packing found of at most so many trees of every root; empty if none is.

    Args:
        pricer: Without symmetries.
        roots: All.
        most: Trees of each.
        bound_gb_per_s: What no packing exceeds.
        loss: Part of the throughput that counts as none.
    """
    network = pricer.network
    enough = bound_gb_per_s * (1 - loss)
    best: Parts = ()
    found: list[Column] = []
    left = MORE
    for ratio in _ratios(most, len(roots), small=network.ends <= SMALL):
        trees = trees_in_units(network, [(root, units) for root in roots for units in ratio], bound_gb_per_s)
        columns = [pricer.column(tree) for _, tree in trees]
        found += columns
        parts = repack(pricer, [*pricer.start(), *columns]) if columns else ()
        best = better(pricer, [best, parts], loss)
        if best and pricer.total(best) >= enough:
            left -= 1
            if not left or height(best) <= LOW or network.ends > SMALL:
                return best
    if network.ends > SMALL or (best and pricer.total(best) >= enough):
        return best
    packed = [column for _, column in pack(pricer, *ACCURATE).parts]
    heaviest: list[Column] = []
    for column in packed:
        heaviest += [column] * (sum(one.pair.root == column.pair.root for one in heaviest) < most)
    starts = [heaviest, [column for _, column in best]] if best else [heaviest]
    pool = [*found, *packed]
    tried = [exchanged(pricer, one, pool, lambda parts: fits(parts, most)) for one in starts]
    return better(pricer, [best, *tried], loss)


def better(pricer: OutTrees | Gathers, options: Sequence[Parts], loss: float) -> Parts:
    """The lowest of those that carry about the most."""
    options = [parts for parts in options if parts]
    most = max((pricer.total(parts) for parts in options), default=0.0)
    good = [parts for parts in options if pricer.total(parts) >= most * (1 - loss)]
    return min(good, key=lambda parts: (max(height(parts), LOW), len(parts)), default=())


def height(parts: Parts) -> int:
    """Of the highest tree."""
    return max(column.pair.height for _, column in parts)


def fits(parts: Parts, most: int) -> bool:
    """Whether no root has more trees."""
    roots = [column.pair.root for _, column in parts]
    return all(roots.count(root) <= most for root in set(roots))


def _ratios(most: int, roots: int, *, small: bool) -> Iterator[tuple[int, ...]]:
    """Units of the trees of each root."""
    most_units = MOST_UNITS // roots
    for count in range(min(most, most_units), 0, -1):
        yield (1,) * count
    if small:
        for units in range(most + 1, min(2 * most, most_units) + 1):
            for number, ratio in enumerate(_partitions(units, most, units)):
                if number == RATIOS:
                    break
                yield ratio


def _partitions(units: int, count: int, top: int) -> Iterator[tuple[int, ...]]:
    """So many numbers from 1 to the top that add up to the units, falling, the most even first."""
    if not count:
        yield from [()] * (not units)
        return
    for first in range(-(-units // count), min(top, units - count + 1) + 1):
        for rest in _partitions(units - first, count - 1, first):
            yield (first, *rest)
