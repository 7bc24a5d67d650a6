"""Allreduce in canonical order: one tree over virtual shards, whatever the ranks and the layout.

Every rank contributes the largest nodes of the tree that its shards fill, one slot each. Ranks own neighbouring ranges,
so nodes of neighbouring ranks fold into the largest nodes of both ranges: a message has at most 2 log2 V slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.algorithms.binomial import spread
from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.schedule.canonical_tree import Node, canonical_nodes, canonical_split
from topocomm.planning.schedule.schedule import Schedule, split_rows
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder

Held = dict[Node, int]
"""Slots of one rank and chunk, by node."""


def flat_canonical(shards: Sequence[int], rows: int) -> Schedule:
    """Every rank sends its nodes to all and folds the rest of the tree: P-1 one-port rounds."""
    ranks = len(shards) - 1
    build, held = _begin(shards, ((0, rows),))
    gathered = [dict(own) for own in held]
    for step in range(1, ranks):
        for rank in range(ranks):
            target = (rank + step) % ranks
            gathered[target] |= _send(build, step - 1, rank, held[rank], target)
    for rank in range(ranks):
        build.output(rank, _fold_all(build, max(ranks - 2, 0), rank, gathered[rank], shards[-1]))
    return build.build()


def direct_canonical(shards: Sequence[int], rows: int) -> Schedule:
    """Every chunk's nodes to its owner, which folds the rest of the tree and sends it to all: 2(P-1) rounds."""
    ranks = len(shards) - 1
    build, held = _begin(shards, split_rows(rows, min(ranks, rows) if rows else ranks))
    last = max(ranks - 2, 0)
    for owner in range(len(build.chunks)):  # of the chunk of this index
        gathered = dict(held[owner])
        for step in range(1, ranks):
            source = (owner - step) % ranks
            gathered |= _send(build, step - 1, source, held[source], owner, chunk=owner)
        slot = _fold_all(build, last, owner, gathered, shards[-1], chunk=owner)
        build.output(owner, slot, chunk=owner)
        for step in range(1, ranks):
            target = (owner + step) % ranks
            build.output(target, build.send(last + step, owner, slot, target, chunk=owner), chunk=owner)
    return build.build()


def binomial_canonical(shards: Sequence[int], rows: int) -> Schedule:
    """Reduce to rank 0, then broadcast: 2 ceil(log2 P) rounds, 2(P-1) messages."""
    ranks = len(shards) - 1
    build, held = _begin(shards, ((0, rows),))
    distance, round_ = 1, 0
    while distance < ranks:
        for rank in range(0, ranks - distance, 2 * distance):
            far = rank + distance
            held[rank] |= _send(build, round_, far, held[far], rank)
            end = min(far + distance, ranks)
            held[rank] = _fold(build, round_, rank, held[rank], (shards[rank], shards[end], shards[-1]))
        distance, round_ = 2 * distance, round_ + 1
    slots, _ = spread(build, list(range(ranks)), held[0][0, shards[-1]], root=0, first_round=round_)
    for rank in range(ranks):
        build.output(rank, slots[rank])
    return build.build()


def doubling_canonical(shards: Sequence[int], rows: int) -> Schedule:
    """Partners exchange their nodes: floor(log2 P) rounds, two more where P is not a power of two."""
    ranks = len(shards) - 1
    build, held = _begin(shards, ((0, rows),))
    size = 1 << (ranks.bit_length() - 1)
    surplus = ranks - size
    core = [*range(0, 2 * surplus, 2), *range(2 * surplus, ranks)]
    starts = [*core, ranks]  # position p stands for the ranks starts[p] to starts[p + 1]
    for rank in core[:surplus]:
        held[rank] |= _send(build, 0, rank + 1, held[rank + 1], rank)
        held[rank] = _fold(build, 0, rank, held[rank], (shards[rank], shards[rank + 2], shards[-1]))
    round_, distance = int(bool(surplus)), 1
    while distance < size:
        arrived = [_send(build, round_, core[p ^ distance], held[core[p ^ distance]], core[p]) for p in range(size)]
        for position, rank in enumerate(core):
            first = position & ~(2 * distance - 1)
            low, high = shards[starts[first]], shards[starts[first + 2 * distance]]
            held[rank] = _fold(build, round_, rank, held[rank] | arrived[position], (low, high, shards[-1]))
        round_, distance = round_ + 1, 2 * distance
    for position, rank in enumerate(core):
        slot = held[rank][0, shards[-1]]
        build.output(rank, slot)
        if position < surplus:
            build.output(rank + 1, build.send(round_, rank, slot, rank + 1))
    return build.build()


def relayed_canonical(shards: Sequence[int], rows: int, hub: int, gathering: Gossip, spreading: Gossip) -> Schedule:
    """Return an allreduce in which one rank folds all nodes; ranks on the way relay.

    Args:
        shards: Starts of the ranges of the ranks, and the number of shards.
        rows: Rows of the payload.
        hub: The rank that folds.
        gathering: Gossip from all ranks to the hub.
        spreading: Gossip from the hub to all ranks.
    """
    build, held = _begin(shards, ((0, rows),))
    for round_, messages in enumerate(gathering):
        for src, dst in messages:
            held[dst] |= _send(build, round_, src, held[src], dst)
    slots = {hub: _fold_all(build, max(len(gathering) - 1, 0), hub, held[hub], shards[-1])}
    for round_, messages in enumerate(spreading, start=len(gathering)):
        for src, dst in messages:
            slots[dst] = build.send(round_, src, slots[src], dst)
    for rank in range(len(shards) - 1):
        build.output(rank, slots[rank])
    return build.build()


def _begin(shards: Sequence[int], chunks: tuple[tuple[int, int], ...]) -> tuple[ScheduleBuilder, list[Held]]:
    """Return a builder whose ranks contribute the nodes of their shards, and the slots of these."""
    ranks = len(shards) - 1
    nodes = [canonical_nodes(shards[rank], shards[rank + 1], shards[-1]) for rank in range(ranks)]
    held = [{node: slot for slot, node in enumerate(own)} for own in nodes]
    return ScheduleBuilder(ranks, chunks, nodes=nodes), held


def _send(build: ScheduleBuilder, round_: int, src: int, held: Held, dst: int, *, chunk: int = 0) -> Held:
    """Send all that `src` holds in one message; return the slots where it arrives."""
    return {node: build.send(round_, src, slot, dst, chunk=chunk) for node, slot in sorted(held.items())}


def _fold(build: ScheduleBuilder, round_: int, rank: int, held: Held, shards: tuple[int, int, int]) -> Held:
    """Fold what a rank holds of the shards (low, high, total) into their largest nodes; return their slots."""
    return {node: _value(build, round_, rank, held, node, 0) for node in canonical_nodes(*shards)}


def _fold_all(build: ScheduleBuilder, round_: int, rank: int, held: Held, total: int, *, chunk: int = 0) -> int:
    """Return the slot of the whole tree."""
    return _value(build, round_, rank, held, (0, total), chunk)


def _value(build: ScheduleBuilder, round_: int, rank: int, held: Held, node: Node, chunk: int) -> int:
    if node in held:
        return held[node]
    low, high = node
    middle = low + canonical_split(high - low)
    sides = [_value(build, round_, rank, held, side, chunk) for side in ((low, middle), (middle, high))]
    return build.fold(round_, rank, sides, chunk=chunk)
