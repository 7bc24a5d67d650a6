"""From who tells whom to a Schedule: any gossip becomes a plan in which all ranks evaluate one expression.

A gossip is only the order of messages: rounds of (source, destination). What a message carries follows: the values of
the largest nodes of a fixed tree over the ranks (`range_tree.py`) that the source has and the destination lacks. A
rank that has both children of a node has the node, folds it when it is needed, and may send any node that it has;
duplicates are never sent and would do no harm. So planning for latency is deciding who tells whom, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from topocomm.errors import DoesNotFitError, PlanError
from topocomm.planning.range_tree import RangeTree
from topocomm.planning.schedule import Schedule, part_chunks
from topocomm.planning.schedule_builder import ScheduleBuilder

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


def gossip_allgather(gossip: Gossip, parts: Sequence[int]) -> Schedule:
    """Every rank ends with the chunks of all; a message carries those that its destination lacks."""
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks, owners=owners)
    held = build.own_parts()
    for round_, messages in enumerate(gossip):
        arrived: dict[int, dict[int, int]] = {}
        for src, dst in messages:
            here = arrived.setdefault(dst, {})
            for chunk, slot in held[src].items():
                if chunk not in held[dst] and chunk not in here:
                    here[chunk] = build.send(round_, src, slot, dst, chunk=chunk)
        for dst, got in arrived.items():
            held[dst] |= got
    for rank, slots in enumerate(held):
        for chunk in sorted(slots):
            build.output(rank, slots[chunk], chunk=chunk)
    return build.build()


def gossip_reduce_scatter(gossip: Gossip, parts: Sequence[int], tree: RangeTree | None) -> Schedule:
    """The allgather of the same gossip run backwards: every chunk gathers at its owner along the tree it spread on.

    Args:
        gossip: Of an allgather: who would tell whom.
        parts: Rows that each rank gets.
        tree: The expression of every chunk, operands in rank order; None: for operators that commute, every relay
            folds what it has got into one value.
    """
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks)
    backwards = _backwards(gossip, owners)
    if tree is None:
        _fold_on_the_way(build, backwards, owners)
        return build.build()
    for chunk, owner in enumerate(owners):
        traders = Traders(build, tree, chunk)
        for round_, messages in enumerate(backwards):
            traders.round(round_, [(src, dst) for src, dst, moved in messages if moved == chunk], everywhere=False)
        traders.output(owner)
    return build.build()


def gossip_scan(gossip: Gossip, tree: RangeTree, rows: int, *, own: bool) -> Schedule:
    """Rank r ends with the fold of the values of ranks 0..r (`own`), or 0..r-1.

    A message carries what its destination, or somebody it tells later, needs and does not hear from anybody else.

    Args:
        gossip: Of an allgather or of a scan.
        tree: Nodes that are traded; a result is the left fold of the largest ones that fit.
        rows: Of the payload.
        own: Whether a rank's own value belongs to its result.

    Raises:
        DoesNotFitError: A rank would have to split a value that it got folded.
    """
    needs = [(1 << rank + own) - 1 for rank in range(tree.ranks)]
    traders = Traders(ScheduleBuilder(tree.ranks, ((0, rows),)), tree)
    for round_, messages in enumerate(_carried(gossip, needs)):
        traders.round_before(round_, messages, own)
    for rank in range(0 if own else 1, tree.ranks):
        traders.output_before(rank, rank + own)
    return traders.build.build()


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

    def round_before(self, round_: int, messages: Iterable[tuple[int, int, int]], own: bool) -> None:
        """As `round`, of a scan: messages carry values of these ranks, one bit each, and none that goes past the end.

        A node that holds values of ranks before and after the end of the destination's result is taken apart.
        """
        arriving = []
        for src, dst, ranks in messages:
            nodes = [n for top in sorted(self.tops[src]) for n in self._spanning(src, top, ranks, dst + own)]
            for node in nodes:
                slot = self.build.send(round_, src, self._value(src, node), dst, chunk=self.chunk)
                arriving.append((dst, node, slot))
        for dst, node, slot in arriving:
            if not self._covers(self.tops[dst], node):
                self._add(self.tops[dst], node)
            self.slots[dst][node] = slot
            self.since[dst][slot] = round_

    def _spanning(self, rank: int, node: int, ranks: int, end: int) -> Iterator[int]:
        """Nodes at or below this one that hold values of `ranks`: the largest, unless it has smaller ones that fit."""
        low, high = self.tree.low[node], self.tree.high[node]
        own = (1 << high) - (1 << low)
        if not own & ranks:
            return
        children = self.tree.children[node]
        apart = all(child >= 0 and self._has(rank, child) for child in children)
        if not own & ~ranks or (not apart and (end >= high or not own & ranks & (1 << end) - 1)):
            yield node
        elif apart:
            for child in children:
                yield from self._spanning(rank, child, ranks, end)
        else:
            raise DoesNotFitError(
                f"gossip: rank {rank} would have to split what it got folded of ranks {low} to {high - 1}"
            )

    def _has(self, rank: int, node: int) -> bool:
        """Whether the rank has the node's value, or can fold it."""
        if node in self.slots[rank]:
            return True
        left, right = self.tree.children[node]
        return left >= 0 and self._has(rank, left) and self._has(rank, right)

    def output(self, rank: int) -> int:
        """The value of the whole tree is the rank's result; returns its slot."""
        slot = self._value(rank, self.tree.root)
        self.build.output(rank, slot, chunk=self.chunk)
        return slot

    def output_before(self, rank: int, end: int) -> None:
        """The fold of the values of ranks 0..end-1 is the rank's result."""
        nodes = [n for top in sorted(self.tops[rank]) for n in self._within(top, end)]
        nodes.sort(key=lambda node: self.tree.low[node])
        self.build.output(rank, self._fold(rank, [self._value(rank, node) for node in nodes]))

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


def _backwards(gossip: Gossip, owners: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """(source, destination, chunk) by round, in which all chunks gather at their owners."""
    held = [{chunk for chunk, owner in enumerate(owners) if owner == rank} for rank in range(_ranks(gossip, owners))]
    forwards = []
    for messages in gossip:
        moved, arrived = [], [set[int]() for _ in held]
        for src, dst in messages:
            fresh = held[src] - held[dst] - arrived[dst]
            moved += [(dst, src, chunk) for chunk in sorted(fresh)]
            arrived[dst] |= fresh
        for have, got in zip(held, arrived, strict=True):
            have |= got
        forwards.append(moved)
    return [moved[::-1] for moved in reversed(forwards)]


def _ranks(gossip: Gossip, owners: Sequence[int]) -> int:
    ends = [rank for messages in gossip for message in messages for rank in message]
    return max([*ends, *owners]) + 1


def _fold_on_the_way(
    build: ScheduleBuilder, backwards: Sequence[Sequence[tuple[int, int, int]]], owners: Sequence[int]
) -> None:
    """Every rank folds what arrives into its own value before it hands that on."""
    held: dict[tuple[int, int], int] = {}
    heard: dict[tuple[int, int], list[int]] = {}
    last: dict[tuple[int, int], int] = {}
    for round_, messages in enumerate(backwards):
        arrived = []
        for src, dst, chunk in messages:
            slot = _folded(build, held, heard, (src, chunk), round_ - 1)
            arrived.append((dst, chunk, build.send(round_, src, slot, dst, chunk=chunk)))
        for dst, chunk, slot in arrived:
            heard.setdefault((dst, chunk), []).append(slot)
            last[dst, chunk] = round_
    for chunk, owner in enumerate(owners):
        slot = _folded(build, held, heard, (owner, chunk), last.get((owner, chunk), 0))
        build.output(owner, slot, chunk=chunk)


def _folded(
    build: ScheduleBuilder,
    held: dict[tuple[int, int], int],
    heard: dict[tuple[int, int], list[int]],
    place: tuple[int, int],
    round_: int,
) -> int:
    rank, chunk = place
    held[place] = build.fold(round_, rank, [held.get(place, 0), *heard.pop(place, [])], chunk=chunk)
    return held[place]
