"""Several methods on a card, timed in turns by the card's own clock.

topocomm.bench.timing has the order of the turns. What is here beside it: blocks between two points of a stream, their
length found by one process alone, and an end in time, since a card is lent by the minute.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from topocomm.bench import timing
from topocomm.bench.timing import Times

if TYPE_CHECKING:
    from card import Card, Run

FEWEST_ROUNDS = 3
MOST_RUNS = 512
LONG_US = 1e5
"""Microseconds above which the untimed first run of a block counts as a measurement."""


class Way(NamedTuple):
    """One method.

    Attributes:
        run: Runs it.
        calls: Calls in one run; times are per call.
    """

    run: Run
    calls: int = 1


class Limit:
    """A deadline, given in seconds from now.

    Attributes:
        until_s: The deadline by `time.monotonic()`, which all processes of a machine share.
    """

    def __init__(self, seconds: float) -> None:
        self.until_s = time.monotonic() + seconds

    @classmethod
    def until(cls, until_s: float) -> Limit:
        """Return the deadline given by another process."""
        return cls(until_s - time.monotonic())

    @property
    def left_s(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self.until_s - time.monotonic())

    @property
    def over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.left_s == 0.0


def in_turns(card: Card, ways: Mapping[str, Way], limit: Limit) -> dict[str, Times]:
    """Time all methods in rounds of blocks, each in another order; fewer rounds, at least 3, near the deadline.

    A block is as many runs as take `card.sizes.block_us`, after one that is not timed. The block that says so is the
    first round of a way whose single run is long.
    """
    found = {name: _calibrated(card, way) for name, way in ways.items()}
    runs = {name: one[0] for name, one in found.items()}
    counted = {name: us / ways[name].calls for name, (_, us) in found.items() if us >= LONG_US}
    names = list(ways)

    def block_us(index: int) -> float:
        name = names[index]
        return counted.pop(name, None) or _block_us(card, ways[name], runs[name]) / ways[name].calls

    us = timing.in_turns(len(names), card.sizes.rounds, block_us, lambda turn: turn < FEWEST_ROUNDS or not limit.over)
    return {name: Times(one.tolist()) for name, one in zip(names, us, strict=True)}


def _calibrated(card: Card, way: Way) -> tuple[int, float]:
    """Return the runs of a block and microseconds per run."""
    way.run()
    runs = 1
    while True:
        us = _block_us(card, way, runs)
        if us * runs >= card.sizes.block_us or runs >= MOST_RUNS:
            return runs, us
        runs = min(MOST_RUNS, max(2 * runs, int(card.sizes.block_us / max(us, 1e-3) / 2)))


def _block_us(card: Card, way: Way, runs: int) -> float:
    """Return microseconds per run."""
    watch = card.stopwatch()
    card.synchronize()
    watch.start()
    for _ in range(runs):
        way.run()
    watch.stop()
    return watch.us() / runs
