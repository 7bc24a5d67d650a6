"""Rings and trees of an NCCL log.

Rank 0 prints the order of each ring (`Channel 00/02 : 0 1 2 3`, up to 2.3 `Ring 00 : 0 1 2 3`), every rank its own
place in it (`Ring 00 : prev -> me -> next`). Of long rings only the first 20 ranks are printed, by late versions as
many as a line holds, with dots for the rest. Trees come in four notations; in all of them children are written with
slashes and the parent without:

- `Trees [0] 1/-1/-1->0->-1`: children -> me -> parent (from NCCL 2.8 on);
- `Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1`: the same for reduce | broadcast (up to 2.7);
- `Trees [0] -1->0->1/-1/-1`: parent -> me -> children (2.4);
- `Tree 0 : -1 -> 0 -> 1/-1/-1`: parent -> me -> children (all).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from topocomm.topology.readers.nccl.log.nccl_log_comms import GOES_ON, MOST_PRINTED, Communicator, Session
from topocomm.topology.readers.nccl.log.nccl_log_lines import Part, Warn

_ORDER = re.compile(r"(?:Channel|Ring) (\d{1,4})(?:/(\d{1,4}))? ?:((?: +\d{1,6})+)(\.{1,3})?$")
_RING = re.compile(r"Ring (\d{1,4}) : (-?\d{1,6}) -> (\d{1,6}) -> (-?\d{1,6})(?= (?!->)|$)")
_TREE = re.compile(r"Tree (\d{1,4}) : ([-\d/]{1,40}) -> (\d{1,6}) -> ([-\d/]{1,40})(?= |$)")
_TREES = re.compile(
    r"\[(\d{1,4})\] ([-\d/]{1,40})->(\d{1,6})->([-\d/]{1,40})(?:[|\t]([-\d/]{1,40})->\d+->([-\d/]{1,40}))?"
)
_CHANNELS = re.compile(r"(\d{1,4}) coll channels, ")


class Node(NamedTuple):
    """One rank's place in a tree; parent -1 is the root."""

    parent: int
    children: tuple[int, ...]


Places = dict[int, dict[int, list[Node]]]
"""By channel and rank."""


class Channels:
    """Rings by channel, trees by channel and rank, as far as the lines of a communicator are certain."""

    def __init__(self, comm: Communicator, warn: Warn) -> None:
        self.comm, self.warn = comm, warn
        self.ranks = comm.ranks
        self.counts: dict[int, set[int]] = defaultdict(set)
        """Numbers of channels: of `Channel 00/02` (0, most certain), the summary line (1), whole `Trees` lines (2)."""
        orders = self._orders()
        steps = self._steps()
        rings = {c: self._ring(c, orders.get(c, []), steps.get(c, {})) for c in sorted({*orders, *steps})}
        self.rings = {channel: ring for channel, ring in rings.items() if ring is not None}
        sizes = {len(ring) for ring in self.rings.values()}
        if self.ranks is None and len(sizes) > 1:
            self.warn(f"rings of {min(sizes)} and of {max(sizes)} ranks; none is used")
            self.rings = {}
        elif self.ranks is None and sizes:
            self.ranks = sizes.pop()
        self.trees, self.broadcast = map(self._checked, self._all_trees())
        if self.broadcast == self.trees:  # the second half of the old notation says the same
            self.broadcast = {}
        self.number = self._count()
        if self.number is not None:
            for what, kept in (("Ring", self.rings), ("Tree", self.trees), ("Tree", self.broadcast)):
                for channel in [c for c in kept if c >= self.number]:
                    self.warn(f"{what} of channel {channel}, but there are {self.number} channels; not used")
                    del kept[channel]

    def facts(self) -> dict[str, Any]:
        """Return `nchannels`, `rings` {channel: ranks}, `trees` {channel: {rank: {parent, children}}}."""
        facts: dict[str, Any] = {} if self.number is None else {"nchannels": self.number}
        if self.rings:
            facts["rings"] = {str(channel): self.rings[channel] for channel in sorted(self.rings)}
        for key, trees in (("trees", self.trees), ("trees_broadcast", self.broadcast)):
            if trees:
                facts[key] = {
                    str(channel): {
                        str(rank): {"parent": node.parent, "children": list(node.children)}
                        for rank, node in sorted(nodes.items())
                    }
                    for channel, nodes in sorted(trees.items())
                }
        known = {rank for nodes in self.trees.values() for rank in nodes}
        if len(known) == 1 and self.ranks != 1:
            rank = known.pop()
            facts[f"trees_rank{rank}"] = {c: nodes[str(rank)] for c, nodes in facts["trees"].items()}
        return facts

    def _parts(self) -> Iterator[tuple[Session, Part, str]]:
        for session in self.comm.sessions:
            for part in session.parts:
                yield session, part, part.text.strip()

    def _orders(self) -> dict[int, list[list[int]]]:
        """Return the orders of `Channel` lines, by channel; wrapped lines are joined."""
        loose = {part.line: part for s in self.comm.sessions if s.thread is None for part in s.parts}
        orders: dict[int, list[list[int]]] = defaultdict(list)
        for _, part, text in self._parts():
            match = _ORDER.match(text)
            if match is None:
                if _CHANNELS.match(text):
                    self.counts[1].add(int(text.split()[0]))
                continue
            order = None if match.group(4) else self._whole_order(match.group(3), part, loose)
            if order is None:
                self.warn(f"line {part.line}: the order of ring {int(match.group(1))} is not whole; not used")
                continue
            orders[int(match.group(1))].append(order)
            if match.group(2) is not None:
                self.counts[0].add(int(match.group(2)))
        return orders

    def _whole_order(self, text: str, part: Part, loose: dict[int, Part]) -> list[int] | None:
        """Return the order, if it holds every rank once, alone or with lines of numbers below."""
        variants = [text]
        line = part.line + 1
        while line in loose and len(variants) < 40 and GOES_ON.fullmatch(loose[line].text):
            more = loose[line].text.rstrip()
            variants += [variants[-1] + more, variants[-1] + " " + more]
            line += 1
        if self.ranks is None and (part.cut or len(variants) > 40):
            return None
        for variant in variants if self.ranks is not None else variants[-2:]:
            order = [int(word) for word in variant.split()]
            if self.ranks is None and len(order) == MOST_PRINTED:
                continue  # may be the beginning of a longer one
            if sorted(order) == list(range(self.ranks if self.ranks is not None else len(order))):
                return order
        return None

    def _steps(self) -> dict[int, dict[int, tuple[int, int]]]:
        """Return (previous, next) by channel and rank, from `Ring` lines."""
        steps: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        bad_places: set[tuple[int, int]] = set()
        for session, part, text in self._parts():
            match = _RING.match(text)
            if match is None:
                continue
            channel, before, me, after = map(int, match.groups())
            ends_line = match.end() == len(text)
            if part.cut and ends_line and not self._complete(after):
                self.warn(f"line {part.line}: cut inside a ring; not used")
            elif not self._in_range(before, me, after) or session.rank not in (None, me):
                self.warn(f"line {part.line}: {text!r} does not fit rank {session.rank} of {self.ranks}; not used")
            elif steps[channel].setdefault(me, (before, after)) != (before, after):
                self.warn(f"line {part.line}: rank {me} is in ring {channel} twice and not in one place")
                bad_places.add((channel, me))
        for channel, me in bad_places:
            steps[channel].pop(me, None)
        return steps

    def _complete(self, number: int) -> bool:
        """Return whether a number at a cut can have no more digits, because there are fewer ranks."""
        return number <= 0 or (self.ranks is not None and number * 10 >= self.ranks)

    def _in_range(self, *numbers: int) -> bool:
        return all(n >= -1 and (self.ranks is None or n < self.ranks) for n in numbers)

    def _ring(self, channel: int, orders: list[list[int]], steps: dict[int, tuple[int, int]]) -> list[int] | None:
        """Return the ring of a channel from rank 0 on; None where it is not certain."""
        order = orders[0] if orders else self._stitched(steps)
        if order is None:
            return None
        turned = _from_zero(order)
        if any(_from_zero(other) != turned for other in orders):
            self.warn(f"ring {channel}: `Channel` lines disagree; not used")
            return None
        place = {rank: i for i, rank in enumerate(order)}
        for me, (before, after) in steps.items():
            i = place.get(me)
            if i is None or (order[i - 1], order[(i + 1) % len(order)]) != (before, after):
                words = f"its order and the place of rank {me} ({before}, {after}) disagree"
                self.warn(f"ring {channel}: {words}; not used")
                return None
        return turned

    def _stitched(self, steps: dict[int, tuple[int, int]]) -> list[int] | None:
        """Return the order that places of single ranks imply, if they leave no choice."""
        after: dict[int, int] = {}
        for me, (before, follows) in steps.items():
            if after.setdefault(before, me) != me or after.setdefault(me, follows) != follows:
                return None
        if self.ranks is None or len(after) < self.ranks - 1 or len(set(after.values())) < len(after):
            return None
        starts = set(after) - set(after.values())
        order = [starts.pop() if starts else 0]
        while len(order) < self.ranks and order[-1] in after:
            order.append(after[order[-1]])
        return order if sorted(order) == list(range(self.ranks)) else None

    def _all_trees(self) -> tuple[Places, Places]:
        """Return the places in both halves of the trees, the same where the notation has one half."""
        first: Places = defaultdict(lambda: defaultdict(list))
        second: Places = defaultdict(lambda: defaultdict(list))
        for session, part, text in self._parts():
            is_list = text.startswith("Trees [")
            channels = []
            for match in _TREES.finditer(text) if is_list else filter(None, [_TREE.match(text)]):
                channel, left, rank, right, *ends = match.groups()
                me, node = int(rank), _node(left, right)
                other = _node(*ends) if any(ends) else node
                if (
                    node is None
                    or other is None
                    or not self._in_range(me, node.parent, *node.children, other.parent, *other.children)
                ):
                    words = f"is no place in a tree of {self.ranks} ranks"
                    self.warn(f"line {part.line}: {match.group()!r} {words}; not used")
                elif part.cut and match.end() == len(text) and not self._complete(int(re.split("[/> ]", text)[-1])):
                    self.warn(f"line {part.line}: cut inside a tree; not used")
                elif session.rank not in (None, me):
                    self.warn(f"line {part.line}: {match.group()!r} is not of rank {session.rank}; not used")
                else:
                    channels.append(int(channel))
                    first[int(channel)][me].append(node)
                    second[int(channel)][me].append(other)
            if is_list and not part.cut and channels == list(range(text.count("["))) and channels:
                self.counts[2].add(len(channels))
        return first, second

    def _checked(self, places_by_rank: Places) -> dict[int, dict[int, Node]]:
        """Return places that all lines, and parents and children, agree on."""
        trees: dict[int, dict[int, Node]] = {}
        for channel, by_rank in places_by_rank.items():
            nodes = {rank: places[0] for rank, places in by_rank.items() if len(set(places)) == 1}
            bad = set(by_rank) - set(nodes)
            for rank, node in nodes.items():
                for child in node.children:
                    if child in nodes and nodes[child].parent != rank:
                        bad |= {rank, child}
                if node.parent in nodes and rank not in nodes[node.parent].children:
                    bad |= {rank, node.parent}
            for rank in sorted(bad):
                self.warn(f"tree {channel}: what the log says of rank {rank} disagrees; not used")
            kept = {rank: node for rank, node in nodes.items() if rank not in bad}
            if kept:
                trees[channel] = kept
        return trees

    def _count(self) -> int | None:
        for sure in sorted(self.counts):
            if len(self.counts[sure]) == 1:
                return next(iter(self.counts[sure]))
            self.warn(f"numbers of channels disagree: {sorted(self.counts[sure])}")
        return None


def _from_zero(ring: list[int]) -> list[int]:
    return ring[ring.index(0) :] + ring[: ring.index(0)]


def _node(left: str, right: str) -> Node | None:
    """Return a place from both ends of a tree's arrow: the end with slashes holds the children."""
    if ("/" in left) == ("/" in right):
        return None
    parent, children = (right, left) if "/" in left else (left, right)
    try:
        numbers = [int(word) for word in children.split("/")]
        return Node(int(parent), tuple(n for n in numbers if n != -1))
    except ValueError:
        return None
