"""Several ways to do the same on a card, timed in turns, with medians and quartiles."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from card import Card, Run

FEWEST_ROUNDS = 3
MOST_RUNS = 512
LONG_US = 1e5
"""A run that takes so long is not measured without being counted."""


class Way(NamedTuple):
    """One way.

    Attributes:
        run: Does it.
        calls: How many calls one run makes: times are per call.
    """

    run: Run
    calls: int = 1


@dataclass(frozen=True)
class Times:
    """Microseconds per call, one of every round."""

    us: Sequence[float]

    def at(self, percent: float) -> float:
        """A percentile."""
        return float(np.percentile(self.us, percent))

    @property
    def median_us(self) -> float:
        """The middle one."""
        return self.at(50)

    def __str__(self) -> str:
        """Median, and quartiles in brackets."""
        return f"{self.median_us:,.2f} ({self.at(25):,.2f} to {self.at(75):,.2f})"


class Limit:
    """So many seconds from now.

    Attributes:
        until_s: Its end, of `time.monotonic()`, which all processes of a machine share.
    """

    def __init__(self, seconds: float) -> None:
        self.until_s = time.monotonic() + seconds

    @classmethod
    def until(cls, until_s: float) -> Limit:
        """That of another process, whose start took time too."""
        return cls(until_s - time.monotonic())

    @property
    def left_s(self) -> float:
        """What is left, 0 or more."""
        return max(0.0, self.until_s - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.left_s == 0.0


def in_turns(card: Card, ways: Mapping[str, Way], limit: Limit) -> dict[str, Times]:
    """Times of all ways: rounds of blocks, each in another order; fewer rounds, but 3, where the limit comes.

    A block is as many runs as take `card.sizes.block_us`, after one that is not timed. The block that says so is the
    first round of a way whose single run is long.
    """
    found = {name: _calibrated(card, way) for name, way in ways.items()}
    runs = {name: one[0] for name, one in found.items()}
    us = {name: [one[1] / ways[name].calls] if one[1] >= LONG_US else [] for name, one in found.items()}
    names = list(ways)
    for turn in range(card.sizes.rounds):
        if turn >= FEWEST_ROUNDS and limit.over:
            break
        for index in np.random.default_rng(turn).permutation(len(names)):
            name = names[index]
            if len(us[name]) <= turn:
                us[name].append(_block_us(card, ways[name], runs[name]) / ways[name].calls)
    return {name: Times(found) for name, found in us.items()}


def _calibrated(card: Card, way: Way) -> tuple[int, float]:
    """The runs of a block, and microseconds a run."""
    way.run()
    runs = 1
    while True:
        us = _block_us(card, way, runs)
        if us * runs >= card.sizes.block_us or runs >= MOST_RUNS:
            return runs, us
        runs = min(MOST_RUNS, max(2 * runs, int(card.sizes.block_us / max(us, 1e-3) / 2)))


def _block_us(card: Card, way: Way, runs: int) -> float:
    """Per run."""
    watch = card.stopwatch()
    card.synchronize()
    watch.start()
    for _ in range(runs):
        way.run()
    watch.stop()
    return watch.us() / runs
