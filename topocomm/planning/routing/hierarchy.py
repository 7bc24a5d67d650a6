"""The ranks of a machine as nested groups of neighbours, and the radices that join the groups soonest.

Groups come from latencies: for every latency that separates neighbours in rank order (cores of a socket, sockets of a
host, hosts), ranks at most that far apart are in one group. Groups with the same inner gossip are of one sort. Members
of different groups that have the cheapest routes to each other form a rail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.hosts.rail_assignment import rail_sets
from topocomm.planning.algorithms.hosts.rails import rails_gossip, rails_tree
from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.algorithms.multiport import spread_gossip
from topocomm.planning.routing.host_classes import NETWORK
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.range_tree import aligned_tree
from topocomm.planning.shared_results import SharedResults

SAME_US = 1e-9
"""Difference below which latencies count as equal: sums in another order."""
MOST_PAIRED_MEMBERS = 64
"""Largest group whose members are assigned to rails by latency; in larger ones the index is the rail."""


@dataclass(frozen=True)
class Hierarchy:
    """The outermost groups, and the radices to join them.

    Attributes:
        groups: Hosts, or whatever is farthest apart; single ranks where all neighbours are equally far.
        soonest: Fastest radices on the rails of the group with fewest.
        even: Fastest radices that cut the groups in equal blocks, on these rails; `soonest` where there are none.
        spare: Fastest radices for any number of groups that leave a rail free where no group lacks one.
        wide: `even` as if no group lacked a rail.
        ports: K.
    """

    groups: Groups
    soonest: tuple[int, ...]
    even: tuple[int, ...]
    spare: tuple[int, ...]
    wide: tuple[int, ...]
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
        """The smallest radices, which move the fewest bytes."""
        count, radices = len(self.groups.sorts), []
        while count > 1:
            radices.append(min(self.ports + 1, count))
            count = -(-count // radices[-1])
        return tuple(radices)

    def for_rails(self, *, few: bool) -> list[tuple[int, ...]]:
        """Return the radices worth a plan in blocks, with the small ones if there are `few` ranks."""
        radices = [each if self.exact(each) else self.spare for each in (self.even, self.wide)]
        if len(self.spare) < len(self.even):  # a hop between groups less
            radices.insert(0, self.spare)
        return list(dict.fromkeys([*radices, self.small] if few else radices))

    def exact(self, radices: Sequence[int]) -> bool:
        """Whether the blocks of every level have equal numbers of groups, so that no member sends to two at once."""
        return prod(radices) == len(self.groups.sorts)


def hierarchy_of(endpoints: Sequence[str], paths: PathFinder, ports: int) -> Hierarchy:
    """Return the ranks as nested groups, by the latencies between neighbours."""
    return _known.get(
        (paths.topology.digest, tuple(endpoints), ports),
        lambda: _Builder(endpoints, paths, ports).hierarchy(),
    )


_known: SharedResults[tuple[str, tuple[str, ...], int], Hierarchy] = SharedResults(most=64)
"""By topology, endpoints and ports, since a program plans many payloads of one kind."""


def cuts_of(endpoints: Sequence[str], paths: PathFinder) -> list[tuple[int, ...]]:
    """Return cuts of the ranks in groups of neighbours: the edges of the groups for every latency, nearest first.

    Two neighbours in rank order are in one group if their path latency is at most the level. Levels that leave one
    group are left out; where there is no other, every rank is a group. Between hosts the nearest members of the
    groups count: the first or last rank of a host may have a far NIC or none.
    """
    steps_us = paths.latencies_us(endpoints[:-1], endpoints[1:])
    levels_us = _distinct(steps_us)
    if len(levels_us) > 1:
        steps_us = _between_hosts_us(steps_us, levels_us[0], endpoints, paths)
        levels_us = _distinct(steps_us)
    cuts = []
    for level_us in levels_us[:-1]:
        inner = np.flatnonzero(steps_us > level_us + SAME_US) + 1
        cuts.append((0, *inner.tolist(), len(endpoints)))
    return cuts or [tuple(range(len(endpoints) + 1))]


def _between_hosts_us(
    steps_us: NDArray[np.float64], level_us: float, endpoints: Sequence[str], paths: PathFinder
) -> NDArray[np.float64]:
    """The steps, those between hosts by the nearest members of the two groups; of groups of usual size by index."""
    by_id = paths.topology.by_id
    hosts = [by_id[name].host for name in endpoints]
    edges = [0, *(np.flatnonzero(steps_us > level_us + SAME_US) + 1).tolist(), len(endpoints)]
    usual = Counter(np.diff(edges).tolist()).most_common(1)[0][0]
    pairs = [
        (low + a, high + b, high - 1)
        for low, high, end in zip(edges, edges[1:], edges[2:], strict=False)
        if hosts[high - 1] != hosts[high]
        for a in range(min(high - low, MOST_PAIRED_MEMBERS))
        for b in ([a] if high - low == end - high == usual else range(min(end - high, MOST_PAIRED_MEMBERS)))
    ]
    if not pairs:
        return steps_us
    src, dst, step = np.array(pairs).T
    nearest_us = steps_us.copy()
    straight_us = paths.latencies_us([endpoints[a] for a in src.tolist()], [endpoints[b] for b in dst.tolist()])
    np.minimum.at(nearest_us, step, straight_us)
    return nearest_us


def _distinct(values: NDArray[np.float64]) -> list[float]:
    kept: list[float] = []
    for value in np.unique(values).tolist():
        if not kept or value > kept[-1] + SAME_US:
            kept.append(value)
    return kept


@dataclass(frozen=True)
class Steps:
    """Costs of rounds between groups that are alike.

    Attributes:
        across_us: Time of a message between groups, over a rail.
        inside_us: Time of a message inside a group, by the size of the aligned set of members: 2^(index + 1).
    """

    across_us: float
    inside_us: tuple[float, ...]


def best_radices(
    groups: int, rails: int, ports: int, steps: Steps, *, even: bool = False, most_radix: int | None = None
) -> tuple[int, ...]:
    """Return the radices, innermost first, that join all groups soonest; of equal ones those with fewest messages.

    `rails` are those of the group with fewest. If `even`, their product is the number of groups, if possible. The
    largest is `most_radix`; None: rails * ports + 1.
    """
    costs: dict[int, tuple[float, int]] = {}  # (time, messages that a member receives) of one level
    for radix in range(2, (most_radix or rails * ports + 1) + 1):
        members = len(rail_sets(rails, radix - 1, ports)[0])
        rounds = len(spread_gossip(members, ports))
        inside_us = sum(steps.inside_us[min(round_, len(steps.inside_us) - 1)] for round_ in range(rounds))
        costs[radix] = steps.across_us + inside_us, -(-(radix - 1) // members) + rounds

    @cache
    def best(count: int) -> tuple[float, int, tuple[int, ...]]:
        if count == 1:
            return 0.0, 0, ()
        radices = [radix for radix in range(2, min(count, max(costs)) + 1) if not (even and count % radix)]
        choices: list[tuple[float, int, tuple[int, ...]]] = [(inf, 0, (2,) * (count - 1).bit_length())]
        for radix in radices:
            rest_us, rest, others = best(-(-count // radix))
            us, messages = costs[radix]
            choices.append((round(us + rest_us, 9), messages + rest, (radix, *others)))
        return min(choices)

    us, _, radices = best(groups)
    return best_radices(groups, rails, ports, steps) if even and us == inf else radices


class _Builder:
    def __init__(self, endpoints: Sequence[str], paths: PathFinder, ports: int) -> None:
        self.endpoints, self.paths, self.ports = endpoints, paths, ports
        self.cuts = cuts_of(endpoints, paths)
        classes = paths.classes
        self.alike = classes.alike[[classes.index[name] for name in endpoints]].tolist()
        """Number of each rank's endpoint, equal for the same place in hosts that look alike."""
        self.hosts = [
            int(classes.group[device]) if paths.has_template(device) else NETWORK
            for device in (classes.index[name] for name in endpoints)
        ]
        """Number of each rank's host, `NETWORK` where what holds for hosts that look alike may not hold for it."""

    def hierarchy(self) -> Hierarchy:
        """Return the outermost groups after all levels."""
        insides = {}
        for size in set(np.diff(self.cuts[0]).tolist()):  # the members of innermost groups are all alike
            gossip = tuple(tuple(messages) for messages in spread_gossip(size, self.ports))
            insides[size] = Inside(gossip, aligned_tree(size, self.ports + 1))
        of_group = [insides[high - low] for low, high in pairwise(self.cuts[0])]
        for inner, outer in pairwise(self.cuts):
            of_group = self._join_inside(inner, outer, of_group)
        groups = self._groups(self.cuts[-1], of_group)
        steps, fewest, most = self._steps(groups, 0), min(_rail_counts(groups)), max(_rail_counts(groups))
        best = partial(best_radices, groups.count, ports=self.ports, steps=steps)
        spare = best(rails=most, most_radix=max(2, min(fewest * self.ports + 1, most * self.ports)))
        return Hierarchy(
            groups,
            soonest=best(rails=fewest),
            even=best(rails=fewest, even=True),
            spare=tuple(sorted(spare, reverse=True)),  # large blocks spread the remainder over many groups
            wide=best(rails=most, even=True),
            ports=self.ports,
        )

    def _join_inside(self, inner: tuple[int, ...], outer: tuple[int, ...], of_group: list[Inside]) -> list[Inside]:
        """The inner gossip of each group of the outer cut, from that of each group of the inner cut."""
        known: dict[tuple[object, ...], Inside] = {}
        of_look: dict[tuple[object, ...], Inside] = {}  # groups inside one host are those of another that looks alike
        insides = []
        place = {edge: index for index, edge in enumerate(inner)}
        for low, high in pairwise(outer):
            first, last = place[low], place[high]
            edges = tuple(edge - low for edge in inner[first : last + 1])
            look = edges, tuple(self.alike[low:high]), tuple(map(id, of_group[first:last]))
            inside_one = len({*self.hosts[low:high], NETWORK}) == 2
            if inside_one and look in of_look:
                insides.append(of_look[look])
                continue
            groups = self._groups(inner[first : last + 1], of_group[first:last])
            steps = self._steps(groups, low)
            radices = best_radices(groups.count, min(_rail_counts(groups)), self.ports, steps, even=True)
            key = (groups.sorts, tuple(id(inside) for inside in groups.insides), groups.rails, radices)
            if key not in known:
                gossip = tuple(map(tuple, rails_gossip(groups, radices, self.ports)))
                known[key] = Inside(gossip, rails_tree(groups, radices))
            insides.append(known[key])
            if inside_one:
                of_look[look] = known[key]
        return insides

    def _groups(self, edges: Sequence[int], of_group: Sequence[Inside]) -> Groups:
        insides = list({id(inside): inside for inside in of_group}.values())
        number = {id(inside): index for index, inside in enumerate(insides)}
        sorts = tuple(number[id(inside)] for inside in of_group)
        starts = tuple(edge - edges[0] for edge in edges)
        return Groups(starts, sorts, tuple(insides), self._rails(edges))

    def _rails(self, edges: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The member of each group on each rail: in the usual kind of group member i is on rail i."""
        spans = [range(low, high) for low, high in pairwise(edges)]
        if len(spans) < 2 or max(map(len, spans)) > MOST_PAIRED_MEMBERS:
            return ()
        looks = [tuple(self.alike[low:high]) for low, high in pairwise(edges)]
        count = Counter(looks)
        usual = max(dict.fromkeys(looks), key=lambda look: (count[look], len(look)))
        first, *others = [span for span, look in zip(spans, looks, strict=True) if look == usual]
        most_us = inf
        members = {usual: tuple(range(len(first)))}
        if others:
            rail_us = self._apart_us(first, others[0]).diagonal()
            most_us = float(rail_us[np.isfinite(rail_us)].max(initial=0.0))
            if np.isfinite(rail_us).any():
                members[usual] = tuple(rail if us < inf else -1 for rail, us in enumerate(rail_us.tolist()))
        for look, span in zip(looks, spans, strict=True):
            if look not in members:
                apart_us = self._apart_us(first, span)
                members[look] = _on_rails(apart_us, min(most_us, float(apart_us.min())))
        return tuple(members[look] for look in looks)

    def _apart_us(self, group: range, other: range) -> NDArray[np.float64]:
        """float64 [members, members]: latency of the worse direction between members of two groups."""
        out_us = self._latencies_us([(a, b) for a in group for b in other])
        back_us = self._latencies_us([(b, a) for a in group for b in other])
        longer_us: NDArray[np.float64] = np.maximum(out_us, back_us).reshape(len(group), len(other))
        return longer_us

    def _steps(self, groups: Groups, first: int) -> Steps:
        """Costs of rounds: between groups the median over rails, inside those of the largest group."""
        if groups.count < 2:
            return Steps(0.0, (0.0,))
        pairs = [
            (groups.starts[a] + member, groups.starts[a + 1] + partner)
            for a in range(groups.count - 1)
            for member, partner in zip(*groups.members_on[a : a + 2], strict=True)
            if min(member, partner) >= 0
        ]
        across_us = self._latencies_us([(first + a, first + b) for a, b in pairs])
        members, low = max((groups.members(group), -group) for group in range(groups.count))
        inside_us = []
        for size in (1 << k for k in range((members - 1).bit_length())):
            start = first + groups.starts[-low]
            pairs = [(start + m, start + (m ^ size)) for m in range(members) if m ^ size < members]
            inside_us.append(float(self._latencies_us(pairs).max()))
        return Steps(float(np.median(across_us)) if across_us.size else 0.0, tuple(inside_us) or (0.0,))

    def _latencies_us(self, pairs: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
        return self.paths.latencies_us([self.endpoints[a] for a, _ in pairs], [self.endpoints[b] for _, b in pairs])


def _rail_counts(groups: Groups) -> list[int]:
    """Numbers of rails of the groups, without order."""
    return [max(1, sum(member >= 0 for member in own)) for own in dict.fromkeys(groups.members_on)]


def _on_rails(apart_us: NDArray[np.float64], most_us: float) -> tuple[int, ...]:
    """The member on each rail, -1 for none, the nearest first.

    Members at over `most_us` hear sooner from their own group. `apart_us` [rails, members] has the latencies to the
    members on the rail in other groups.
    """
    rails, members = apart_us.shape
    pairs = sorted((round(apart_us[r, m], 9), abs(r - m), r, m) for r in range(rails) for m in range(members))
    on, left = [-1] * rails, set(range(members))
    for us, _, rail, member in pairs:
        if us <= most_us and us < inf and on[rail] < 0 and member in left:
            on[rail] = member
            left.remove(member)
    return tuple(on)
