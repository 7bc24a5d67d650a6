"""Packings with a limited number of trees per root, of greatest throughput and, among equals, of least height.

A linear program gives about as many trees as there are full links. Candidates with fewer have whole units of bandwidth
as weights, in several ratios, and are weighed again by the linear program. On small machines rates of links are tried
as weights too, and single trees are exchanged while that helps: the prices of the linear program over the chosen trees
name the candidates, columns that cost less than they gain; which tree leaves is tried, the lightest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, islice
from math import gcd, lcm

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats
from topocomm.planning.forests.linear_program.packing import Column, Parts, Pricer, pack, priced, repack
from topocomm.planning.forests.linear_program.pricers import DirectedPairs, OutTrees, RootedTrees, UndirectedTrees
from topocomm.planning.forests.units.splitting import Split
from topocomm.planning.forests.units.unit_trees import trees_in_units, unequal_trees

LOSS = 4e-4
"""Part of the throughput that fewer trees may cost."""
SMALL = 16
"""Most ranks of a machine on which candidates are weighed again and trees exchanged."""
MOST_UNITS = 64
"""Most units of all roots together."""
LOW = 3
"""Height of trees that is low enough."""
ACCURATE = (1e-6, 600)
"""Accuracy of the packing whose trees are exchanged, and its most turns."""
POOL_UNITS = 16
"""Most units of trees of one unit each that are candidates of exchanges."""
STARTS = 3
"""Candidate packings whose trees are exchanged, beside the heaviest trees of the linear program."""
MOST_RATES, MOST_OF_RATES, RATES_TRIED = 6, 8, 8
"""Most different rates of links that serve as weights; most trees of such weights; most choices tried."""
FINEST, MOST_FINE_UNITS = 64, 2048
"""Greatest denominator of such a rate in GB/s; most units of a choice, in the common measure of its weights."""
OVER = 1e-3
"""Part by which such weights may exceed what is enough."""
MORE = 4
"""Ratios tried for lower trees, once one carries enough."""
RATIOS = 3
"""Ratios tried per number of units above the number of trees on small machines; on others one."""
MOST_EXCHANGES = 400
"""Most linear programs solved by the exchanges from one packing."""
GAINS = 1 + 1e-6
"""Least ratio of throughputs, after an exchange over before, that counts as a gain."""
ENTERING, LEAVING = 12, 3
"""Most candidates of one exchange, the most promising first; most chosen trees tried as the one that leaves."""


def bounded_trees(pricer: RootedTrees, roots: Sequence[int], most: int, bound: float, useful: float) -> Parts:
    """Return the best packing found of at most `most` trees a root; empty if there is none.

    The pricer has no symmetries. `bound` is what no packing exceeds, `useful` the least use of one, in GB/s.
    """
    small = pricer.network.ends <= SMALL
    enough, least = bound * (1 - LOSS), 0.0 if small else useful * (1 - LOSS)
    best: Parts = ()
    options: list[Parts] = []
    left = MORE
    for ratio in _ratios(most, len(roots), RATIOS if small else 1):
        columns = _in_units(pricer, [(root, units) for root in roots for units in ratio], bound, least)
        if columns:
            options.append(repack(pricer, [*pricer.start(), *columns]))
            best = _best_of(pricer, [best, options[-1]])
        if best and pricer.total(best) >= enough:
            left -= 1
            if not left or _height(best) <= LOW or not small:
                return best
    if isinstance(pricer, OutTrees) and small and not (best and pricer.total(best) >= enough):
        best = _best_of(pricer, [best, _by_rates(pricer, most, enough)])
    if not small or (best and pricer.total(best) >= enough):
        return best
    return _best_of(pricer, [best, *_after_exchange(pricer, roots, most, bound, options)])


def _in_units(pricer: RootedTrees, wanted: Sequence[tuple[int, int]], bound: float, least: float) -> list[Column]:
    return [pricer.column(tree) for _, tree in trees_in_units(pricer.network, wanted, bound, least)]


def _by_rates(pricer: OutTrees, most: int, enough: float) -> Parts:
    """Return trees whose weights are rates of links; empty where none carry enough."""
    rates = sorted({Fraction(rate).limit_denominator(FINEST) for rate in pricer.network.gb_per_s.tolist()})
    if len(rates) > MOST_RATES:
        return ()
    counts = range(min(most, MOST_OF_RATES), 0, -1)
    choices = (weights for count in counts for weights in combinations_with_replacement(rates, count))
    in_units = (_in_common_units(weights) for weights in choices if enough <= sum(weights) <= enough * (1 + OVER))
    for unit, units in islice((weights for weights in in_units if sum(weights[1]) <= MOST_FINE_UNITS), RATES_TRIED):
        wanted = [(pricer.root, count) for count in units]
        split = Split(pricer.network, float(unit), {pricer.root: sum(units)}, max(units))
        trees = unequal_trees(split, wanted) if split.take_out() else None
        if trees:
            return repack(pricer, [pricer.column(tree) for tree in trees])
    return ()


def _in_common_units(weights: Sequence[Fraction]) -> tuple[Fraction, list[int]]:
    """Return (the greatest number of which all are multiples, their multiples)."""
    unit = Fraction(gcd(*(w.numerator for w in weights)), lcm(*(w.denominator for w in weights)))
    return unit, [int(weight / unit) for weight in weights]


def _after_exchange(
    pricer: RootedTrees, roots: Sequence[int], most: int, bound: float, options: Sequence[Parts]
) -> list[Parts]:
    """Return packings after exchanges from the best options and from the heaviest trees of the linear program."""
    pool = [column for parts in options for _, column in parts]
    for units in range(most + 1, min(max(2 * most, POOL_UNITS), MOST_UNITS // len(roots)) + 1):
        pool += _in_units(pricer, [(root, 1) for root in roots for _ in range(units)], bound, 0.0)
    packed = [column for _, column in pack(pricer, *ACCURATE).parts]
    best = sorted(options, key=pricer.total, reverse=True)[:STARTS]
    starts = [_heaviest_of_roots(packed, most), *([column for _, column in parts] for parts in best)]
    return [exchange_columns(pricer, start, [*pool, *packed], lambda parts: _fits(parts, most)) for start in starts]


def bounded_pairs(pricer: UndirectedTrees | DirectedPairs, most: int) -> Parts:
    """Return an allreduce packing of at most `most` trees a root, by exchanges; on small machines only."""
    packed = [column for _, column in pack(pricer, *ACCURATE).parts]
    if isinstance(pricer, UndirectedTrees):  # any rank may be the root
        every = most * pricer.network.ends
        return exchange_columns(pricer, packed[:every], packed, lambda parts: len(parts) <= every)
    return exchange_columns(pricer, _heaviest_of_roots(packed, most), packed, lambda parts: _fits(parts, most))


def exchange_columns(
    pricer: Pricer, chosen: Sequence[Column], pool: Sequence[Column], fits: Callable[[Parts], bool]
) -> Parts:
    """Return the best packing found by exchanging single columns of those chosen.

    Candidates are the pool and what the pricer offers; `fits` is whether a packing has no more trees than are allowed.
    """
    pool, known, capacity = list(pool), {column.key for column in pool}, pricer.capacity[: pricer.links]
    parts, prices = priced(pricer, [*pricer.start(), *chosen])
    left = MOST_EXCHANGES
    for turn in range(MOST_EXCHANGES):
        own = np.maximum(prices[: pricer.links], 0.0)
        floor = 1e-3 * (float((own * capacity).sum()) / pricer.links) / capacity
        for column in (column for group in pricer.price(own + floor, turn)[1] for column in group):
            if column.key not in known:
                known.add(column.key)
                pool.append(column)
        total = pricer.total(parts)
        for columns in islice(_exchanged(parts, prices, pool), left):
            left -= 1
            packing, new_prices = priced(pricer, [*pricer.start(), *columns])
            if fits(packing) and pricer.total(packing) > total * GAINS:
                parts, prices = packing, new_prices
                break
        else:
            break
    return parts


def _exchanged(parts: Parts, prices: Floats, pool: Sequence[Column]) -> Iterator[list[Column]]:
    """Yield the columns of a packing after each exchange that is tried."""
    chosen = [column for _, column in parts]
    worth = [column.gain - float((prices[column.rows] * column.loads).sum()) for column in pool]
    order = sorted((place for place in range(len(worth)) if worth[place] > 1e-9), key=lambda p: (-worth[p], p))
    for place in order[:ENTERING]:
        yield [*chosen, pool[place]]
        for leaving in range(len(chosen) - 1, max(-1, len(chosen) - 1 - LEAVING), -1):
            yield [*chosen[:leaving], *chosen[leaving + 1 :], pool[place]]


def _heaviest_of_roots(columns: Sequence[Column], most: int) -> list[Column]:
    kept: list[Column] = []
    for column in columns:
        kept += [column] * (sum(column.pair.root == column.pair.root for column in kept) < most)
    return kept


def _best_of(pricer: RootedTrees, options: Sequence[Parts]) -> Parts:
    """Return the lowest of the packings that carry about the most."""
    options = [parts for parts in options if parts]
    most = max((pricer.total(parts) for parts in options), default=0.0)
    good = [parts for parts in options if pricer.total(parts) >= most * (1 - LOSS)]
    return min(good, key=lambda parts: (max(_height(parts), LOW), len(parts)), default=())


def _height(parts: Parts) -> int:
    return max(column.pair.height for _, column in parts)


def _fits(parts: Parts, most: int) -> bool:
    roots = [column.pair.root for _, column in parts]
    return all(roots.count(root) <= most for root in set(roots))


def _ratios(most: int, roots: int, tries: int) -> Iterator[tuple[int, ...]]:
    """Yield units of the trees of a root: one each, then some ratios for each number of units up to two each."""
    most_units = MOST_UNITS // roots
    for count in range(min(most, most_units), 0, -1):
        yield (1,) * count
    for units in range(most + 1, min(2 * most, most_units) + 1):
        yield from islice(_partitions(units, most, units), tries)


def _partitions(units: int, count: int, top: int) -> Iterator[tuple[int, ...]]:
    """Yield `count` falling numbers from 1 to `top` that add up to the units, the most even first."""
    if not count:
        yield from [()] * (not units)
        return
    for first in range(-(-units // count), min(top, units - count + 1) + 1):
        for rest in _partitions(units - first, count - 1, first):
            yield (first, *rest)
