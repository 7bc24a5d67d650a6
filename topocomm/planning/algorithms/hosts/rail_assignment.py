"""Assignment of messages between groups to rails in one step, and the messages inside a group that follow.

A demand is that a group receives a block from one of the groups that have it, on one of the rails. A group sends and
receives one message per rail at a time (K with K ports). So an assignment colours the edges of a bipartite graph, from
sending to receiving groups; a colour is a port of a rail, and a group lacks the colours of the rails that it lacks. For
equal groups a formula colours all edges. Around a group that lacks a rail, edges are recoloured along alternating paths
(Konig 1916), and demands take the place of others that find another colour. Where that fails the demand is left out,
or, if the group would not receive the block at all, a source sends two messages one after the other.

Rails are used in sets just large enough for the demands of a group: a group receives all blocks on each set, and the
members on a set exchange them. With few demands there are many sets, and few rounds inside each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.hosts.rank_groups import Rails
from topocomm.planning.algorithms.multiport import spread_gossip

DEPTH, TRIES = 1, 4_000
"""Depth of replacements, and most colours tried for them in all."""


class RailDemand(NamedTuple):
    """A group is to receive a block from one of the sources.

    `turn` numbers the demands of a group from 0; the groups that one source sends to have different turns. With a turn
    the first source is preferred; with -1 any source will do.
    """

    group: int
    block: int
    sources: Sequence[int]
    turn: int


class RailAssignment(NamedTuple):
    """A message from a group to another over a rail."""

    rail: int
    block: int
    source: int


def rail_sets(rails: int, demands: int, ports: int) -> list[range]:
    """Return sets of neighbouring rails that have room for the demands of a group, else one set of all rails.

    Sizes are powers of two, which hold whole nodes of the tree over the members, unless smaller sets are more.
    """
    least = max(1, -(-demands // ports))
    options = []
    for size in (1 << (least - 1).bit_length(), least):
        sets = [range(low, min(low + size, rails)) for low in range(0, rails, size)]
        options.append([own for own in sets if len(own) >= least])
    return max(options, key=len) or [range(rails)]


def assign_rails(
    demands: Sequence[RailDemand], on: Rails, ports: int, sets: Sequence[range]
) -> list[list[RailAssignment]]:
    """Return the messages that each group receives, `ports` at a time on a rail (K).

    Each (group, block) is demanded once, and met on each of the sets of rails if possible, and at least on one.
    """
    return _EdgeColoring(on, ports).assigned(demands, sets)


class _EdgeColoring:
    """Colours and their use by the groups; colour c is port c % K of rail c // K."""

    def __init__(self, on: Rails, ports: int) -> None:
        self.ports = ports
        self.rail_count = len(on[0])
        usable = {own: [member >= 0 for member in own for _ in range(ports)] for own in dict.fromkeys(on)}
        self.usable = [usable[own] for own in on]
        colours = self.rail_count * ports
        self.sends: list[list[RailDemand | None]] = [[None] * colours for _ in on]
        """Demand that a group meets with a colour."""
        self.receives: list[list[tuple[int, int] | None]] = [[None] * colours for _ in on]
        """(source, block) that a group receives with a colour."""
        self.second: list[list[RailAssignment]] = [[] for _ in on]
        """Messages beyond the colouring, for which a source sends twice."""
        self.tries = TRIES
        self.log: list[tuple[int, RailDemand, int, bool]] = []
        """Undo log: (source, demand, colour, whether the colour was given or taken)."""

    def assigned(self, demands: Sequence[RailDemand], sets: Sequence[range]) -> list[list[RailAssignment]]:
        """Return the messages that each group receives; arguments as in `assign_rails`."""
        coloured = [[rail * self.ports + port for rail in rails for port in range(self.ports)] for rails in sets]
        missing: dict[tuple[int, int], RailDemand] = {}
        for colours in coloured:
            rest = [demand for demand in demands if not self._assign_by_formula(demand, colours)]
            for demand in sorted(rest, key=lambda demand: demand.turn < 0):  # those with a choice of sources last
                swapped = any(self._assign_by_swap(demand, source, colours) for source in demand.sources)
                if not swapped and not self._assign_in_place(demand, demand.sources[0], colours):
                    missing[demand.group, demand.block] = demand
        for demand in missing.values():
            if not self._times_received(demand):
                self._assign_once_more(demand, coloured)
        assignments = []
        for own, second in zip(self.receives, self.second, strict=True):
            first = [
                RailAssignment(colour // self.ports, message[1], message[0])
                for colour, message in enumerate(own)
                if message is not None
            ]
            assignments.append([*first, *second])
        return assignments

    def _assign_by_formula(self, demand: RailDemand, colours: Sequence[int]) -> bool:
        """Give a demand the colour of the formula, if that is free."""
        if demand.turn < 0 or demand.turn >= len(colours):
            return False
        rails = len(colours) // self.ports
        colour = colours[demand.turn % rails * self.ports + demand.turn // rails]
        return self._take(demand, demand.sources[0], colour)

    def _take(self, demand: RailDemand, source: int, colour: int) -> bool:
        if not (self._can_send(source, colour) and self._can_receive(demand.group, colour)):
            return False
        self._put(source, demand, colour)
        return True

    def _put(self, source: int, demand: RailDemand, colour: int) -> None:
        self.sends[source][colour] = demand
        self.receives[demand.group][colour] = source, demand.block
        self.log.append((source, demand, colour, True))

    def _drop(self, source: int, colour: int) -> RailDemand | None:
        """Take the demand from a colour of a source and return it; None where there is none."""
        demand = self.sends[source][colour]
        if demand is not None:
            self.sends[source][colour] = self.receives[demand.group][colour] = None
            self.log.append((source, demand, colour, False))
        return demand

    def _can_send(self, group: int, colour: int) -> bool:
        return self.usable[group][colour] and self.sends[group][colour] is None

    def _can_receive(self, group: int, colour: int) -> bool:
        return self.usable[group][colour] and self.receives[group][colour] is None

    def _assign_by_swap(self, demand: RailDemand, source: int, colours: Sequence[int]) -> bool:
        """Give a demand a colour that is free or can be made free by recolouring."""
        if any(self._take(demand, source, colour) for colour in colours):
            return True
        tells = [colour for colour in colours if self._can_send(source, colour)]
        hears = [colour for colour in colours if self._can_receive(demand.group, colour)]
        return any(self._swap(demand.group, a, b) and self._take(demand, source, a) for a in tells for b in hears)

    def _swap(self, group: int, a: int, b: int) -> bool:
        """Free colour `a` at a receiving group: exchange `a` and `b` along the path, if its end has both."""
        path: list[tuple[int, RailDemand, int]] = []
        hearer, before, after = group, a, b
        while (at := self.receives[hearer][before]) is not None:
            source = at[0]
            demand = self.sends[source][before]
            if demand is None:
                raise AssertionError("what is heard is told")
            path.append((source, demand, before))
            onward = self.sends[source][after]
            if onward is None:
                if not self.usable[source][after]:
                    return False
                break
            path.append((source, onward, after))
            hearer = onward.group
        if not self.usable[hearer][before]:
            return False
        for source, _, colour in path:
            self._drop(source, colour)
        for source, demand, colour in path:
            self._put(source, demand, b if colour == a else a)
        return True

    def _assign_in_place(self, demand: RailDemand, source: int, colours: Sequence[int], depth: int = DEPTH) -> bool:
        """Give a demand a colour in use, if the demands that had it find another, by replacement again if need be."""
        for colour in colours:
            if not (self.usable[source][colour] and self.usable[demand.group][colour]) or not self.tries:
                continue
            self.tries -= 1
            mark = len(self.log)
            current = self.receives[demand.group][colour]
            tellers = dict.fromkeys([source] if current is None else [source, current[0]])
            displaced = [(teller, other) for teller in tellers if (other := self._drop(teller, colour)) is not None]
            self._put(source, demand, colour)
            if all(
                self._assign_by_swap(other, teller, colours)
                or (depth and self._assign_in_place(other, teller, colours, depth - 1))
                for teller, other in displaced
            ):
                return True
            while len(self.log) > mark:  # undo
                giver, other, used, put = self.log.pop()
                self.sends[giver][used] = None if put else other
                self.receives[other.group][used] = None if put else (giver, other.block)
        return False

    def _times_received(self, demand: RailDemand) -> int:
        return sum(at is not None and at[1] == demand.block for at in self.receives[demand.group])

    def _assign_once_more(self, demand: RailDemand, sets: Sequence[Sequence[int]]) -> None:
        """Let a source send here in place of to a group that receives the same twice; else a source sends twice."""
        for turn, colours in enumerate(sets):
            first = turn % len(demand.sources)
            for source in [*demand.sources[first:], *demand.sources[:first]]:
                if any(self._take_over(demand, source, colour) for colour in colours):
                    break
        if not self._times_received(demand):
            self.second[demand.group].append(self._second(demand))

    def _take_over(self, demand: RailDemand, source: int, colour: int) -> bool:
        """Give a demand the colour of a message that its group receives twice."""
        other = self.sends[source][colour]
        if other is None or not self._can_receive(demand.group, colour) or self._times_received(other) < 2:
            return False
        self._drop(source, colour)
        self._put(source, demand, colour)
        return True

    def _second(self, demand: RailDemand) -> RailAssignment:
        """Return a message over the least used rail that both groups have."""
        heavy = []
        for index, source in enumerate(demand.sources):
            for rail in range(self.rail_count):
                colours = range(rail * self.ports, (rail + 1) * self.ports)
                if self.usable[source][colours[0]] and self.usable[demand.group][colours[0]]:
                    used = sum(self.receives[demand.group][c] is not None for c in colours)
                    used += sum(self.sends[source][c] is not None for c in colours)
                    used += 2 * sum(other.rail == rail for other in self.second[demand.group])
                    heavy.append((used, index, rail))
        _, index, rail = min(heavy, default=(0, 0, 0))
        return RailAssignment(rail, demand.block, demand.sources[index])


@cache
def spread_inside(
    members: int, on: tuple[int, ...], received: tuple[tuple[int, ...], ...], blocks: int, ports: int
) -> Gossip:
    """Return the gossip inside a group by which all members get the blocks that some of them received.

    `on` has the member on each rail, -1 for none; a member sends, and receives, `ports` messages at once (K).
    """
    if not blocks:
        return ()
    sets = [[on[rail] for rail in rails if on[rail] >= 0] for rails in rail_sets(len(on), blocks, ports)]
    full = [own for own in sets if len({block for member in own for block in received[member]}) == blocks]
    if not full:
        order = [*dict.fromkeys(member for own in sets for member in own)]
        full = [order + [member for member in range(members) if member not in order]]
    rounds = max(len(spread_gossip(len(own), ports)) for own in full)
    late = [member for member in range(members) if not any(member in own for own in full)]
    for member in list(late):  # a set has room where it takes no longer than the others
        for own in full:
            if len(spread_gossip(len(own) + 1, ports)) <= rounds:
                own.append(member)
                late.remove(member)
                break
    gossip: list[list[tuple[int, int]]] = [[] for _ in range(rounds)]
    for own in full:
        for index, messages in enumerate(spread_gossip(len(own), ports)):
            gossip[index] += [(own[src], own[dst]) for src, dst in messages]
    tellers = [member for member in range(members) if member not in late]
    while late:
        now, late = late[: ports * len(tellers)], late[ports * len(tellers) :]
        gossip.append([(tellers[index % len(tellers)], member) for index, member in enumerate(now)])
        tellers += now
    return gossip
