"""Allreduce in canonical order: one tree over virtual shards, whatever the ranks and the layout.

Every rank contributes the largest nodes of the tree that its shards fill, one slot each. Ranks own neighbouring ranges,
so nodes of neighbouring ranks fold into the largest nodes of both ranges: a message has at most 2 log2 V slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from topocomm.planning.algorithms.binomial import reduce_and_spread
from topocomm.planning.algorithms.flat import exchange
from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.recursive_doubling import Core
from topocomm.planning.schedule.canonical_tree import Node, canonical_nodes, canonical_split
from topocomm.planning.schedule.schedule import NO_PATH, Schedule, split_rows
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder

Held = dict[Node, int]
"""Slots of one rank and chunk, by node."""


def flat_canonical(shards: Sequence[int], rows: int) -> Schedule:
    """Every rank sends its nodes to all and folds the rest of the tree: P-1 one-port rounds."""
    build = _NodesBuilder(shards, ((0, rows),))
    exchange(build)
    return build.build()


def direct_canonical(shards: Sequence[int], rows: int) -> Schedule:
    """Every chunk's nodes to its owner, which folds the rest of the tree and sends it to all: 2(P-1) rounds."""
    ranks = len(shards) - 1
    build = _NodesBuilder(shards, split_rows(rows, min(ranks, rows) if rows else ranks))
    last = max(ranks - 2, 0)
    for owner in range(len(build.chunks)):  # of the chunk of this index
        arrived = [build.send(step - 1, (owner - step) % ranks, 0, owner, chunk=owner) for step in range(1, ranks)]
        slot = build.fold(last, owner, [0, *arrived], chunk=owner)
        build.output(owner, slot, chunk=owner)
        for step in range(1, ranks):
            target = (owner + step) % ranks
            build.output(target, build.send(last + step, owner, slot, target, chunk=owner), chunk=owner)
    return build.build()


def binomial_canonical(shards: Sequence[int], rows: int) -> Schedule:
    """Reduce to rank 0, then broadcast: 2 ceil(log2 P) rounds, 2(P-1) messages."""
    build = _NodesBuilder(shards, ((0, rows),))
    reduce_and_spread(build)
    return build.build()


def doubling_canonical(shards: Sequence[int], rows: int) -> Schedule:
    """Partners exchange their nodes: floor(log2 P) rounds, two more where P is not a power of two."""
    build, core = _NodesBuilder(shards, ((0, rows),)), Core(len(shards) - 1)
    slots = dict.fromkeys(core.ranks, 0)
    for rank in core.ranks[: core.surplus]:
        slots[rank] = build.fold(0, rank, [0, build.send(0, rank + 1, 0, rank)])
    for round_, distance in enumerate(core.distances, start=int(bool(core.surplus))):
        partners = [core.ranks[position ^ distance] for position in range(len(core.ranks))]
        arrived = [build.send(round_, src, slots[src], dst) for src, dst in zip(partners, core.ranks, strict=True)]
        for rank, slot in zip(core.ranks, arrived, strict=True):
            slots[rank] = build.fold(round_, rank, [slots[rank], slot])
    for position, rank in enumerate(core.ranks):
        build.output(rank, slots[rank])
        if position < core.surplus:
            build.output(rank + 1, build.send(len(core.distances) + 1, rank, slots[rank], rank + 1))
    return build.build()


def relayed_canonical(shards: Sequence[int], rows: int, hub: int, gathering: Gossip, spreading: Gossip) -> Schedule:
    """Return an allreduce in which the hub folds all nodes; they gather to it and spread from it, and ranks relay."""
    build = _NodesBuilder(shards, ((0, rows),))
    held = [0] * build.ranks
    for round_, messages in enumerate(gathering):
        for src, dst in messages:
            held[dst] = build.beside(dst, held[dst], build.send(round_, src, held[src], dst))
    slots = {hub: build.fold(max(len(gathering) - 1, 0), hub, [held[hub]])}
    for round_, messages in enumerate(spreading, start=len(gathering)):
        for src, dst in messages:
            slots[dst] = build.send(round_, src, slots[src], dst)
    return build.build(sorted(slots.items()))


class _NodesBuilder(ScheduleBuilder):
    """A builder whose numbers stand for all nodes that a rank holds: sent in one message, folded as far as they can.

    Number 0 of every rank has the nodes of its shards.
    """

    def __init__(self, shards: Sequence[int], chunks: tuple[tuple[int, int], ...]) -> None:
        nodes = [canonical_nodes(low, high, shards[-1]) for low, high in pairwise(shards)]
        super().__init__(len(nodes), chunks, nodes=nodes)
        self._total = shards[-1]
        self._held: list[list[Held]] = [[{node: slot for slot, node in enumerate(own)}] for own in nodes]

    def send(self, round_: int, src: int, slot: int, dst: int, *, chunk: int = 0, path: int = NO_PATH) -> int:
        """Send all that a number stands for in one message; returns the number at dst."""
        held, send = self._held[src][slot], super().send
        return self._number(dst, {n: send(round_, src, held[n], dst, chunk=chunk, path=path) for n in sorted(held)})

    def beside(self, rank: int, *slots: int) -> int:
        """Return a number of a rank for all that these stand for, not folded."""
        return self._number(rank, {node: slot for number in slots for node, slot in self._held[rank][number].items()})

    def fold(self, round_: int, rank: int, operands: Sequence[int], *, chunk: int = 0) -> int:
        """Fold the nodes of neighbouring ranges into the largest of both; returns their number."""
        held = self._held[rank][self.beside(rank, *operands)]
        low, high = min((low for low, _ in held), default=0), max((high for _, high in held), default=0)
        nodes = canonical_nodes(low, high, self._total)
        return self._number(rank, {node: self._value(round_, rank, held, node, chunk) for node in nodes})

    def output(self, rank: int, slot: int, *, chunk: int = 0) -> None:
        """Declare the whole tree the result of a rank."""
        super().output(rank, self._held[rank][slot][0, self._total], chunk=chunk)

    def _number(self, rank: int, held: Held) -> int:
        self._held[rank].append(held)
        return len(self._held[rank]) - 1

    def _value(self, round_: int, rank: int, held: Held, node: Node, chunk: int) -> int:
        if node in held:
            return held[node]
        low, high = node
        middle = low + canonical_split(high - low)
        sides = [self._value(round_, rank, held, side, chunk) for side in ((low, middle), (middle, high))]
        return super().fold(round_, rank, sides, chunk=chunk)
