"""A limited number of trees: one is exchanged for another as long as the packing gains.

The prices of the chosen trees' own program say which others would help: those that cost less than they gain. Which of
the chosen goes for one of them is tried, the lightest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats
from topocomm.planning.forests.linear_program.packing import Column, Parts, Pricer, priced

MOST_TRIES = 400
"""Programs solved."""
GAINS = 1 + 1e-6
"""A packing is better if it carries so many times as much."""
OTHERS = 12
"""Trees looked at in one turn, the most promising first."""
LIGHTEST = 3
"""Chosen trees of which one may go for another."""


def exchanged(pricer: Pricer, chosen: Sequence[Column], pool: Sequence[Column], fits: Callable[[Parts], bool]) -> Parts:
    """The best packing found.

    Args:
        pricer: Whose columns they are.
        chosen: To begin with.
        pool: Others; those that the pricer offers are added.
        fits: Whether a packing has no more trees than it may.
    """
    search = _Exchange(pricer, list(pool), fits)
    parts, prices = priced(pricer, [*pricer.start(), *chosen])
    for turn in range(MOST_TRIES):
        search.offer(prices, turn)
        found = search.better(parts, prices)
        if found is None:
            return parts
        parts, prices = found
    return parts


class _Exchange:
    def __init__(self, pricer: Pricer, pool: list[Column], fits: Callable[[Parts], bool]) -> None:
        self.pricer, self.pool, self.fits = pricer, pool, fits
        self.known = {(column.rows.tobytes(), column.loads.tobytes()) for column in pool}
        self.tries = 0

    def offer(self, prices: Floats, turn: int) -> None:
        """Take what the pricer finds at these prices into the pool."""
        own = np.maximum(prices[: self.pricer.links], 0.0)
        mean = float((own * self.pricer.capacity[: self.pricer.links]).sum()) / self.pricer.links
        floor = 1e-3 * mean / self.pricer.capacity[: self.pricer.links]
        for group in self.pricer.price(own + floor, turn)[1]:
            for column in group:
                key = (column.rows.tobytes(), column.loads.tobytes())
                if key not in self.known:
                    self.known.add(key)
                    self.pool.append(column)

    def better(self, parts: Parts, prices: Floats) -> tuple[Parts, Floats] | None:
        """(packing, prices) after an exchange that gains; None where no exchange tried does."""
        total, start = self.pricer.total(parts), self.pricer.start()
        chosen = [column for _, column in parts]
        worth = [column.gain - float((prices[column.rows] * column.loads).sum()) for column in self.pool]
        order = sorted((place for place in range(len(worth)) if worth[place] > 1e-9), key=lambda p: (-worth[p], p))
        for place in order[:OTHERS]:
            one = self.pool[place]
            for gone in (None, *range(len(chosen) - 1, max(-1, len(chosen) - 1 - LIGHTEST), -1)):
                if self.tries == MOST_TRIES:
                    return None
                self.tries += 1
                kept = [column for at, column in enumerate(chosen) if at != gone]
                found, found_prices = priced(self.pricer, [*start, *kept, one])
                if self.fits(found) and self.pricer.total(found) > total * GAINS:
                    return found, found_prices
        return None
