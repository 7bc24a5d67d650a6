"""A limited number of trees: single ones are exchanged for others while the packing gains.

The prices of the linear program over the chosen trees name the candidates: columns that cost less than they gain. Which
chosen tree leaves is tried, the lightest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats
from topocomm.planning.forests.linear_program.packing import Column, Parts, Pricer, priced

MOST_TRIES = 400
"""Most linear programs solved."""
GAINS = 1 + 1e-6
"""Least ratio of throughputs, after over before, that counts as a gain."""
OTHERS = 12
"""Most candidates of one turn, the most promising first."""
LIGHTEST = 3
"""Most chosen trees tried as the one that leaves."""


def exchange_columns(
    pricer: Pricer, chosen: Sequence[Column], pool: Sequence[Column], fits: Callable[[Parts], bool]
) -> Parts:
    """Return the best packing found.

    Args:
        pricer: The source of the columns.
        chosen: The columns to begin with.
        pool: Candidates; those that the pricer offers are added.
        fits: Whether a packing has no more trees than are allowed.
    """
    search = _Exchange(pricer, list(pool), fits)
    parts, prices = priced(pricer, [*pricer.start(), *chosen])
    for turn in range(MOST_TRIES):
        search.offer(prices, turn)
        gained = search.better(parts, prices)
        if gained is None:
            return parts
        parts, prices = gained
    return parts


class _Exchange:
    """Candidates, and the number of programs solved."""

    def __init__(self, pricer: Pricer, pool: list[Column], fits: Callable[[Parts], bool]) -> None:
        self.pricer, self.pool, self.fits = pricer, pool, fits
        self.known = {(column.rows.tobytes(), column.loads.tobytes()) for column in pool}
        self.tries = 0

    def offer(self, prices: Floats, turn: int) -> None:
        """Add what the pricer finds at these prices to the pool."""
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
        """Return (packing, prices) after an exchange that gains; None where none does."""
        total, start = self.pricer.total(parts), self.pricer.start()
        chosen = [column for _, column in parts]
        worth = [column.gain - float((prices[column.rows] * column.loads).sum()) for column in self.pool]
        order = sorted((place for place in range(len(worth)) if worth[place] > 1e-9), key=lambda p: (-worth[p], p))
        for place in order[:OTHERS]:
            entering = self.pool[place]
            for leaving in (None, *range(len(chosen) - 1, max(-1, len(chosen) - 1 - LIGHTEST), -1)):
                if self.tries == MOST_TRIES:
                    return None
                self.tries += 1
                kept = [column for at, column in enumerate(chosen) if at != leaving]
                packing, new_prices = priced(self.pricer, [*start, *kept, entering])
                if self.fits(packing) and self.pricer.total(packing) > total * GAINS:
                    return packing, new_prices
        return None
