"""The ranks of a machine as nested groups of neighbours, and the radices that join the groups soonest.

Groups come from latencies: ranks that follow each other and are at most so far apart are in one group, for every
latency that separates neighbours (cores of a socket, sockets of a host, hosts). Groups in which the same is done are
of one sort. Members of two groups that have the cheapest way to each other form a lane (a rail).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip import gossip_of
from topocomm.planning.algorithms.multiport import spread_gossip
from topocomm.planning.algorithms.rails import Groups, Inside, heard_by, rails_allreduce, rails_tree
from topocomm.planning.paths import PathFinder
from topocomm.planning.range_tree import aligned_tree

SAME_US = 1e-9
"""Latencies that differ by less are equal: sums in another order."""
MOST_LANE_MEMBERS = 64
"""Groups of more members are joined member by member of the same index."""


@dataclass(frozen=True)
class Nest:
    """Groups that are joined last.

    Attributes:
        groups: Hosts, or whatever is farthest apart; single ranks where all neighbours are equally far.
        soonest: Radices that join them soonest if a group can tell as many as it hears.
        even: The same, of those that cut the groups in blocks of equal numbers; the former where there are none.
        ports: K.
    """

    groups: Groups
    soonest: tuple[int, ...]
    even: tuple[int, ...]
    ports: int

    @property
    def flat(self) -> bool:
        """Whether the groups are single ranks."""
        return len(self.groups.sorts) == self.groups.starts[-1]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """(first rank, end) of every group."""
        return list(pairwise(self.groups.starts))

    @property
    def small(self) -> tuple[int, ...]:
        """Small radices, which move the fewest bytes."""
        count, radices = len(self.groups.sorts), []
        while count > 1:
            radices.append(min(self.ports + 1, count))
            count = -(-count // radices[-1])
        return tuple(radices)

    def exact(self, radices: Sequence[int]) -> bool:
        """Whether the levels have blocks of equal numbers of groups, so that nobody has to tell two at once."""
        return prod(radices) == len(self.groups.sorts)


def nest_of(endpoints: Sequence[str], paths: PathFinder, ports: int) -> Nest:
    """The ranks as groups of groups, by the latencies between neighbours."""
    return _Nesting(endpoints, paths, ports, cuts_of(endpoints, paths)).nest()


def cuts_of(endpoints: Sequence[str], paths: PathFinder) -> list[tuple[int, ...]]:
    """Ways to cut the ranks in groups of neighbours: edges of the groups, one way for every latency, nearest first.

    Two neighbours in rank order are in one group if their path latency is at most the level. Levels that leave one
    group are left out; where there is no other, every rank is a group.
    """
    steps_us = paths.latencies_us(endpoints[:-1], endpoints[1:])
    found = []
    for level_us in _distinct(steps_us)[:-1]:
        inner = np.flatnonzero(steps_us > level_us + SAME_US) + 1
        found.append((0, *inner.tolist(), len(endpoints)))
    return found or [tuple(range(len(endpoints) + 1))]


def _distinct(values: NDArray[np.float64]) -> list[float]:
    kept: list[float] = []
    for value in np.unique(values).tolist():
        if not kept or value > kept[-1] + SAME_US:
            kept.append(value)
    return kept


@dataclass(frozen=True)
class Steps:
    """What rounds cost between groups that are alike: us."""

    across_us: float
    """A member hears from its like in another group."""
    inside_us: tuple[float, ...]
    """Members tell each other: by the size of the aligned sets in which they do, 2^(index + 1)."""


def best_radices(groups: int, members: int, ports: int, steps: Steps, *, even: bool = False) -> tuple[int, ...]:
    """Radices, innermost first, that make one block of all groups soonest; of equal ones those with fewest messages.

    Args:
        groups: How many.
        members: Of the smallest group.
        ports: K.
        steps: What the rounds cost.
        even: Only radices whose product is the number of groups, if there are any.
    """
    costs = {radix: _joining_us(members, radix, ports, steps) for radix in range(2, members * ports + 2)}

    @cache
    def best(count: int) -> tuple[float, int, tuple[int, ...]]:
        if count == 1:
            return 0.0, 0, ()
        radices = [radix for radix in range(2, min(count, max(costs)) + 1) if not (even and count % radix)]
        found: list[tuple[float, int, tuple[int, ...]]] = [(inf, 0, (2,) * (count - 1).bit_length())]
        for radix in radices:
            rest_us, rest, others = best(-(-count // radix))
            us, told = costs[radix]
            found.append((round(us + rest_us, 9), told + rest, (radix, *others)))
        return min(found)

    us, _, radices = best(groups)
    return best_radices(groups, members, ports, steps) if even and us == inf else radices


def _joining_us(members: int, radix: int, ports: int, steps: Steps) -> tuple[float, int]:
    """(time, messages a member hears) of one level."""
    heard, gossip = heard_by(members, 0, radix, ports)
    us, told = steps.across_us, max(map(len, heard))
    for round_ in range(len(gossip)):
        us += steps.inside_us[min(round_, len(steps.inside_us) - 1)]
        told += 1
    return us, told


class _Nesting:
    """Groups of one level after the other, innermost first."""

    def __init__(
        self, endpoints: Sequence[str], paths: PathFinder, ports: int, cuts: Sequence[tuple[int, ...]]
    ) -> None:
        self.endpoints, self.paths, self.ports, self.cuts = endpoints, paths, ports, cuts

    def nest(self) -> Nest:
        """All levels."""
        insides = {size: _plain(size, self.ports) for size in set(np.diff(self.cuts[0]).tolist())}
        of_group = [insides[high - low] for low, high in pairwise(self.cuts[0])]
        for inner, outer in pairwise(self.cuts):
            of_group = self._join_inside(inner, outer, of_group)
        groups = self._groups(self.cuts[-1], of_group)
        return Nest(groups, self._radices(groups), self._radices(groups, even=True), self.ports)

    def _join_inside(self, inner: tuple[int, ...], outer: tuple[int, ...], of_group: list[Inside]) -> list[Inside]:
        """What the groups of the outer cut do inside, from what those of the inner cut do."""
        made: dict[tuple[object, ...], Inside] = {}
        found = []
        place = {edge: index for index, edge in enumerate(inner)}
        for low, high in pairwise(outer):
            first, last = place[low], place[high]
            groups = self._groups(inner[first : last + 1], of_group[first:last])
            radices = self._radices(groups, low, even=True)
            key = (groups.sorts, tuple(id(inside) for inside in groups.insides), radices)
            if key not in made:
                schedule = rails_allreduce(groups, radices, 1, self.ports)
                gossip = tuple(tuple(messages) for messages in gossip_of(schedule))
                made[key] = Inside(gossip, rails_tree(groups, radices))
            found.append(made[key])
        return found

    def _groups(self, edges: Sequence[int], of_group: Sequence[Inside]) -> Groups:
        insides = list({id(inside): inside for inside in of_group}.values())
        number = {id(inside): index for index, inside in enumerate(insides)}
        sorts = tuple(number[id(inside)] for inside in of_group)
        starts = tuple(edge - edges[0] for edge in edges)
        return Groups(starts, sorts, tuple(insides), self._lanes(edges, sorts, insides))

    def _lanes(
        self, edges: Sequence[int], sorts: Sequence[int], insides: Sequence[Inside]
    ) -> dict[tuple[int, int], tuple[int, ...]]:
        """For groups of two sorts, which member of the one each member of the other hears from."""
        example = {sort: index for index, sort in reversed(list(enumerate(sorts)))}
        lanes = {}
        for a in example:
            for b in example:
                sizes = insides[a].members, insides[b].members
                if a != b and max(sizes) <= MOST_LANE_MEMBERS:
                    lanes[a, b] = self._pairing(edges[example[a]], sizes[0], edges[example[b]], sizes[1])
        return lanes

    def _pairing(self, src: int, src_size: int, dst: int, dst_size: int) -> tuple[int, ...]:
        """Every destination member's nearest source member, those that tell fewest others first."""
        pairs = [(src + a, dst + b) for b in range(dst_size) for a in range(src_size)]
        us = self._latencies_us(pairs).reshape(dst_size, src_size)
        told = [0] * src_size
        chosen = []
        for row in us.tolist():
            best = min(range(src_size), key=lambda member: (told[member], round(row[member], 9), member))
            nearest = min(range(src_size), key=lambda member: (round(row[member], 9), told[member], member))
            member = nearest if told[nearest] == 0 else best
            told[member] += 1
            chosen.append(member)
        return tuple(chosen)

    def _radices(self, groups: Groups, first: int = 0, *, even: bool = False) -> tuple[int, ...]:
        """The radices that join these groups soonest."""
        count, members = len(groups.sorts), min(inside.members for inside in groups.insides)
        return best_radices(count, members, self.ports, self._steps(groups, first, members), even=even)

    def _steps(self, groups: Groups, first: int, members: int) -> Steps:
        """What rounds cost: those between groups as between most neighbours, those inside as in the first group."""
        starts = [first + start for start in groups.starts[:-1]]
        if len(starts) < 2:
            return Steps(0.0, (0.0,))
        across = [(a + m, b + m) for a, b in pairwise(starts) for m in range(members)]
        inside_us = []
        for size in _doublings(members):
            pairs = [(starts[0] + m, starts[0] + (m ^ size)) for m in range(members) if m ^ size < members]
            inside_us.append(float(self._latencies_us(pairs).max()))
        return Steps(float(np.median(self._latencies_us(across))), tuple(inside_us) or (0.0,))

    def _latencies_us(self, pairs: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
        return self.paths.latencies_us([self.endpoints[a] for a, _ in pairs], [self.endpoints[b] for _, b in pairs])


def _plain(members: int, ports: int) -> Inside:
    """Members that are all alike."""
    return Inside(
        tuple(tuple(messages) for messages in spread_gossip(members, ports)), aligned_tree(members, ports + 1)
    )


def _doublings(members: int) -> list[int]:
    return [1 << k for k in range((members - 1).bit_length())]
