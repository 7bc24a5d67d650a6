"""Times of several ways to do the same, taken in turns, so that what else a machine does meets all of them alike.

`in_turns` is the order of all measurements: rounds of blocks, one of every way, with any clock. `measure` times calls
of several ranks by it: a block is a few calls in a row after a barrier, enough of them that neither the clock nor the
way out of the barrier counts, and its time per call is that of the slowest rank.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.communicator import Communicator
from topocomm.operators.builtin import MAX

BLOCK_US = 1000.0
MOST_CALLS = 128
FEWEST_BLOCKS, MOST_BLOCKS = 20, 100
BUDGET_US = 200e3
"""Time for one way at one size, where no number of iterations is given."""


@dataclass(frozen=True)
class Pace:
    """How often to measure.

    Attributes:
        iterations: Timed blocks; None takes as many as fit in a fifth of a second, from 20 to 100.
        warmup: Calls that are not timed.
        calls: In a block; None takes as many as last a millisecond.
    """

    iterations: int | None = None
    warmup: int = 5
    calls: int | None = None


@dataclass(frozen=True)
class Timed:
    """One way.

    Attributes:
        run: Does it once.
        refill: Called before each block; what it does is not timed.
        finish: Called after the calls of each block, and timed with them: waits for what they have only begun.
    """

    run: Callable[[], object]
    refill: Callable[[], None] = lambda: None
    finish: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Times:
    """Times of one way; of several ranks those of the slowest.

    Attributes:
        us: Per call, one of every block.
        calls: Calls in a block.
    """

    us: Sequence[float] | NDArray[np.float64]
    calls: int = 1

    @property
    def mean_us(self) -> float:
        """What nccl-tests calls time."""
        return float(np.mean(self.us))

    def percentile_us(self, percent: float) -> float:
        """50 is the median."""
        return float(np.percentile(self.us, percent))

    @property
    def median_us(self) -> float:
        """The middle one."""
        return self.percentile_us(50)

    def __str__(self) -> str:
        """Median, and quartiles in brackets."""
        return f"{self.median_us:,.2f} ({self.percentile_us(25):,.2f} to {self.percentile_us(75):,.2f})"


def in_turns(
    ways: int, rounds: int, block_us: Callable[[int], float], goes_on: Callable[[int], bool] = lambda _: True
) -> NDArray[np.float64]:
    """Microseconds per call, [ways, rounds]: every round takes one block of every way, without Python's collector.

    Every round has the ways in another order, so that none always follows the same: what came before shows in the
    caches, and in how far apart ranks are.

    Args:
        ways: How many.
        rounds: How many.
        block_us: The clock: runs a block of the way with this index, and returns microseconds per call.
        goes_on: Called before each round with its number; where it says no there are no more.
    """
    us = np.zeros((rounds, ways))
    made = 0
    collecting = gc.isenabled()
    gc.disable()
    try:
        while made < rounds and goes_on(made):
            for index in np.random.default_rng(made).permutation(ways):
                us[made, index] = block_us(int(index))
            made += 1
    finally:
        if collecting:
            gc.enable()
    return us[:made].T


def block_us(way: Timed, calls: int) -> float:
    """Microseconds per call of a block, by this process's clock."""
    run = way.run
    began_ns = time.perf_counter_ns()
    for _ in range(calls):
        run()
    way.finish()
    return (time.perf_counter_ns() - began_ns) / calls / 1e3


def measure(comm: Communicator, ways: Sequence[Timed], pace: Pace) -> list[Times]:
    """Times of all ways in turns; collective."""
    calls, blocks = _plan_blocks(comm, ways, pace)
    us = in_turns(len(ways), blocks, lambda index: _refilled_block_us(comm, ways[index], calls[index]))
    slowest = comm.allreduce(np.ascontiguousarray(us), MAX)
    return [Times(row, count) for row, count in zip(slowest, calls, strict=True)]


def _plan_blocks(comm: Communicator, ways: Sequence[Timed], pace: Pace) -> tuple[list[int], int]:
    """Calls in a block of each way, and the number of blocks; the same on all ranks."""
    for way in ways:
        for _ in range(pace.warmup):
            way.refill()
            _block_us(comm, way, 1)
    calls = [pace.calls or 1] * len(ways)
    while pace.calls is None or pace.iterations is None:
        own_us = [_refilled_block_us(comm, way, count) for way, count in zip(ways, calls, strict=True)]
        blocks_us = (comm.allreduce(np.array(own_us), MAX) * calls).tolist()
        more = [us < BLOCK_US / 2 and count < MOST_CALLS for us, count in zip(blocks_us, calls, strict=True)]
        if pace.calls is not None or not any(more):
            break
        calls = [count * 2 if go_on else count for count, go_on in zip(calls, more, strict=True)]
    if pace.iterations is not None:
        return calls, pace.iterations
    return calls, int(min(max(BUDGET_US / max(blocks_us), FEWEST_BLOCKS), MOST_BLOCKS))


def _refilled_block_us(comm: Communicator, way: Timed, calls: int) -> float:
    way.refill()
    return _block_us(comm, way, calls)


def _block_us(comm: Communicator, way: Timed, calls: int) -> float:
    comm.barrier()
    return block_us(way, calls)
