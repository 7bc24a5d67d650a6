"""Which group hears which over which rail, in one step of many groups at once, and what its members then do.

A *wish* is that a group hears of a block: one of the groups that know all about it tells a member on one of the rails.
Over a rail a group tells one other at a time (K with K ports) and hears one. So to deal wishes to rails is to colour
the edges of a bipartite graph, from groups that tell to groups that hear; a colour is a port of a rail, and a group
lacks those of the rails that it lacks. Where groups are alike a formula colours all. Around a group that lacks a rail,
edges are recoloured along alternating paths (Konig 1916), and wishes put in place of others that find another colour.
That can fail, as colours are missing: then the wish is left out, or, if the group would not hear of the block at all,
somebody tells two one after the other.

Rails are dealt with in sets, just large enough for every wish of a group: a group hears all on each set, and the
members on a set tell each other. With few wishes there are many sets, and few rounds in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.hosts.rank_groups import Rails
from topocomm.planning.algorithms.multiport import spread_gossip

DEPTH, TRIES = 1, 4_000
"""How often others make room for others, and how many colours are tried so in all."""


class RailDemand(NamedTuple):
    """A group is to hear of a block.

    `turn` numbers the wishes of a group from 0 so that the groups that a group tells have it as different turns.
    Without one (-1) any of the sources may tell; with one it is the first, unless that cannot be.
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


def rail_sets(rails: int, wishes: int, ports: int) -> list[range]:
    """Sets of neighbouring rails on which so many wishes of a group find room; where none can be, one of all rails.

    Sets of a power of two, so that they hold whole nodes of the tree over the members, unless smaller ones are more.
    """
    least = max(1, -(-wishes // ports))
    found = []
    for size in (1 << (least - 1).bit_length(), least):
        sets = [range(low, min(low + size, rails)) for low in range(0, rails, size)]
        found.append([own for own in sets if len(own) >= least])
    return max(found, key=len) or [range(rails)]


def deal(wishes: Sequence[RailDemand], on: Rails, ports: int, sets: Sequence[range]) -> list[list[RailAssignment]]:
    """Every group's messages, by rail.

    Args:
        wishes: Of all groups, each (group, block) once.
        on: For each group the member on each rail, -1 for none.
        ports: K.
        sets: Of rails; every wish is fulfilled on each of them, where that can be, and at least once.
    """
    return _EdgeColoring(on, ports).dealt(wishes, sets)


class _EdgeColoring:
    """Colours, and who uses them; colour c is port c % K of rail c // K."""

    def __init__(self, on: Rails, ports: int) -> None:
        self.ports = ports
        self.rail_count = len(on[0])
        usable = {own: [member >= 0 for member in own for _ in range(ports)] for own in dict.fromkeys(on)}
        self.usable = [usable[own] for own in on]
        colours = self.rail_count * ports
        self.told: list[list[RailDemand | None]] = [[None] * colours for _ in on]
        """By group and colour, the wish that it fulfils."""
        self.heard: list[list[tuple[int, int] | None]] = [[None] * colours for _ in on]
        """By group and colour, (source, block)."""
        self.second: list[list[RailAssignment]] = [[] for _ in on]
        """Messages for which a source had to be asked twice."""
        self.tries = TRIES
        self.log: list[tuple[int, RailDemand, int, bool]] = []
        """(source, wish, colour, whether it was given or taken), to undo it."""

    def dealt(self, wishes: Sequence[RailDemand], sets: Sequence[range]) -> list[list[RailAssignment]]:
        """See `deal`."""
        coloured = [[rail * self.ports + port for rail in rails for port in range(self.ports)] for rails in sets]
        missing: dict[tuple[int, int], RailDemand] = {}
        for colours in coloured:
            for wish in self._without_way([wish for wish in wishes if not self._plain(wish, colours)], colours):
                missing[wish.group, wish.block] = wish
        for wish in missing.values():
            if not self._hears(wish):
                self._ask_again(wish, coloured)
        found = []
        for own, second in zip(self.heard, self.second, strict=True):
            first = [
                RailAssignment(colour // self.ports, at[1], at[0]) for colour, at in enumerate(own) if at is not None
            ]
            found.append([*first, *second])
        return found

    def _plain(self, wish: RailDemand, colours: Sequence[int]) -> bool:
        """Deal a wish by the formula, if its colour is free."""
        if wish.turn < 0 or wish.turn >= len(colours):
            return False
        rails = len(colours) // self.ports
        colour = colours[wish.turn % rails * self.ports + wish.turn // rails]
        return self._take(wish, wish.sources[0], colour)

    def _take(self, wish: RailDemand, source: int, colour: int) -> bool:
        """Give a wish a colour, if it is free on both sides."""
        if not (self._free_to_tell(source, colour) and self._free_to_hear(wish.group, colour)):
            return False
        self._put(source, wish, colour)
        return True

    def _put(self, source: int, wish: RailDemand, colour: int) -> None:
        self.told[source][colour] = wish
        self.heard[wish.group][colour] = source, wish.block
        self.log.append((source, wish, colour, True))

    def _drop(self, source: int, colour: int) -> RailDemand | None:
        """Take a wish from a colour; None where the source has none there."""
        wish = self.told[source][colour]
        if wish is not None:
            self.told[source][colour] = self.heard[wish.group][colour] = None
            self.log.append((source, wish, colour, False))
        return wish

    def _take_back(self, length: int) -> None:
        """Undo what was done since the log had this length."""
        while len(self.log) > length:
            source, wish, colour, put = self.log.pop()
            self.told[source][colour] = None if put else wish
            self.heard[wish.group][colour] = None if put else (source, wish.block)

    def _free_to_tell(self, group: int, colour: int) -> bool:
        return self.usable[group][colour] and self.told[group][colour] is None

    def _free_to_hear(self, group: int, colour: int) -> bool:
        return self.usable[group][colour] and self.heard[group][colour] is None

    def _without_way(self, wishes: Sequence[RailDemand], colours: Sequence[int]) -> list[RailDemand]:
        """Deal what the formula did not, those that have a choice of sources last; returns what cannot be dealt."""
        return [
            wish
            for wish in sorted(wishes, key=lambda wish: wish.turn < 0)
            if not any(self._dealt_here(wish, source, colours) for source in wish.sources)
            and not self._in_place_of_others(wish, wish.sources[0], colours)
        ]

    def _dealt_here(self, wish: RailDemand, source: int, colours: Sequence[int]) -> bool:
        """Deal a wish to a colour that is free, or made free."""
        if any(self._take(wish, source, colour) for colour in colours):
            return True
        tells = [colour for colour in colours if self._free_to_tell(source, colour)]
        hears = [colour for colour in colours if self._free_to_hear(wish.group, colour)]
        return any(self._swapped(wish.group, a, b) and self._take(wish, source, a) for a in tells for b in hears)

    def _swapped(self, group: int, a: int, b: int) -> bool:
        """Free colour a at a group that hears: exchange a and b along the path from there, if every end has them."""
        path: list[tuple[int, RailDemand, int]] = []
        hearer, before, after = group, a, b
        while (at := self.heard[hearer][before]) is not None:
            source = at[0]
            wish = self.told[source][before]
            if wish is None:
                raise AssertionError("what is heard is told")
            path.append((source, wish, before))
            onward = self.told[source][after]
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
        for source, wish, colour in path:
            self._put(source, wish, b if colour == a else a)
        return True

    def _in_place_of_others(self, wish: RailDemand, source: int, colours: Sequence[int], depth: int = DEPTH) -> bool:
        """Deal a wish to a colour that others have, if these find another, in place of others again if need be."""
        for colour in colours:
            if not (self.usable[source][colour] and self.usable[wish.group][colour]) or not self.tries:
                continue
            self.tries -= 1
            begin = len(self.log)
            here = self.heard[wish.group][colour]
            tellers = dict.fromkeys([source] if here is None else [source, here[0]])
            out = [(teller, other) for teller in tellers if (other := self._drop(teller, colour)) is not None]
            self._put(source, wish, colour)
            if all(
                self._dealt_here(other, teller, colours)
                or (depth and self._in_place_of_others(other, teller, colours, depth - 1))
                for teller, other in out
            ):
                return True
            self._take_back(begin)
        return False

    def _hears(self, wish: RailDemand) -> bool:
        return any(at is not None and at[1] == wish.block for at in self.heard[wish.group])

    def _ask_again(self, wish: RailDemand, sets: Sequence[Sequence[int]]) -> None:
        """Let sources tell this group in place of one that hears of the block elsewhere; else one of them tells two."""
        for turn, colours in enumerate(sets):
            first = turn % len(wish.sources)
            for source in [*wish.sources[first:], *wish.sources[:first]]:
                if any(self._taken_over(wish, source, colour) for colour in colours):
                    break
        if not self._hears(wish):
            self.second[wish.group].append(self._second(wish))

    def _taken_over(self, wish: RailDemand, source: int, colour: int) -> bool:
        """Take a message from a group that does not need it."""
        other = self.told[source][colour]
        if other is None or not self._free_to_hear(wish.group, colour):
            return False
        if sum(at is not None and at[1] == other.block for at in self.heard[other.group]) < 2:
            return False
        self._drop(source, colour)
        self._put(source, wish, colour)
        return True

    def _second(self, wish: RailDemand) -> RailAssignment:
        """A message over the rail that both have and that is used least."""
        heavy = [
            (self._load(wish.group, source, rail), index, rail)
            for index, source in enumerate(wish.sources)
            for rail in range(self.rail_count)
            if self.usable[source][rail * self.ports] and self.usable[wish.group][rail * self.ports]
        ]
        _, index, rail = min(heavy, default=(0, 0, 0))
        return RailAssignment(rail, wish.block, wish.sources[index])

    def _load(self, group: int, source: int, rail: int) -> int:
        colours = range(rail * self.ports, (rail + 1) * self.ports)
        used = sum(self.heard[group][c] is not None for c in colours)
        used += sum(self.told[source][c] is not None for c in colours)
        return used + 2 * sum(heard.rail == rail for heard in self.second[group])


@cache
def told_inside(
    members: int, on: tuple[int, ...], heard: tuple[tuple[int, ...], ...], blocks: int, ports: int
) -> Gossip:
    """Who tells whom inside a group, so that all members know what they heard.

    Args:
        members: How many.
        on: The member on each rail, -1 for none.
        heard: For each member the blocks that it heard.
        blocks: How many all of them heard.
        ports: K.
    """
    if not blocks:
        return ()
    sets = [[on[rail] for rail in rails if on[rail] >= 0] for rails in rail_sets(len(on), blocks, ports)]
    full = [own for own in sets if len({block for member in own for block in heard[member]}) == blocks]
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
