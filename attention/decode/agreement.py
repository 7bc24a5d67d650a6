"""Agreement of the ranks of a sharded call, once a kind: equal arguments, and every key on one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention.arrays import Inputs
from attention.decode.communicators import state_of
from attention.decode.sharded import ShardedCall
from attention.gpu.placement import capturing, on_gpu, on_host
from attention.visibility import Masking, positions_of, present_keys
from topocomm import Communicator, MismatchError, OperatorError

RECORD_BYTES = 1024
"""Length of the text that each rank sends; the figures of long specs may be cut."""
Ints = NDArray[np.int64]
ENTRY, EXISTS, START, STOP = range(4)
"""Columns of ranges of consecutive positions: batch entry, whether the keys exist (1) or are masked (0), first
position, and the one after the last."""


def agree_once(function: str, call: ShardedCall, choices: tuple[tuple[str, str], ...] = ()) -> None:
    """Compare heads, dims, dtypes, the spec and other choices over all ranks; collective at the first call of a kind.

    Where positions are given, every key must lie on one rank.

    Raises:
        OperatorError: A CUDA graph is being captured.
        MismatchError: Ranks differ, or a key is on two ranks or on none; on every rank. What differs only
            later, on some rank alone, is found by a limit of time: that rank waits for an exchange of which the others
            know nothing.
    """
    comm, inputs, masking = call.comm, call.inputs, call.options.masking
    if comm.size == 1:
        return
    _, heads, _, d = inputs.q.shape
    _, kv_heads, _, d_v = inputs.v.shape
    facts = {
        "heads": heads,
        "kv_heads": kv_heads,
        "d": d,
        "d_v": d_v,
        "dtype of q": inputs.q.dtype,
        "dtype of k and v": inputs.k.dtype,
        **dict(choices),
        "memory": "a GPU's" if on_gpu(inputs.q) else "the host's",
        "kv_positions": "none" if masking.kv_positions is None else "given",
        "spec": inputs.spec,
    }
    key = function, *facts.items()
    agreed: set[Any] = state_of(comm).setdefault("agreed", set())
    if key in agreed:
        return
    if capturing(inputs.q.device):
        raise OperatorError(
            f"{function}: the first call of a kind is agreed upon by the ranks, which no CUDA graph records; make it "
            "once before the graph is captured"
        )
    own = key_ranges(function, inputs, masking)
    text = "\n".join(f"{name} {value}" for name, value in facts.items()).encode()[:RECORD_BYTES]
    record = np.zeros(RECORD_BYTES, np.uint8)
    record[: len(text)] = np.frombuffer(text, np.uint8)
    texts = [bytes(x).rstrip(b"\0").decode(errors="replace").split("\n") for x in comm.allgather_bytes(record)]
    differing = [rank for rank, lines in enumerate(texts) if lines != texts[0]]
    if differing:
        pairs = zip(texts[0], texts[differing[0]], strict=False)
        first, other = next((a, b) for a, b in pairs if a != b)
        raise MismatchError(
            f"rank {comm.rank}: {function}: ranks {differing} differ from rank 0: rank 0 has {first}, rank "
            f"{differing[0]} has {other}; all must call it with the same heads, dims, dtypes, spec and choices"
        )
    fault = coverage_fault(comm, inputs, own)
    if fault is not None:
        raise MismatchError(f"rank {comm.rank}: {function}: {fault}")
    agreed.add(key)


def key_ranges(function: str, inputs: Inputs, masking: Masking) -> Ints:
    """Return this rank's keys as ranges of consecutive positions, [ranges, 4]; entry 0 only where all are alike.

    What a GPU holds of positions, masks and lengths is waited for.

    Raises:
        OperatorError: There are not as many positions as keys.
    """
    if masking.kv_positions is None:
        return np.empty((0, 4), np.int64)
    batch, masking = len(inputs.q), Masking(*map(on_host, masking))
    positions = positions_of(function, "kv_positions", masking.kv_positions, batch, inputs.n).numpy()
    present = present_keys(function, batch, inputs.n, masking)
    parts = []
    for entry in range(max(len(positions), 1 if present is None else len(present))):
        keys = positions[entry % len(positions)]
        exists = np.ones(len(keys), bool) if present is None else present[entry % len(present)].numpy()
        parts += [_ranges(entry, flag, keys[exists == flag]) for flag in (1, 0)]
    return np.concatenate(parts)


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


def coverage_fault(comm: Communicator, inputs: Inputs, own: Ints) -> str | None:
    """Say which position lies on two ranks, or on none though queries see it between other keys; None; collective.

    Keys that are masked count as missing nowhere and as double nowhere. `own` are the `key_ranges` of this rank.
    """
    heads = comm.allgather_bytes(np.array([len(own), own[:, ENTRY].max(initial=0) > 0], np.int64).view(np.uint8))
    counts, by_entry = np.stack([x.view(np.int64) for x in heads]).T
    if not counts.max():
        return None
    padded = np.zeros((counts.max(), 4), np.int64)
    padded[: len(own)] = own
    gathered = [x.view(np.int64).reshape(-1, 4) for x in comm.allgather_bytes(padded.view(np.uint8).reshape(-1))]
    ranges = [x[:count] for x, count in zip(gathered, counts, strict=True)]
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max  # what any query of the entry may see
    for entry in range(len(inputs.q) if by_entry.any() else 1):
        of_ranks = [x[x[:, ENTRY] == entry] if mixed else x for x, mixed in zip(ranges, by_entry, strict=True)]
        ranks = np.repeat(np.arange(comm.size), [len(x) for x in of_ranks])
        together = np.concatenate(of_ranks)
        if inputs.visibility is not None and inputs.spec.needs_positions:
            lows, highs = (x[entry % len(x)] for x in (inputs.visibility.low, inputs.visibility.high))
            low, high = (int(lows.min()), int(highs.max())) if len(lows) else (0, -1)
        fault = _double_key(together, ranks) or _missing_key(together, low, high)
        if fault:
            return fault if not by_entry.any() else f"batch entry {entry}: {fault}"
    return None


def _double_key(ranges: Ints, ranks: NDArray[np.intp]) -> str | None:
    exists = ranges[:, EXISTS] == 1
    ranges, ranks = ranges[exists], ranks[exists]
    order = np.lexsort((ranges[:, STOP], ranges[:, START]))
    ranges, ranks = ranges[order], ranks[order]
    upto = np.maximum.accumulate(ranges[:, STOP])
    over = np.flatnonzero(ranges[1:, START] < upto[:-1])
    if not len(over):
        return None
    at = int(over[0])
    holder = int(ranks[: at + 1][ranges[: at + 1, STOP].argmax()])
    both = sorted({holder, int(ranks[at + 1])})
    holders = f"ranks {both}" if len(both) > 1 else f"rank {both[0]} twice"
    return f"the key at position {int(ranges[at + 1, START])} is on {holders}: it would count twice; give it to one"


def _missing_key(ranges: Ints, low: int, high: int) -> str | None:
    existing = ranges[ranges[:, EXISTS] == 1]
    if not len(existing):
        return None
    low, high = max(low, int(existing[:, START].min())), min(high, int(existing[:, STOP].max()) - 1)
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
