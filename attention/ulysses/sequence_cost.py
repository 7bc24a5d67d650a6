"""What attention over a sharded sequence is to take, by rings of every size: from heads alone to the ring alone.

The times of all-to-alls and of hops are the planner's for the machine, with all groups and rings at once. How fast a
rank computes and copies is assumed as below on every machine; it matters near the point where two cost the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2

import torch

from attention.ulysses.head_grid import HeadGrid
from attention.ulysses.head_rows import HeadRows
from topocomm import Communicator, Topology, plan

HOP_US = {"cpu": 50.0, "gpu": 20.0}
"""Another call of the kernel, and what begins and ends a message."""
FLOP_PER_US = {"cpu": 5e4, "gpu": 1e8}
"""Of attention: a core or two, and a tenth of an H100's peak (989 Tflop/s in bfloat16, its datasheet). Not measured."""
MERGED_BYTES_PER_US = {"cpu": 1e4, "gpu": 1e6}
"""Of partials, each of which a merge reads twice and writes once; and of rows, which are packed and unpacked."""
WORD_BYTES = 4
"""Row of the planner's default operator, in which parts are counted."""


@dataclass(frozen=True)
class SequenceShape:
    """A forward pass of attention over one sequence, as many tokens on every rank.

    Attributes:
        tokens: On all ranks together, 1 or more.
        batch: Sequences.
        heads, kv_heads: Of queries, and of keys.
        d, d_v: Width of a query's head, and of a value's.
        dtype: Of q, k and v.
        place: "cpu" or "gpu".
        causal: Half of all pairs are seen.
        balanced: Whether tokens are dealt so that the ranks of a ring have as much to do, as in zigzag.
    """

    tokens: int
    batch: int
    heads: int
    kv_heads: int
    d: int
    d_v: int
    dtype: torch.dtype
    place: str
    causal: bool = True
    balanced: bool = True


@dataclass(frozen=True)
class SequenceCost:
    """What a pass is to take on the rank with most to do, with rings of one size.

    Attributes:
        ring: Ranks of a ring: 1, heads alone; as many as there are ranks, the ring alone.
        alltoall_us: Both all-to-alls, and packing and unpacking.
        attention_us: Of the heads and queries of the rank.
        hops_us: Messages of the ring, which move while the rank attends what it has.
        steps_us: What hops cost beside their messages.
    """

    ring: int
    alltoall_us: float
    attention_us: float
    hops_us: float
    steps_us: float

    @property
    def total_us(self) -> float:
        """All together: hops hide behind the attention to all shards but the last, or the other way round."""
        hidden_us = self.attention_us * (self.ring - 1) / self.ring
        return self.alltoall_us + self.attention_us - hidden_us + max(hidden_us, self.hops_us) + self.steps_us


def sequence_costs(topology: Topology, ranks: Sequence[str], shape: SequenceShape) -> list[SequenceCost]:
    """Return the cost for rings of every size that divides the number of ranks, ascending.

    Plans are made for a power of two of tokens a rank, and their times taken in proportion: so lengths share them.

    Args:
        topology: The machine.
        ranks: Endpoint id of every rank.
        shape: Of the pass.
    """
    machine = _Machine(topology, tuple(ranks))
    return [_cost(machine, shape, ring) for ring in range(1, len(ranks) + 1) if len(ranks) % ring == 0]


def best_cost(comm: Communicator, shape: SequenceShape) -> SequenceCost:
    """Return the least cost on this machine, the same on every rank; of equals that with the smallest ring."""
    return min(sequence_costs(comm.topology, comm.places, shape), key=lambda cost: cost.total_us)


@dataclass(frozen=True, eq=False)
class _Machine:
    """A topology and the places of ranks, as a key."""

    topology: Topology
    ranks: tuple[str, ...]

    def __hash__(self) -> int:
        return hash((self.topology.digest, self.ranks))

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Machine) and self.topology.digest == other.topology.digest
        return same and isinstance(other, _Machine) and self.ranks == other.ranks


def _cost(machine: _Machine, shape: SequenceShape, ring: int) -> SequenceCost:
    grid = HeadGrid(len(machine.ranks), ring, shape.heads, shape.kv_heads)
    rows = HeadRows(grid, shape.batch, shape.d, shape.d_v, shape.dtype, shape.dtype, False, torch.device("cpu"))
    own = ceil(shape.tokens / grid.ranks)
    most_heads = max(stop - first for first, stop in map(grid.heads_of, range(grid.width)))
    pairs = shape.tokens**2 / (2 if shape.causal else 1) * shape.batch * most_heads / ring
    uneven = 2 - 1 / ring if shape.causal and not shape.balanced else 1.0
    merged_bytes = own * grid.width * shape.batch * most_heads * (shape.d_v + 1) * 4
    step_us = HOP_US[shape.place] + 3 * merged_bytes / MERGED_BYTES_PER_US[shape.place]
    return SequenceCost(
        ring,
        0.0 if grid.width == 1 else _alltoall_us(machine, shape, rows, own),
        uneven * 2 * pairs * (shape.d + shape.d_v) / FLOP_PER_US[shape.place],
        (ring - 1) * _hop_us(machine, rows, own),
        (ring - 1) * step_us,
    )


def _alltoall_us(machine: _Machine, shape: SequenceShape, rows: HeadRows, own: int) -> float:
    """Both, each with two copies on either side."""
    grid = rows.grid
    there, back = (tuple(16 * layout.pieces for layout in layouts) for layouts in (rows.inputs(), rows.results()))

    def between(source: int, target: int) -> int:
        return there[grid.place(target)] if grid.group(source) == grid.group(target) else 0

    def returning(source: int, target: int) -> int:
        return between(target, source) and back[grid.place(source)]

    copied_bytes = own * (sum(there) + sum(back) + grid.width * (max(there) + max(back)))
    copies_us = 2 * copied_bytes / MERGED_BYTES_PER_US[shape.place]
    return sum(_planned_us(machine, _parts(grid, one), own) for one in (between, returning)) + copies_us


def _hop_us(machine: _Machine, rows: HeadRows, own: int) -> float:
    """Keys and values of a group's tokens, from every rank to the one at its place in the next group."""
    grid = rows.grid
    if grid.ring == 1:
        return 0.0
    head_bytes = grid.width * rows.batch * (rows.d + rows.d_v) * rows.of_kv.itemsize
    sizes = [(stop - first) * head_bytes for first, stop in map(grid.kv_heads_of, range(grid.width))]

    def ahead(source: int, target: int) -> int:
        return sizes[grid.place(source)] if target == (source + grid.width) % grid.ranks else 0

    return _planned_us(machine, _parts(grid, ahead), own)


def _parts(grid: HeadGrid, token_bytes: Callable[[int, int], int]) -> tuple[int, ...]:
    ranks = range(grid.ranks)
    return tuple(token_bytes(source, target) for source in ranks for target in ranks)


def _planned_us(machine: _Machine, token_bytes: tuple[int, ...], own: int) -> float:
    """Of so many bytes from each rank to each for every token of a rank."""
    planned = 1 << ceil(log2(max(own, 1)))
    return _exchange_us(machine, tuple(-(-x * planned // WORD_BYTES) for x in token_bytes)) * own / planned


@lru_cache(maxsize=256)
def _exchange_us(machine: _Machine, words: tuple[int, ...]) -> float:
    """Time of an all-to-all with so many words from each rank to each."""
    count = len(machine.ranks)
    most = max(sum(words[rank * count : (rank + 1) * count]) for rank in range(count))
    if not most:
        return 0.0
    payload_bytes = most * WORD_BYTES
    made = plan(machine.topology, "alltoall", payload_bytes=payload_bytes, ranks=machine.ranks, parts=words)
    return float(made.predicted_us)
