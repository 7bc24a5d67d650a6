"""The Schedule of a gossip: all ranks evaluate one expression.

A gossip is the order of messages: rounds of (source, destination). A message carries the values of the largest nodes of
a fixed tree over the ranks (`range_tree.py`) that the source has and the destination lacks. A rank that has both
children of a node has the node, and folds it when it is needed. So a plan for latency is a gossip and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.schedule.range_tree import RangeTree
from topocomm.planning.schedule.schedule import Schedule, number_keys, row_keys
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder

Message = tuple[int, int]
"""(source rank, destination rank)."""
Gossip = Sequence[Sequence[Message]]
"""Rounds of messages; a message carries what its source received in earlier rounds."""


def gossip_of(schedule: Schedule) -> Gossip:
    """Return the messages of a schedule by round."""
    round_, src, dst = (schedule.transfers[:, column] for column in (0, 1, 3))
    first = np.sort(number_keys(row_keys(round_, src, dst))[0])
    messages = list(zip(src[first].tolist(), dst[first].tolist(), strict=True))
    edges = np.searchsorted(round_[first], np.arange(schedule.rounds + 1)).tolist()
    return [messages[low:high] for low, high in pairwise(edges)]


def worth_sending(gossip: Gossip, knows: Sequence[int]) -> list[list[Message]]:
    """Return the messages that carry what their destination lacks; `knows` has what each rank knows first, as bits."""
    known, kept = list(knows), []
    for messages in gossip:
        before, own = list(known), []
        for src, dst in messages:
            if before[src] & ~known[dst]:
                own.append((src, dst))
                known[dst] |= before[src]
        kept.append(own)
    return kept


def gossip_allreduce(gossip: Gossip, tree: RangeTree, rows: int) -> Schedule:
    """Return an allreduce: every rank ends with the value of the whole tree."""
    exchange = NodeExchange(ScheduleBuilder(tree.ranks, ((0, rows),)), tree)
    return exchange.build.build(enumerate(exchange.run_everywhere(gossip)))


def gossip_reduce(gossip: Gossip, tree: RangeTree, rows: int, root: int) -> Schedule:
    """Return a reduce: a message hands on all that its source has, and the root ends with the whole tree."""
    exchange = NodeExchange(ScheduleBuilder(tree.ranks, ((0, rows),)), tree)
    exchange.run(gossip, everywhere=False)
    return exchange.build.build([(root, exchange.value(root))])


def gossip_to_root(gossip: Gossip, root: int, ranks: int) -> Gossip:
    """Return the messages of a gossip that the root needs."""
    needs = [(1 << ranks) - 1 if rank == root else 1 << rank for rank in range(ranks)]
    return [[(src, dst) for src, dst, _ in messages] for messages in _carried(gossip, needs)]


def gossip_broadcast(gossip: Gossip, ranks: int, rows: int, root: int) -> Schedule:
    """Return a broadcast; messages from ranks without the value, and to ranks with it, are left out."""
    build = ScheduleBuilder(ranks, ((0, rows),), contributors=[root])
    slots = {root: 0}
    for round_, messages in enumerate(gossip):
        arrived: dict[int, int] = {}
        for src, dst in messages:
            if src in slots and dst not in slots and dst not in arrived:
                arrived[dst] = build.send(round_, src, slots[src], dst)
        slots |= arrived
    return build.build(slots.items())


def gossip_scan(gossip: Gossip, tree: RangeTree, rows: int, *, own: bool) -> Schedule:
    """Return a scan: rank r ends with the fold of the values of ranks 0..r (`own`), or 0..r-1.

    A message of the gossip, which is that of an allgather or a scan, carries what its destination, or a rank that it
    sends to later, needs and gets from no other message, in nodes of the tree. No value travels folded with one beyond
    the end of a result that it goes into, and a result is the left fold of the largest nodes that fit.
    """
    needs = [(1 << rank + own) - 1 for rank in range(tree.ranks)]
    exchange = NodeExchange(ScheduleBuilder(tree.ranks, ((0, rows),)), tree)
    carried = _carried(gossip, needs)
    for round_, messages in enumerate(_with_ends(carried, own)):
        exchange.round_before(round_, messages)
    results = [(rank, exchange.value_before(rank, rank + own)) for rank in range(0 if own else 1, tree.ranks)]
    return exchange.build.build(results)


def scan_messages(gossip: Gossip, ranks: int, own: bool) -> list[list[tuple[int, int, int, int]]]:
    """Return the messages of an allreduce for `NodeExchange.round_before`, such that ranks also have their prefixes."""
    return _with_ends(_carried(gossip, [(1 << ranks) - 1] * ranks), own)


def _with_ends(carried: list[list[tuple[int, int, int]]], own: bool) -> list[list[tuple[int, int, int, int]]]:
    """Return the messages of a scan with the ends of the results that their loads go into, as bits."""
    ends: dict[int, int] = {}
    rounds = []
    for messages in reversed(carried):
        after, kept = dict(ends), []
        for src, dst, ranks in messages:
            least = (ranks & -ranks).bit_length()
            met = (after.get(dst, 0) | 1 << dst + own) >> least << least  # others come before all that it carries
            kept.append((src, dst, ranks, met))
            ends[src] = ends.get(src, 0) | met
        rounds.append(kept)
    return rounds[::-1]


def _carried(gossip: Gossip, needs: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Return (source, destination, ranks whose values it carries as bits) of every message that carries any.

    `needs` has for each rank the ranks whose values its result contains, as bits.
    """
    knows = [1 << rank for rank in range(len(needs))]
    fresh = []
    for messages in gossip:
        before, messages_new = list(knows), []
        for src, dst in messages:
            messages_new.append((src, dst, before[src] & ~knows[dst]))
            knows[dst] |= before[src]
        fresh.append(messages_new)
    wanted, carried = list(needs), []
    for messages_new in reversed(fresh):
        after, kept = list(wanted), []
        for src, dst, new in reversed(messages_new):
            if new & after[dst]:
                kept.append((src, dst, new & after[dst]))
                wanted[src] |= new & after[dst]
        carried.append(kept[::-1])
    return carried[::-1]


class NodeExchange:
    """Writes messages and folds of one chunk, and keeps the nodes that each rank has.

    At the start rank r has leaf r in slot 0, or `held` has the slot of each node that it has.
    """

    def __init__(
        self, build: ScheduleBuilder, tree: RangeTree, chunk: int = 0, held: Sequence[Mapping[int, int]] | None = None
    ) -> None:
        self.build, self.tree, self.chunk = build, tree, chunk
        self.slots = [dict(own) for own in held] if held is not None else [{rank: 0} for rank in range(tree.ranks)]
        """Slot of each node, by rank."""
        self.tops: list[set[int]] = [set() for _ in self.slots]
        """Largest nodes that each rank has or can fold."""
        self.known = [0] * len(self.slots)
        """Ranks whose values are in the largest nodes of each rank, as bits."""
        for rank, own in enumerate(self.slots):
            for node in own:
                if not self._covers(rank, node):
                    self._add(rank, node)
        self.since: list[dict[int, int]] = [dict.fromkeys(own.values(), 0) for own in self.slots]
        """Round at whose end a slot is written: folds are done as soon as their operands are there."""

    def run(self, gossip: Gossip, *, first_round: int = 0, everywhere: bool = True) -> None:
        """Send the messages of a gossip, as `round`."""
        for round_, messages in enumerate(gossip, start=first_round):
            self.round(round_, messages, everywhere=everywhere)

    def run_everywhere(self, gossip: Gossip, *, first_round: int = 0) -> list[int]:
        """Send the messages of a whole gossip, fold the whole value on every rank, and return the slots of these.

        Nothing is sent after that: of the other nodes of a rank no note is kept.
        """
        try:
            from topocomm.native._native import exchange_nodes
        except ImportError:
            return self._run_plainly(gossip, first_round)
        held = [(rank, node, slot) for rank, own in enumerate(self.slots) for node, slot in own.items()]
        messages = [(round_, *pair) for round_, own in enumerate(gossip, start=first_round) for pair in own]
        next_slot, build = np.array(self.build.next_slot, dtype=np.int32), self.build
        results = np.empty_like(next_slot)
        columns = (np.array(rows, dtype=np.int32) for rows in (held, messages))
        made = exchange_nodes(self.tree.columns, *columns, next_slot, results, self.chunk)
        if made is None:  # a rank lacks a value, and the plain way says which
            return self._run_plainly(gossip, first_round)
        slots: list[int] = results.tolist()
        build.next_slot[:] = next_slot.tolist()
        for column, written in zip((build.moves, build.folds, build.operands, build.widths), made, strict=True):
            column += np.frombuffer(written, dtype=np.int32).tolist()
        for own, slot in zip(self.slots, slots, strict=True):
            own[self.tree.root] = slot
        return slots

    def _run_plainly(self, gossip: Gossip, first_round: int) -> list[int]:
        """As `run_everywhere`, without the compiled part."""
        self.run(gossip, first_round=first_round)
        return [self.value(rank) for rank in range(len(self.slots))]

    def round(self, round_: int, messages: Iterable[tuple[int, int]], *, everywhere: bool) -> None:
        """Send what destinations lack; without `everywhere`, sources hand on what they have and keep nothing."""
        before: dict[int, set[int]] = {}
        arriving: list[tuple[int, int, int]] = []
        for src, dst in messages:
            has = before.get(src, self.tops[src])
            if dst not in before:
                before[dst] = set(self.tops[dst])
            leaves, slots = self.tree.leaves, self.slots[src]
            for node in sorted(has):
                if leaves[node] & ~self.known[dst]:
                    value = slots[node] if node in slots else self._value(src, node)
                    slot = self.build.send(round_, src, value, dst, chunk=self.chunk)
                    arriving.append((dst, node, slot))
                    self._add(dst, node)
            if not everywhere:
                self.tops[src] -= has
                self.known[src] = sum(self.tree.leaves[node] for node in self.tops[src])
        for dst, node, slot in arriving:
            self.slots[dst][node] = slot
            self.since[dst][slot] = round_

    def round_before(self, round_: int, messages: Iterable[tuple[int, int, int, int]]) -> None:
        """Send the messages of one round of a scan: values of these ranks, cut at these ends, as bits."""
        arriving = []
        for src, dst, ranks, ends in messages:
            nodes: list[int] = []
            for top in sorted(self.tops[src]):
                pieces, lacking = self._pieces(src, top, ranks, ends)
                if lacking:
                    which = ", ".join(str(other) for other in range(lacking.bit_length()) if lacking >> other & 1)
                    raise PlanError(f"gossip: rank {src} is to send on values of ranks {which}, which it has not apart")
                nodes += pieces
            for node in nodes:
                slot = self.build.send(round_, src, self._value(src, node), dst, chunk=self.chunk)
                arriving.append((dst, node, slot))
        for dst, node, slot in arriving:
            if not self._covers(dst, node):
                self._add(dst, node)
            self.slots[dst][node] = slot
            self.since[dst][slot] = round_

    def _pieces(self, rank: int, node: int, ranks: int, ends: int) -> tuple[list[int], int]:
        """Return nodes at or below this one with the values of `ranks`, and the values that the rank has in none.

        A value v may travel in a node without values at or beyond an end behind v. Taken are the largest such nodes,
        unless the rank has smaller ones without values of others. There is one for every value: it arrived in a node
        that no end behind it cuts, and the ends of a message are among those of its source.
        """
        low, high = self.tree.low[node], self.tree.high[node]
        within = (1 << high) - (1 << low)
        wanted = within & ranks
        if not wanted:
            return [], 0
        last = (ends & within & ~(1 << low)).bit_length() - 1  # -1: no end cuts this node
        fits = within >> max(last, 0) << max(last, 0) if self._has(rank, node) else 0
        alone = not wanted & ~fits
        if alone and wanted == within:
            return [node], 0
        pieces, lacking = [], wanted
        for child in self.tree.children[node]:
            if child >= 0:
                below, missed = self._pieces(rank, child, ranks, ends)
                pieces += below
                lacking &= missed | ~((1 << self.tree.high[child]) - (1 << self.tree.low[child]))
        if lacking & fits:
            pieces, lacking = [node] if alone else [*pieces, node], lacking & ~fits
        return pieces, lacking

    def _has(self, rank: int, node: int) -> bool:
        """Whether the rank has the value of the node, or can fold it."""
        if node in self.slots[rank]:
            return True
        left, right = self.tree.children[node]
        return left >= 0 and self._has(rank, left) and self._has(rank, right)

    def value(self, rank: int) -> int:
        """Return the slot of the value of the whole tree on this rank."""
        return self._value(rank, self.tree.root)

    def value_before(self, rank: int, end: int) -> int:
        """Return the slot of the fold of the values of ranks 0..end-1 on this rank."""
        nodes = [n for top in sorted(self.tops[rank]) for n in self._within(top, end)]
        nodes.sort(key=lambda node: self.tree.low[node])
        return self._fold(rank, [self._value(rank, node) for node in nodes])

    def _within(self, node: int, end: int) -> Iterator[int]:
        """Yield the largest nodes at or below this one whose ranks come before `end`."""
        if self.tree.high[node] <= end:
            yield node
        elif self.tree.low[node] < end:
            for child in self.tree.children[node]:
                yield from self._within(child, end)

    def _covers(self, rank: int, node: int) -> bool:
        """Whether one of the rank's largest nodes is this one or above it: two siblings would be their parent."""
        return not self.tree.leaves[node] & ~self.known[rank]

    def _add(self, rank: int, node: int) -> None:
        """Add a node that is not covered: nodes below it are removed, and two siblings become their parent."""
        tops, tree, leaves = self.tops[rank], self.tree, self.tree.leaves[node]
        if leaves & self.known[rank]:
            tops -= {n for n in tops if not tree.leaves[n] & ~leaves}
        self.known[rank] |= leaves
        while (other := tree.sibling(node)) in tops:
            tops.remove(other)
            node = tree.parent[node]
        tops.add(node)

    def _value(self, rank: int, node: int) -> int:
        """Return the slot of a node, folded if need be: its left spine, down to the first value that the rank has."""
        slots = self.slots[rank]
        if node not in slots:
            spine, below = [], node
            while below not in slots:
                left, right = self.tree.children[below]
                if left < 0:
                    raise PlanError(
                        f"gossip: rank {rank} is to fold the value of rank {below}, of which it never hears"
                    )
                spine.append(slots[right] if right in slots else self._value(rank, right))
                below = left
            slots[node] = self._fold(rank, [slots[below], *reversed(spine)])
        return slots[node]

    def _fold(self, rank: int, operands: list[int]) -> int:
        since = self.since[rank]
        round_ = max(since[slot] for slot in operands)
        slot = self.build.fold(round_, rank, operands, chunk=self.chunk)
        since[slot] = round_
        return slot
