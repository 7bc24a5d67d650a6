"""Peak memory of a decode step, from nothing to the result, beside the paper's formulas for tree and ring.

Shyam et al., "Tree Attention" (2024), equations 8 and 9, in elements, with t the tokens of a rank, d the hidden size
and n_h the heads: ring 4 b t d + 2 b d, tree 2 b t d + 2 b d + 2 b n_h. Resident pages are counted: what is allocated
and never touched is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attention import ring_decode, tree_decode
from attention.decode.communicators import state_of
from decoding.decode_ways import Step
from decoding.peak import growth_bytes
from topocomm import MAX, Communicator

DIM = 128
HEADS = (16, 32)
DTYPE = torch.bfloat16
SMALL = 16
METHODS: dict[str, Callable[..., Any]] = {"tree": tree_decode, "ring": ring_decode}


def compare_memory(comm: Communicator, context: int) -> None:
    """Print peaks and the gap between ring and tree, for hidden sizes 2048 and 4096."""
    if comm.rank == 0:
        print(
            f"\n{context:,} tokens on {comm.size} ranks, bfloat16, a KV head per head, head dim {DIM}; MB: 10^6 bytes"
        )
        print(f"{'hidden':>6} {'':9} {'measured MB':>12} {'formula MB':>11} {'ratio':>7}")
    for heads in HEADS:
        measured = {name: peak_bytes(comm, name, heads, context) for name in METHODS}
        formula = {name: formula_bytes(name, heads, -(-context // comm.size)) for name in METHODS}
        for table in (measured, formula):
            table["ring-tree"] = table["ring"] - table["tree"]
        if comm.rank == 0:
            for name, one in measured.items():
                ratio = one / formula[name]
                print(f"{heads * DIM:>6} {name:9} {one / 1e6:12.1f} {formula[name] / 1e6:11.1f} {ratio:7.3f}")


def formula_bytes(method: str, heads: int, tokens: int) -> int:
    """Return the paper's formula for a batch of 1."""
    d = heads * DIM
    elements = 4 * tokens * d + 2 * d if method == "ring" else 2 * tokens * d + 2 * d + 2 * heads
    return elements * DTYPE.itemsize


def peak_bytes(comm: Communicator, method: str, heads: int, context: int) -> int:
    """Growth of the largest process while it makes q, K and V and does its first step; collective.

    A step of few tokens comes before: it loads, compiles and plans.
    """
    decode = METHODS[method]

    def step(tokens: int) -> object:
        parts = Step(*(torch.full((1, heads, n, DIM), 0.5, dtype=DTYPE) for n in (1, tokens, tokens)))
        return parts, decode(*parts, comm)

    step(SMALL)
    state_of(comm).clear()
    first, last = (rank * context // comm.size for rank in (comm.rank, comm.rank + 1))
    grown = growth_bytes(lambda: step(last - first))
    state_of(comm).clear()
    return int(comm.allreduce(np.array([grown]), MAX)[0])
