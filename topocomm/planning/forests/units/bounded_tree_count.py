"""Few trees: as many of a root as it may have, chosen for what they carry together, and among equals for low height.

A packing by linear programming has about as many trees as links are full. Candidates with fewer are made of whole
units (`weights.py`), as many as there may be and with other ratios of their weights, then weighed again by the linear
program; on small machines trees are given the rates of links as weights (`unlike.py`), and single trees are exchanged
as long as that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, islice
from math import gcd, lcm
from typing import NamedTuple

from topocomm.planning.forests.column_exchange import exchanged
from topocomm.planning.forests.linear_program.packing import Column, Parts, pack, repack
from topocomm.planning.forests.linear_program.pricers import DirectedPairs, Gathers, OutTrees, UndirectedTrees
from topocomm.planning.forests.units.splitting import Split
from topocomm.planning.forests.units.unit_trees import trees_in_units, unlike_trees

SMALL = 16
"""Ranks up to which candidates are weighed again, and trees exchanged."""
MOST_UNITS = 64
"""Units of all roots together."""
LOW = 3
"""Edges between root and leaves that are few enough."""
ACCURATE = (1e-6, 600)
"""How near to its bound the packing comes from which trees are taken, and in how many turns."""
POOL_UNITS = 16
"""Units up to which trees of one unit each are made to be exchanged for others."""
STARTS = 3
"""Candidates of which trees are exchanged, beside the heaviest of the linear program."""
MOST_RATES, MOST_OF_RATES, RATES_TRIED = 6, 8, 8
"""Unlike rates of links up to which trees are given them as weights; how many trees; how many choices are tried."""
FINEST, MOST_FINE_UNITS = 64, 2048
"""Greatest denominator of such a rate in GB/s; most units of a choice of weights, of what all have in common."""
OVER = 1e-3
"""How much more than enough weights may add up to, of what links cannot carry."""
MORE = 4
"""Ratios tried, once one is enough, for lower trees."""
RATIOS = 3
"""Ratios tried for every number of units above that of the trees; one on machines that are not small."""


class Rates(NamedTuple):
    """Payload per time: what no packing exceeds, and what a packing of few trees must carry to be of use."""

    bound_gb_per_s: float
    least_gb_per_s: float


def few_trees(pricer: OutTrees | Gathers, roots: Sequence[int], most: int, rates: Rates, loss: float) -> Parts:
    """The best packing found of at most so many trees of every root; empty if none is.

    Args:
        pricer: Without symmetries.
        roots: All.
        most: Trees of each.
        rates: What no packing exceeds, and what is of use.
        loss: Part of the throughput that counts as none.
    """
    small = pricer.network.ends <= SMALL
    enough, least = rates.bound_gb_per_s * (1 - loss), 0.0 if small else rates.least_gb_per_s * (1 - loss)
    best: Parts = ()
    options: list[Parts] = []
    left = MORE
    for ratio in _ratios(most, len(roots), RATIOS if small else 1):
        columns = _in_units(pricer, [(root, units) for root in roots for units in ratio], rates.bound_gb_per_s, least)
        if columns:
            options.append(repack(pricer, [*pricer.start(), *columns]))
            best = better(pricer, [best, options[-1]], loss)
        if best and pricer.total(best) >= enough:
            left -= 1
            if not left or height(best) <= LOW or not small:
                return best
    if isinstance(pricer, OutTrees) and small and not (best and pricer.total(best) >= enough):
        best = better(pricer, [best, _by_rates(pricer, most, enough)], loss)
    if not small or (best and pricer.total(best) >= enough):
        return best
    return better(pricer, [best, *_after_exchange(pricer, roots, most, rates.bound_gb_per_s, options)], loss)


def _in_units(
    pricer: OutTrees | Gathers, wanted: Sequence[tuple[int, int]], bound: float, least: float
) -> list[Column]:
    return [pricer.column(tree) for _, tree in trees_in_units(pricer.network, wanted, bound, least)]


def _by_rates(pricer: OutTrees, most: int, enough: float) -> Parts:
    """Trees whose weights are rates of links; empty where none are found that carry enough."""
    rates = sorted({Fraction(rate).limit_denominator(FINEST) for rate in pricer.network.gb_per_s.tolist()})
    if len(rates) > MOST_RATES:
        return ()
    counts = range(min(most, MOST_OF_RATES), 0, -1)
    chosen = (one for count in counts for one in combinations_with_replacement(rates, count))
    near = (one for one in chosen if enough <= sum(one) <= enough * (1 + OVER))
    in_units = ((unit, [int(weight / unit) for weight in one]) for one in near for unit in [_common(one)])
    for unit, units in islice((one for one in in_units if sum(one[1]) <= MOST_FINE_UNITS), RATES_TRIED):
        wanted = [(pricer.root, count) for count in units]
        split = Split(pricer.network, float(unit), {pricer.root: sum(units)}, max(units))
        trees = unlike_trees(split, wanted) if split.take_out() else None
        if trees:
            return repack(pricer, [pricer.column(tree) for tree in trees])
    return ()


def _common(weights: Sequence[Fraction]) -> Fraction:
    """The greatest of which all are multiples."""
    return Fraction(gcd(*(w.numerator for w in weights)), lcm(*(w.denominator for w in weights)))


def _after_exchange(
    pricer: OutTrees | Gathers, roots: Sequence[int], most: int, bound: float, options: Sequence[Parts]
) -> list[Parts]:
    """What exchanging leads to from the best options, and from the heaviest trees of the linear program."""
    pool = [column for parts in options for _, column in parts]
    for units in range(most + 1, min(max(2 * most, POOL_UNITS), MOST_UNITS // len(roots)) + 1):
        pool += _in_units(pricer, [(root, 1) for root in roots for _ in range(units)], bound, 0.0)
    packed = [column for _, column in pack(pricer, *ACCURATE).parts]
    best = sorted(options, key=pricer.total, reverse=True)[:STARTS]
    starts = [_first(packed, most), *([column for _, column in parts] for parts in best)]
    return [exchanged(pricer, one, [*pool, *packed], lambda parts: fits(parts, most)) for one in starts]


def few_pairs(pricer: UndirectedTrees | DirectedPairs, most: int) -> Parts:
    """The same for allreduce, whose trees have any roots: those that exchanging leads to. Ranks as in `SMALL`."""
    packed = [column for _, column in pack(pricer, *ACCURATE).parts]
    if isinstance(pricer, UndirectedTrees):  # whose trees may be hung up anywhere
        every = most * pricer.network.ends
        return exchanged(pricer, packed[:every], packed, lambda parts: len(parts) <= every)
    return exchanged(pricer, _first(packed, most), packed, lambda parts: fits(parts, most))


def _first(columns: Sequence[Column], most: int) -> list[Column]:
    """Those that have fewer than so many of their root before them."""
    found: list[Column] = []
    for column in columns:
        found += [column] * (sum(one.pair.root == column.pair.root for one in found) < most)
    return found


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


def _ratios(most: int, roots: int, tries: int) -> Iterator[tuple[int, ...]]:
    """Units of the trees of each root: one each, then so many ratios for every number of units up to two each."""
    most_units = MOST_UNITS // roots
    for count in range(min(most, most_units), 0, -1):
        yield (1,) * count
    for units in range(most + 1, min(2 * most, most_units) + 1):
        yield from islice(_partitions(units, most, units), tries)


def _partitions(units: int, count: int, top: int) -> Iterator[tuple[int, ...]]:
    """So many numbers from 1 to the top that add up to the units, falling, the most even first."""
    if not count:
        yield from [()] * (not units)
        return
    for first in range(-(-units // count), min(top, units - count + 1) + 1):
        for rest in _partitions(units - first, count - 1, first):
            yield (first, *rest)
