"""Times of several ways to do the same, taken in turns, so that a machine's moods meet all of them alike.

A timed block is a few calls in a row after a barrier: enough of them that neither the clock nor the way out of the
barrier counts. Its time per call is that of the slowest rank.
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
    """

    iterations: int | None = None
    warmup: int = 5


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
    """Times of one way, slowest rank.

    Attributes:
        us: Per call, one of every block.
        calls: Calls in a block.
    """

    us: NDArray[np.float64]
    calls: int

    @property
    def mean_us(self) -> float:
        """What nccl-tests calls time."""
        return float(self.us.mean())

    def percentile_us(self, percent: float) -> float:
        """50 is the median."""
        return float(np.percentile(self.us, percent))


def measure(comm: Communicator, ways: Sequence[Timed], pace: Pace) -> list[Times]:
    """Times of all ways, block by block; collective.

    Every round of blocks has them in another order, so that none always follows the same: what came before shows in
    the caches, and in how far apart the ranks are.
    """
    calls, blocks = _plan_blocks(comm, ways, pace)
    us = np.zeros((len(ways), blocks))
    collecting = gc.isenabled()
    gc.disable()
    try:
        for block in range(blocks):
            for index in np.random.default_rng(block).permutation(len(ways)):
                us[index, block] = _refilled_block_us(comm, ways[index], calls[index])
    finally:
        if collecting:
            gc.enable()
    slowest = comm.allreduce(us, MAX)
    return [Times(row, count) for row, count in zip(slowest, calls, strict=True)]


def _plan_blocks(comm: Communicator, ways: Sequence[Timed], pace: Pace) -> tuple[list[int], int]:
    """Calls in a block of each way, and the number of blocks; the same on all ranks."""
    for way in ways:
        for _ in range(pace.warmup):
            way.refill()
            _block_us(comm, way, 1)
    calls = [1] * len(ways)
    while True:
        own_us = [_refilled_block_us(comm, way, count) for way, count in zip(ways, calls, strict=True)]
        blocks_us = (comm.allreduce(np.array(own_us), MAX) * calls).tolist()
        more = [us < BLOCK_US / 2 and count < MOST_CALLS for us, count in zip(blocks_us, calls, strict=True)]
        if not any(more):
            break
        calls = [count * 2 if go_on else count for count, go_on in zip(calls, more, strict=True)]
    if pace.iterations is not None:
        return calls, pace.iterations
    return calls, int(min(max(BUDGET_US / max(blocks_us), FEWEST_BLOCKS), MOST_BLOCKS))


def _refilled_block_us(comm: Communicator, way: Timed, calls: int) -> float:
    way.refill()
    return _block_us(comm, way, calls)


def _block_us(comm: Communicator, way: Timed, calls: int) -> float:
    run = way.run
    comm.barrier()
    began_ns = time.perf_counter_ns()
    for _ in range(calls):
        run()
    way.finish()
    return (time.perf_counter_ns() - began_ns) / calls / 1e3
