"""What the ranks of a sharded call must have alike, checked once for every kind of call."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention.decode.communicators import state_of
from attention.decode.coverage import fault, key_ranges
from attention.decode.sharded import ShardedCall
from attention.gpu.placement import capturing, on_gpu
from topocomm import MismatchError, OperatorError

RECORD_BYTES = 1024
"""Of the text that each rank tells; the figures of long specs may be cut."""


def agree_once(function: str, call: ShardedCall, choices: tuple[tuple[str, str], ...] = ()) -> None:
    """Compare heads, dims, dtypes, the spec and other choices over all ranks; collective at the first call of a kind.

    Where positions are given, every key must lie on one rank, see `attention.decode.coverage`.

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
    positions = "none" if masking.kv_positions is None else "given"
    memory = "a GPU's" if on_gpu(inputs.q) else "the host's"
    key = (function, heads, kv_heads, d, d_v, inputs.q.dtype, inputs.k.dtype, memory, inputs.spec, choices, positions)
    agreed: set[Any] = state_of(comm).setdefault("agreed", set())
    if key in agreed:
        return
    if capturing(inputs.q.device):
        raise OperatorError(
            f"{function}: the first call of a kind is agreed upon by the ranks, which no CUDA graph records; make it "
            "once before the graph is captured"
        )
    mine = key_ranges(function, inputs, masking)
    facts = {
        "heads": heads,
        "kv_heads": kv_heads,
        "d": d,
        "d_v": d_v,
        "dtype of q": inputs.q.dtype,
        "dtype of k and v": inputs.k.dtype,
        **dict(choices),
        "memory": memory,
        "kv_positions": positions,
        "spec": inputs.spec,
    }
    text = "\n".join(f"{name} {value}" for name, value in facts.items()).encode()[:RECORD_BYTES]
    record = np.zeros(RECORD_BYTES, np.uint8)
    record[: len(text)] = np.frombuffer(text, np.uint8)
    told = [bytes(one).rstrip(b"\0").decode(errors="replace").split("\n") for one in comm.allgather_bytes(record)]
    differing = [rank for rank, one in enumerate(told) if one != told[0]]
    if differing:
        pairs = zip(told[0], told[differing[0]], strict=False)
        first, other = next((a, b) for a, b in pairs if a != b)
        raise MismatchError(
            f"rank {comm.rank}: {function}: ranks {differing} differ from rank 0: rank 0 has {first}, rank "
            f"{differing[0]} has {other}; all must call it with the same heads, dims, dtypes, spec and choices"
        )
    wrong = fault(comm, inputs, mine)
    if wrong is not None:
        raise MismatchError(f"rank {comm.rank}: {function}: {wrong}")
    agreed.add(key)
