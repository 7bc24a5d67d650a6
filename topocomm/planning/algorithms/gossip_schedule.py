"""From who tells whom to a Schedule: any gossip becomes a plan in which all ranks evaluate one expression.

A gossip is only the order of messages: rounds of (source, destination). What a message carries follows: the values of
the largest nodes of a fixed tree over the ranks (`range_tree.py`) that the source has and the destination lacks. A
rank that has both children of a node has the node, folds it when it is needed, and may send any node that it has;
duplicates are never sent and would do no harm. So planning for latency is deciding who tells whom, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from topocomm.errors import PlanError
from topocomm.planning.schedule.range_tree import RangeTree
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder

Message = tuple[int, int]
"""(source rank, destination rank)."""
Gossip = Sequence[Sequence[Message]]
"""Rounds of messages; a message carries what reached its source in earlier rounds."""


def gossip_of(schedule: Schedule) -> Gossip:
    """Who tells whom in a schedule, message by message."""
    rounds: list[dict[tuple[int, int], None]] = [{} for _ in range(schedule.rounds)]
    for round_, src, _, dst, *_rest in schedule.transfers.tolist():
        rounds[round_][src, dst] = None
    return [list(messages) for messages in rounds]


def gossip_allreduce(gossip: Gossip, tree: RangeTree, rows: int) -> Schedule:
    """Every rank ends with the value of the whole tree."""
    traders = _trade(gossip, tree, rows, everywhere=True)
    for rank in range(tree.ranks):
        traders.output(rank)
    return traders.build.build()


def gossip_reduce(gossip: Gossip, tree: RangeTree, rows: int, root: int) -> Schedule:
    """The root ends with the value of the whole tree; a message hands on all that its source has."""
    traders = _trade(gossip, tree, rows, everywhere=False)
    traders.output(root)
    return traders.build.build()


def told_to(gossip: Gossip, root: int, ranks: int) -> Gossip:
    """The messages of a gossip that bring something to the root, of which it does not hear otherwise."""
    needs = [(1 << ranks) - 1 if rank == root else 1 << rank for rank in range(ranks)]
    return [[(src, dst) for src, dst, _ in messages] for messages in _carried(gossip, needs)]


def gossip_broadcast(gossip: Gossip, ranks: int, rows: int, root: int) -> Schedule:
    """Every rank ends with the root's value; messages from ranks without it, and to ranks with it, are left out."""
    build = ScheduleBuilder(ranks, ((0, rows),), contributors=[root])
    slots = {root: 0}
    for round_, messages in enumerate(gossip):
        arrived: dict[int, int] = {}
        for src, dst in messages:
            if src in slots and dst not in slots and dst not in arrived:
                arrived[dst] = build.send(round_, src, slots[src], dst)
        slots |= arrived
    for rank, slot in slots.items():
        build.output(rank, slot)
    return build.build()


def gossip_scan(gossip: Gossip, tree: RangeTree, rows: int, *, own: bool) -> Schedule:
    """Rank r ends with the fold of the values of ranks 0..r (`own`), or 0..r-1.

    A message carries what its destination, or somebody it tells later, needs and does not hear from anybody else. No
    value travels folded with one that comes after the end of a result that it goes into.

    Args:
        gossip: Of an allgather or of a scan.
        tree: Nodes that are traded; a result is the left fold of the largest ones that fit.
        rows: Of the payload.
        own: Whether a rank's own value belongs to its result.
    """
    needs = [(1 << rank + own) - 1 for rank in range(tree.ranks)]
    traders = Traders(ScheduleBuilder(tree.ranks, ((0, rows),)), tree)
    carried = _carried(gossip, needs)
    for round_, messages in enumerate(_with_ends(carried, own)):
        traders.round_before(round_, messages)
    for rank in range(0 if own else 1, tree.ranks):
        traders.build.output(rank, traders.value_before(rank, rank + own))
    return traders.build.build()


def told_in_order(gossip: Gossip, ranks: int, own: bool) -> list[list[tuple[int, int, int, int]]]:
    """The messages of an allreduce as `Traders.round_before` takes them: of each rank the prefix can be had as well."""
    return _with_ends(_carried(gossip, [(1 << ranks) - 1] * ranks), own)


def _with_ends(carried: list[list[tuple[int, int, int]]], own: bool) -> list[list[tuple[int, int, int, int]]]:
    """The messages of a scan with the ends, one bit each, of the results that what they carry goes into."""
    ends: dict[int, int] = {}
    found = []
    for messages in reversed(carried):
        after, kept = dict(ends), []
        for src, dst, ranks in messages:
            least = (ranks & -ranks).bit_length()
            met = (after.get(dst, 0) | 1 << dst + own) >> least << least  # others come before all that it carries
            kept.append((src, dst, ranks, met))
            ends[src] = ends.get(src, 0) | met
        found.append(kept)
    return found[::-1]


def _carried(gossip: Gossip, needs: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """(source, destination, the ranks whose values it carries, one bit each) of every message that carries any.

    Args:
        gossip: Who tells whom.
        needs: For each rank, whose values its result holds, one bit each.
    """
    knows = [1 << rank for rank in range(len(needs))]
    fresh = []
    for messages in gossip:
        before, here = list(knows), []
        for src, dst in messages:
            here.append((src, dst, before[src] & ~knows[dst]))
            knows[dst] |= before[src]
        fresh.append(here)
    wanted, carried = list(needs), []
    for here in reversed(fresh):
        after, kept = list(wanted), []
        for src, dst, new in reversed(here):
            if new & after[dst]:
                kept.append((src, dst, new & after[dst]))
                wanted[src] |= new & after[dst]
        carried.append(kept[::-1])
    return carried[::-1]


def _trade(gossip: Gossip, tree: RangeTree, rows: int, *, everywhere: bool) -> Traders:
    traders = Traders(ScheduleBuilder(tree.ranks, ((0, rows),)), tree)
    for round_, messages in enumerate(gossip):
        traders.round(round_, messages, everywhere=everywhere)
    return traders


class Traders:
    """The ranks, and the values of one chunk that each has.

    Args:
        build: Takes messages and folds.
        tree: Whose nodes are traded.
        chunk: Of the payload.
        held: Slot by node that each rank begins with; None: rank r has leaf r in slot 0.
    """

    def __init__(
        self, build: ScheduleBuilder, tree: RangeTree, chunk: int = 0, held: Sequence[Mapping[int, int]] | None = None
    ) -> None:
        self.build, self.tree, self.chunk = build, tree, chunk
        self.slots = [dict(own) for own in held] if held is not None else [{rank: 0} for rank in range(tree.ranks)]
        """By node, the slot where its value lies."""
        self.tops: list[set[int]] = [set() for _ in self.slots]
        """The largest nodes that each rank has or can fold."""
        for tops, own in zip(self.tops, self.slots, strict=True):
            for node in own:
                if not self._covers(tops, node):
                    self._add(tops, node)
        self.since: list[dict[int, int]] = [dict.fromkeys(own.values(), 0) for own in self.slots]
        """By slot, the round at whose end it is there: a fold is made as soon as its operands are."""

    def round(self, round_: int, messages: Iterable[tuple[int, int]], *, everywhere: bool) -> None:
        """Send what destinations lack; with `everywhere` unset, sources hand on what they have and keep nothing."""
        before: dict[int, set[int]] = {}
        arriving: list[tuple[int, int, int]] = []
        for src, dst in messages:
            has = before.get(src, self.tops[src])
            if dst not in before:
                before[dst] = set(self.tops[dst])
            for node in [n for n in sorted(has) if not self._covers(self.tops[dst], n)]:
                slot = self.build.send(round_, src, self._value(src, node), dst, chunk=self.chunk)
                arriving.append((dst, node, slot))
                self._add(self.tops[dst], node)
            if not everywhere:
                self.tops[src] -= has
        for dst, node, slot in arriving:
            self.slots[dst][node] = slot
            self.since[dst][slot] = round_

    def round_before(self, round_: int, messages: Iterable[tuple[int, int, int, int]]) -> None:
        """As `round`, of a scan: messages carry values of these ranks, cut at these ends, one bit each."""
        arriving = []
        for src, dst, ranks, ends in messages:
            for node in self._carriers(src, ranks, ends):
                slot = self.build.send(round_, src, self._value(src, node), dst, chunk=self.chunk)
                arriving.append((dst, node, slot))
        for dst, node, slot in arriving:
            if not self._covers(self.tops[dst], node):
                self._add(self.tops[dst], node)
            self.slots[dst][node] = slot
            self.since[dst][slot] = round_

    def _carriers(self, rank: int, ranks: int, ends: int) -> list[int]:
        """The nodes in which this rank sends the values of `ranks`."""
        found: list[int] = []
        for top in sorted(self.tops[rank]):
            pieces, lacking = self._pieces(rank, top, ranks, ends)
            if lacking:
                which = ", ".join(str(other) for other in range(lacking.bit_length()) if lacking >> other & 1)
                raise PlanError(f"gossip: rank {rank} is to send on values of ranks {which}, which it has not apart")
            found += pieces
        return found

    def _pieces(self, rank: int, node: int, ranks: int, ends: int) -> tuple[list[int], int]:
        """Nodes at or below this one with the values of `ranks`, and which of these values the rank has in none.

        A value v may travel in a node that holds no value at or after an end behind v. The largest such nodes, unless
        the rank has smaller ones without values of others. Every value finds one: it came in a node that no end
        behind it cuts, of those of the rank, and the ends of a message are among those of its source.
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
        """Whether the rank has the node's value, or can fold it."""
        if node in self.slots[rank]:
            return True
        left, right = self.tree.children[node]
        return left >= 0 and self._has(rank, left) and self._has(rank, right)

    def output(self, rank: int) -> int:
        """The value of the whole tree is the rank's result; returns its slot."""
        slot = self.value(rank)
        self.build.output(rank, slot, chunk=self.chunk)
        return slot

    def value(self, rank: int) -> int:
        """The slot of the value of the whole tree on this rank."""
        return self._value(rank, self.tree.root)

    def value_before(self, rank: int, end: int) -> int:
        """The slot of the fold of the values of ranks 0..end-1 on this rank."""
        nodes = [n for top in sorted(self.tops[rank]) for n in self._within(top, end)]
        nodes.sort(key=lambda node: self.tree.low[node])
        return self._fold(rank, [self._value(rank, node) for node in nodes])

    def _within(self, node: int, end: int) -> Iterator[int]:
        """The largest nodes at or below this one whose ranks come before `end`."""
        if self.tree.high[node] <= end:
            yield node
        elif self.tree.low[node] < end:
            for child in self.tree.children[node]:
                yield from self._within(child, end)

    def _covers(self, tops: set[int], node: int) -> bool:
        while node >= 0:
            if node in tops:
                return True
            node = self.tree.parent[node]
        return False

    def _add(self, tops: set[int], node: int) -> None:
        """Add a node that is not covered: what lies below it goes, and two siblings become their parent."""
        low, high = self.tree.low[node], self.tree.high[node]
        tops -= {n for n in tops if low <= self.tree.low[n] and self.tree.high[n] <= high}
        while (other := self.tree.sibling(node)) in tops:
            tops.remove(other)
            node = self.tree.parent[node]
        tops.add(node)

    def _value(self, rank: int, node: int) -> int:
        """The slot of a node's value, folded where the rank has only what is below it."""
        slots = self.slots[rank]
        if node not in slots:
            slots[node] = self._fold(rank, self._operands(rank, node))
        return slots[node]

    def _fold(self, rank: int, operands: list[int]) -> int:
        since = self.since[rank]
        round_ = max(since[slot] for slot in operands)
        slot = self.build.fold(round_, rank, operands, chunk=self.chunk)
        since[slot] = round_
        return slot

    def _operands(self, rank: int, node: int) -> list[int]:
        """What to fold from left to right for a node: the left spine down to the first value that is there."""
        spine: list[int] = []
        while node not in self.slots[rank]:
            left, right = self.tree.children[node]
            if left < 0:
                raise PlanError(f"gossip: rank {rank} is to fold the value of rank {node}, of which it never hears")
            spine.append(self._value(rank, right))
            node = left
        return [self.slots[rank][node], *reversed(spine)]
