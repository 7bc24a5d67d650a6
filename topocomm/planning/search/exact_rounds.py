"""Exact search for a gossip of fewest rounds, depth first over rounds of messages.

A state is what every rank knows, with R rounds left. It is given up when what some rank lacks is not known within R
hops of it, or is more than R rounds can bring: a round multiplies the largest known set by at most K+1. The same holds
for the ranks that a contribution has reached. A round is a maximal set of messages that bring something: one more
message does no harm. Where a contribution must move in this round to be in time, and only one rank can take it on, that
rank must receive it. In the last round but one a choice is given up as soon as some rank could not finish in the last.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import or_

from topocomm.planning.algorithms.gossip_schedule import Gossip, Message


class OutOfNodesError(Exception):
    """The search met its limit of nodes: nothing found, nothing excluded."""


@dataclass
class RoundsSearch:
    """One machine and the wants on it.

    Attributes:
        sources: Per rank, the ranks with a route to it.
        wanted: Per rank, bit a is set where it needs the contribution of rank a.
        ports: Messages that a rank sends, and receives, per round.
        nodes: Nodes left, over all calls.
        refused: Gossips that were not accepted: none.
    """

    sources: Sequence[Sequence[int]]
    wanted: Sequence[int]
    ports: int
    nodes: int
    refused = 0

    def __post_init__(self) -> None:
        self._failed: set[tuple[int, tuple[int, ...]]] = set()
        count = len(self.wanted)
        self._within: list[list[int]] = [[1 << rank for rank in range(count)]]
        self._asked = [sum(1 << b for b in range(count) if self.wanted[b] >> a & 1) for a in range(count)]
        self._sources_of = [sum(1 << u for u in sources) for sources in self.sources]
        self._useful = sum(1 << a for a in range(count) if self._asked[a] & ~(1 << a))

    def find(self, rounds: int) -> Gossip | None:
        """Return a gossip of so many rounds; None when there is none.

        Raises:
            OutOfNodesError: The nodes allowed did not settle it.
        """
        while len(self._within) <= rounds:
            last = self._within[-1]
            self._within.append([reduce(or_, [last[u] for u in self.sources[r]], last[r]) for r in range(len(last))])
        self._failed.clear()
        return self._from(tuple(1 << rank for rank in range(len(self.wanted))), rounds)

    def _from(self, known: tuple[int, ...], left: int) -> Gossip | None:
        if all(not want & ~have for want, have in zip(self.wanted, known, strict=True)):
            return ()
        if not left or (left, known) in self._failed or self._is_hopeless(known, left):
            return None
        for messages in self._rounds(known, left):
            after = list(known)
            for src, dst in messages:
                after[dst] |= known[src]
            rest = self._from(tuple(after), left - 1)
            if rest is not None:
                return (messages, *rest)
        self._failed.add((left, known))
        return None

    def _is_hopeless(self, known: tuple[int, ...], left: int) -> bool:
        ranks = range(len(known))
        growth = (self.ports + 1) ** left - 1
        most = growth * max(mask.bit_count() for mask in known)
        for rank in ranks:
            lacks = self.wanted[rank] & ~known[rank]
            if lacks and (lacks.bit_count() > most or lacks & ~_together(known, self._within[left][rank])):
                return True
        for a in ranks:
            reached = sum(1 << rank for rank in ranks if known[rank] >> a & 1)
            if (self._asked[a] & ~reached).bit_count() > growth * reached.bit_count():
                return True
        return False

    def _rounds(self, known: tuple[int, ...], left: int) -> Iterator[tuple[Message, ...]]:
        """Yield every maximal round that may still end in time."""
        needed = self._needed(known, left)
        if needed is None:
            return
        most = min(len(known), (self.ports + 1) * max(mask.bit_count() for mask in known))
        offers: dict[int, list[int]] = {}
        for rank in range(len(known)):
            useful = [u for u in self.sources[rank] if known[u] & ~known[rank] & self._useful]
            if useful and (left > 1 or self.wanted[rank] & ~known[rank]):
                offers[rank] = useful
        order = sorted(offers, key=lambda rank: (not needed[rank], len(offers[rank]), rank))
        later = ((self.ports + 1) ** (left - 1) - 1) * most  # what the rounds after this one bring a rank
        free = [self.ports] * len(known)
        chosen: dict[int, tuple[int, ...]] = {}

        def assigned() -> Iterator[tuple[Message, ...]]:
            if len(chosen) == len(order):
                more = ((rank, u) for rank in order if len(chosen[rank]) < self.ports for u in offers[rank])
                if not any(free[u] and u not in chosen[rank] for rank, u in more):
                    yield tuple((src, rank) for rank in order for src in chosen[rank])
                return
            rank = order[len(chosen)]
            lacks = self.wanted[rank] & ~known[rank]
            able = [u for u in offers[rank] if free[u]]
            # Fewer messages than ports, only where others may need the senders.
            sets = [s for size in range(min(self.ports, len(able)), -1, -1) for s in combinations(able, size)]
            received = {s: reduce(or_, [known[u] for u in s], 0) for s in sets}
            sets = [s for s in sets if not needed[rank] & ~received[s] and (lacks & ~received[s]).bit_count() <= later]
            for senders in sorted(sets, key=lambda s: -(received[s] & lacks).bit_count()):
                self.nodes -= 1
                if self.nodes < 0:
                    raise OutOfNodesError
                for u in senders:
                    free[u] -= 1
                chosen[rank] = senders
                if left != 2 or self._can_end(known, offers, chosen, rank):
                    yield from assigned()
                del chosen[rank]
                for u in senders:
                    free[u] += 1

        yield from assigned()

    def _needed(self, known: tuple[int, ...], left: int) -> list[int] | None:
        """Return what each rank must receive in this round; None when no rank can take on what must move."""
        ranks = range(len(known))
        holders = [sum(1 << rank for rank in ranks if known[rank] >> a & 1) for a in ranks]
        needed = [0] * len(known)
        for rank in ranks:
            close = self._within[left - 1][rank]
            late = self.wanted[rank] & ~_together(known, close)
            for a in ranks:
                if late >> a & 1:
                    able = [v for v in ranks if close >> v & 1 and self._sources_of[v] & holders[a]]
                    if not able:
                        return None
                    if len(able) == 1:
                        needed[able[0]] |= 1 << a
        return needed

    def _can_end(
        self, known: tuple[int, ...], offers: Container[int], chosen: dict[int, tuple[int, ...]], changed: int
    ) -> bool:
        """Whether one more round could bring all they lack to `changed` and the ranks that it can reach."""
        ranks = range(len(known))
        after = [reduce(or_, [known[u] for u in chosen.get(rank, ())], mask) for rank, mask in enumerate(known)]
        decided = [rank in chosen or rank not in offers for rank in ranks]
        for rank in ranks:
            if rank != changed and changed not in self.sources[rank]:
                continue
            if not decided[rank] or not all(decided[u] for u in self.sources[rank]):
                continue
            lacks = self.wanted[rank] & ~after[rank]
            news = [after[u] & lacks for u in self.sources[rank]]
            if not any(not lacks & ~reduce(or_, some, 0) for some in combinations(news, min(self.ports, len(news)))):
                return False
        return True


def _together(known: tuple[int, ...], ranks: int) -> int:
    return reduce(or_, (mask for rank, mask in enumerate(known) if ranks >> rank & 1), 0)
