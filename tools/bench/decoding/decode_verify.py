"""What `verify=True` costs tree_decode: one call of 64 is verified, so calls are counted in whole sixty-fours."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from decode_ways import Step, Way

from attention import tree_decode
from attention.verifying import EVERY
from topocomm import MAX, Communicator

BLOCK = 16
"""Calls in a row, before it is the other's turn."""


def compare_verify(comm: Communicator, step: Step, calls: int) -> None:
    """Print means over so many calls of each, rounded up to whole sixty-fours; collective."""
    calls = -(-calls // EVERY) * EVERY
    plain, watched, always = (partial(tree_decode, *step, comm, verify=verify) for verify in (False, True, 1))
    for _ in range(EVERY):  # sets up, compiles, and leaves the count at the beginning of a sixty-four
        watched()
    blocks_us = [(_block_us(comm, plain, BLOCK), _block_us(comm, watched, BLOCK)) for _ in range(calls // BLOCK)]
    each_us = [(_block_us(comm, plain, 1), _block_us(comm, always, 1)) for _ in range(EVERY // 4)]
    means_us = np.mean(blocks_us, axis=0)
    plain_us, verified_us = np.median(each_us, axis=0)
    if comm.rank == 0:
        print(
            f"\n{step.k.shape[2] * comm.size:,} tokens, {calls} calls of each in turns of {BLOCK}, us per call\n"
            f"mean without {means_us[0]:,.1f}, with verify=True {means_us[1]:,.1f}: "
            f"{means_us[1] / means_us[0] - 1:+.2%}\n"
            f"a verified call {verified_us:,.1f} beside {plain_us:,.1f} (medians of {len(each_us)} in turns): one of "
            f"{EVERY} is {(verified_us / plain_us - 1) / EVERY:+.2%}"
        )


def _block_us(comm: Communicator, way: Way, calls: int) -> float:
    """Per call, of the slowest rank."""
    comm.barrier()
    began_ns = time.perf_counter_ns()
    for _ in range(calls):
        way()
    mine_us = (time.perf_counter_ns() - began_ns) / calls / 1e3
    return float(comm.allreduce(np.array([mine_us]), MAX)[0])
