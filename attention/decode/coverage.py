"""Whether the ranks of a sharded call hold every key once: none is on two of them, and none is missing in between."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attention.arrays import Inputs
from attention.gpu.placement import on_host
from attention.visibility import Masking, positions_of, present_keys
from topocomm import Communicator

Ints = NDArray[np.int64]
ENTRY, EXISTS, START, STOP = range(4)
"""Columns of ranges of consecutive positions: batch entry, whether the keys exist (1) or are masked (0), from where to
where."""


def key_ranges(function: str, inputs: Inputs, masking: Masking) -> Ints:
    """This rank's keys as ranges of consecutive positions, [ranges, 4]; entry 0 only where all entries are alike.

    What a GPU holds of positions, masks and lengths is waited for.

    Raises:
        OperatorError: There are not as many positions as keys.
    """
    if masking.kv_positions is None:
        return np.empty((0, 4), np.int64)
    batch, masking = len(inputs.q), Masking(*map(on_host, masking))
    positions = positions_of(function, "kv_positions", masking.kv_positions, batch, inputs.n).numpy()
    present = present_keys(function, batch, inputs.n, masking)
    entries = max(len(positions), 1 if present is None else len(present))
    found = []
    for entry in range(entries):
        keys = positions[entry % len(positions)]
        there = np.ones(len(keys), bool) if present is None else present[entry % len(present)].numpy()
        found += [_ranges(entry, exists, keys[there == exists]) for exists in (1, 0)]
    return np.concatenate(found)


def _ranges(entry: int, exists: int, positions: Ints) -> Ints:
    if (positions[1:] < positions[:-1]).any():
        positions = np.sort(positions)
    cuts = np.flatnonzero(positions[1:] - positions[:-1] != 1)
    ranges = np.empty((len(cuts) + 1 if len(positions) else 0, 4), np.int64)
    if len(ranges):
        ranges[:, :START] = entry, exists
        ranges[:, START] = positions[np.r_[0, cuts + 1]]
        ranges[:, STOP] = positions[np.r_[cuts, len(positions) - 1]] + 1
    return ranges


def fault(comm: Communicator, inputs: Inputs, mine: Ints) -> str | None:
    """Which position lies on two ranks, or on none though a query sees it and keys before and behind it; collective.

    Keys that are masked count as missing nowhere and as double nowhere.

    Args:
        comm: The ranks.
        inputs: The call.
        mine: `key_ranges` of this rank.
    """
    told = comm.allgather_bytes(np.array([len(mine), mine[:, ENTRY].max(initial=0) > 0], np.int64).view(np.uint8))
    counts, by_entry = np.stack([one.view(np.int64) for one in told]).T
    if not counts.max():
        return None
    padded = np.zeros((counts.max(), 4), np.int64)
    padded[: len(mine)] = mine
    gathered = [one.view(np.int64).reshape(-1, 4) for one in comm.allgather_bytes(padded.view(np.uint8).reshape(-1))]
    ranges = [one[:count] for one, count in zip(gathered, counts, strict=True)]
    for entry in range(len(inputs.q) if by_entry.any() else 1):
        own = [one[one[:, ENTRY] == entry] if mixed else one for one, mixed in zip(ranges, by_entry, strict=True)]
        ranks = np.repeat(np.arange(comm.size), [len(one) for one in own])
        found = _twice(np.concatenate(own), ranks) or _nowhere(np.concatenate(own), *_seen(inputs, entry))
        if found:
            return found if not by_entry.any() else f"batch entry {entry}: {found}"
    return None


def _seen(inputs: Inputs, entry: int) -> tuple[int, int]:
    """From which position to which any query of the entry sees keys."""
    if inputs.visibility is None or not inputs.spec.needs_positions:
        return np.iinfo(np.int64).min, np.iinfo(np.int64).max
    low, high = (x[entry % len(x)] for x in (inputs.visibility.low, inputs.visibility.high))
    return (int(low.min()), int(high.max())) if len(low) else (0, -1)


def _twice(ranges: Ints, ranks: NDArray[np.intp]) -> str | None:
    there = ranges[:, EXISTS] == 1
    ranges, ranks = ranges[there], ranks[there]
    order = np.lexsort((ranges[:, STOP], ranges[:, START]))
    ranges, ranks = ranges[order], ranks[order]
    upto = np.maximum.accumulate(ranges[:, STOP])
    over = np.flatnonzero(ranges[1:, START] < upto[:-1])
    if not len(over):
        return None
    at = int(over[0])
    holder = int(ranks[: at + 1][ranges[: at + 1, STOP].argmax()])
    both = sorted({holder, int(ranks[at + 1])})
    where = f"ranks {both}" if len(both) > 1 else f"rank {both[0]} twice"
    return f"the key at position {int(ranges[at + 1, START])} is on {where}: it would count twice; give it to one"


def _nowhere(ranges: Ints, low: int, high: int) -> str | None:
    there = ranges[ranges[:, EXISTS] == 1]
    if not len(there):
        return None
    low, high = max(low, int(there[:, START].min())), min(high, int(there[:, STOP].max()) - 1)
    ranges = ranges[np.argsort(ranges[:, START], kind="stable")]
    upto = np.maximum.accumulate(ranges[:, STOP])
    starts, stops = np.maximum(upto[:-1], low), np.minimum(ranges[1:, START], high + 1)
    gaps = np.flatnonzero(starts < stops)
    if not len(gaps):
        return None
    first, last = int(starts[gaps[0]]), int(stops[gaps[0]]) - 1
    what = f"the key at position {first} is" if first == last else f"the keys at positions {first} to {last} are"
    return (
        f"{what} on no rank, though keys before and behind are; give every key to one rank, and list keys that are to "
        "be left out with kv_mask False"
    )
