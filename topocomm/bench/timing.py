"""Times of several methods, taken in turns, so that other load on the machine meets all of them alike.

`in_turns` orders all measurements: rounds of blocks, one block of every method, with any clock. `measure` times calls
of several ranks: a block is a run of calls after a barrier, long enough that clock and barrier do not count, and its
time per call is that of the slowest rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.communicator import Communicator
from topocomm.operators.builtin import MAX
from topocomm.planning.formats.plan_json import no_collection

BLOCK_US = 1000.0
MOST_CALLS = 128
FEWEST_BLOCKS, MOST_BLOCKS = 20, 100
BUDGET_US = 200e3
"""Time per method and size if no number of iterations is given."""


@dataclass(frozen=True)
class Pace:
    """Numbers of blocks and calls.

    Attributes:
        iterations: Timed blocks; None: as many as fit in BUDGET_US, from 20 to 100.
        warmup: Untimed calls before the first block.
        calls: Calls in a block; None: as many as take `block_us`.
        block_us: Microseconds. Ranks that share cores leave a barrier one after the other, and the last ones of a block
            come after what the first ones do next: there a block is long if it takes ten calls and more.
    """

    iterations: int | None = None
    warmup: int = 5
    calls: int | None = None
    block_us: float = BLOCK_US


@dataclass(frozen=True)
class Timed:
    """One method to time.

    Attributes:
        run: Runs the method once.
        refill: Called before each block, not timed.
        finish: Called after the calls of each block and timed with them: waits for asynchronous work.
    """

    run: Callable[[], object]
    refill: Callable[[], None] = lambda: None
    finish: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Times:
    """Times of one method, of the slowest rank.

    Attributes:
        us: Microseconds per call, one value a block.
        calls: Calls in a block.
    """

    us: Sequence[float] | NDArray[np.float64]
    calls: int = 1

    @property
    def mean_us(self) -> float:
        """Mean, which nccl-tests calls time."""
        return float(np.mean(self.us))

    def percentile_us(self, percent: float) -> float:
        """Return a percentile; 50 is the median."""
        return float(np.percentile(self.us, percent))

    @property
    def median_us(self) -> float:
        """Median."""
        return self.percentile_us(50)

    def __str__(self) -> str:
        """Median, and quartiles in brackets."""
        return f"{self.median_us:,.2f} ({self.percentile_us(25):,.2f} to {self.percentile_us(75):,.2f})"


def in_turns(
    methods: int, rounds: int, block_us: Callable[[int], float], goes_on: Callable[[int], bool] = lambda _: True
) -> NDArray[np.float64]:
    """Return microseconds per call, [methods, rounds], measured with Python's garbage collector off.

    Each round runs one block of every method, in another order, so that no method always follows the same one: its
    predecessor shows in the caches and in how far apart ranks are.

    Args:
        methods: Number of methods.
        rounds: Number of rounds.
        block_us: Runs a block of the method with this index, and returns microseconds per call.
        goes_on: Called before each round with its number; False ends the measurement.
    """
    us = np.zeros((rounds, methods))
    made = 0
    with no_collection():
        while made < rounds and goes_on(made):
            for index in np.random.default_rng(made).permutation(methods):
                us[made, index] = block_us(int(index))
            made += 1
    return us[:made].T


def block_us(method: Timed, calls: int) -> float:
    """Run a block and return microseconds per call by this process's clock."""
    run = method.run
    began_ns = time.perf_counter_ns()
    for _ in range(calls):
        run()
    method.finish()
    return (time.perf_counter_ns() - began_ns) / calls / 1e3


def measure(comm: Communicator, methods: Sequence[Timed], pace: Pace) -> list[Times]:
    """Time all methods in turns; collective."""
    calls, blocks = _plan_blocks(comm, methods, pace)
    us = in_turns(len(methods), blocks, lambda index: _refilled_block_us(comm, methods[index], calls[index]))
    slowest = comm.allreduce(np.ascontiguousarray(us), MAX)
    return [Times(row, count) for row, count in zip(slowest, calls, strict=True)]


def _plan_blocks(comm: Communicator, methods: Sequence[Timed], pace: Pace) -> tuple[list[int], int]:
    """Return the calls in a block of each method, and the number of blocks; the same on all ranks."""
    for method in methods:
        for _ in range(pace.warmup):
            _refilled_block_us(comm, method, 1)
    calls = [pace.calls or 1] * len(methods)
    while pace.calls is None or pace.iterations is None:
        own_us = [_refilled_block_us(comm, method, count) for method, count in zip(methods, calls, strict=True)]
        blocks_us = (comm.allreduce(np.array(own_us), MAX) * calls).tolist()
        more = [us < pace.block_us / 2 and count < MOST_CALLS for us, count in zip(blocks_us, calls, strict=True)]
        if pace.calls is not None or not any(more):
            break
        calls = [count * 2 if go_on else count for count, go_on in zip(calls, more, strict=True)]
    if pace.iterations is not None:
        return calls, pace.iterations
    return calls, int(min(max(BUDGET_US / max(blocks_us), FEWEST_BLOCKS), MOST_BLOCKS))


def _refilled_block_us(comm: Communicator, method: Timed, calls: int) -> float:
    method.refill()
    comm.barrier()
    return block_us(method, calls)
