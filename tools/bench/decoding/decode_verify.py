"""What `verify=True` costs tree_decode: one call of 64 is verified, so calls are counted in whole sixty-fours."""

from __future__ import annotations

from functools import partial

from attention import tree_decode
from attention.decode.verification import EVERY
from decoding.decode_ways import Step
from topocomm import Communicator
from topocomm.bench.timing import Pace, Timed, measure

BLOCK = 16
"""Calls in a row before the other method's turn."""


def compare_verify(comm: Communicator, step: Step, calls: int) -> None:
    """Print means over `calls` calls of each, rounded up to a multiple of 64; collective."""
    calls = -(-calls // EVERY) * EVERY
    plain, watched, always = (partial(tree_decode, *step, comm, verify=verify) for verify in (False, True, 1))
    for _ in range(EVERY):  # sets up, compiles, and leaves the count at the beginning of a sixty-four
        watched()
    blocks = measure(comm, [Timed(plain), Timed(watched)], Pace(calls // BLOCK, warmup=0, calls=BLOCK))
    each = measure(comm, [Timed(plain), Timed(always)], Pace(EVERY // 4, warmup=0, calls=1))
    means_us = [one.mean_us for one in blocks]
    plain_us, verified_us = (one.median_us for one in each)
    if comm.rank == 0:
        print(
            f"\n{step.k.shape[2] * comm.size:,} tokens, {calls} calls of each in turns of {BLOCK}, us per call\n"
            f"mean without {means_us[0]:,.1f}, with verify=True {means_us[1]:,.1f}: "
            f"{means_us[1] / means_us[0] - 1:+.2%}\n"
            f"a verified call {verified_us:,.1f} beside {plain_us:,.1f} (medians of {EVERY // 4} in turns): one of "
            f"{EVERY} is {(verified_us / plain_us - 1) / EVERY:+.2%}"
        )
