"""Scan over equal hosts, written as columns: the values of the hosts before arrive over rails, in few hops.

First all members fold the value of their host, and each its prefix in it. Then host g, which has the value W of hosts
g-w+1..g and the value X of those without itself, receives from hosts g-w, g-2w, ...: every member from another of them
on its own rail, and then the members exchange what they received (Hillis, Steele 1986, on the rails of `rails.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import NodeExchange, scan_messages
from topocomm.planning.algorithms.hosts.rail_assignment import rail_sets, spread_inside
from topocomm.planning.algorithms.hosts.rails import GroupColumns
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.schedule.range_tree import aligned_tree
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder

Ints = NDArray[np.int64]
NOTHING = -1
"""Slot of a value that does not exist."""


def shift_scan(groups: Groups, radices: Sequence[int], rows: int, ports: int = 1, *, own: bool) -> Schedule:
    """Return a scan: rank r ends with the fold of the values of ranks 0..r (`own`), or 0..r-1, in rank order.

    Groups are equal; radices are each from 2 to members * ports + 1 and multiply to at least the number of groups. A
    member receives `ports` messages at once (K).
    """
    shift = _Shift(groups, ports)
    shift.inside(own)
    known = 1
    for radix in radices:
        shift.receive(known, radix)
        known *= radix
    return shift.finish(rows)


class _Shift(GroupColumns):
    """Writes the schedule level by level.

    Attributes:
        so_far: Slot of W of each rank.
        before: Slot of X; NOTHING where a host has no values of hosts before it.
        prefix: Slot of the prefix of each rank in its host; NOTHING where it is empty.
    """

    def __init__(self, groups: Groups, ports: int) -> None:
        super().__init__(groups)
        (self.host,) = groups.insides
        self.hosts, self.members, self.ports = groups.count, self.host.members, ports
        self.so_far = np.zeros_like(self.free)
        self.before, self.prefix = self.so_far + NOTHING, self.so_far + NOTHING
        self.round = len(self.host.gossip)

    def inside(self, own: bool) -> None:
        """Write the folds inside hosts: every member gets the value of its host and its prefix."""
        build = ScheduleBuilder(self.members, ((0, 1),))
        exchange = NodeExchange(build, self.host.tree)
        for round_, messages in enumerate(scan_messages(self.host.gossip, self.members, own)):
            exchange.round_before(round_, messages)
        for member in range(self.members):
            self.so_far[member :: self.members] = exchange.value(member)
            if member + own:
                self.prefix[member :: self.members] = exchange.value_before(member, member + own)
        self.copy(build, np.arange(self.hosts), 0 * self.free, 0, by_group=False)
        self.free[:] = np.tile([build.slots_used(member) for member in range(self.members)], self.hosts)

    def receive(self, known: int, radix: int) -> None:
        """Write a level: every host receives from up to radix - 1 hosts before it, at multiples of `known`."""
        most = min(radix - 1, (self.hosts - 1) // known)
        if most < 1:
            return
        received: list[tuple[int, ...]] = [()] * self.members
        """The hosts, from 0 on, that each member receives from."""
        for rails in rail_sets(self.members, most, self.ports):
            for place, member in enumerate(rails):
                received[member] = tuple(range(place, most, len(rails)))
        gossip = spread_inside(self.members, tuple(range(self.members)), tuple(received), most, self.ports)
        last = self.round + len(gossip)
        so_far, before = self.so_far.copy(), self.before.copy()
        for count in range(1, most + 1):
            every = np.arange(self.hosts)
            where = every[np.minimum(every // known, most) == count]
            steps = [[other + 1 for other in others if other < count] for others in received]
            for member, apart in enumerate(steps):
                dst = self.first[where] + member
                for turn, step in enumerate(apart):
                    src = dst - step * known * self.members
                    self.move(self.round, src, so_far[src], dst, self.free[dst] + turn)
            held = [{count - step: turn for turn, step in enumerate(apart, start=1)} for apart in steps]
            build = ScheduleBuilder(self.members, ((0, 1),), first_slots=[1 + len(have) for have in held])
            exchange = NodeExchange(build, aligned_tree(count), held=held)
            exchange.run(gossip, first_round=1)
            results = [exchange.value(member) for member in range(self.members)]
            self.copy(build, where, so_far, self.round, by_group=False)
            for member, slot in enumerate(results):
                ranks = self.first[where] + member
                arrived = self.slots(slot, ranks, so_far)
                self.free[ranks] += build.slots_used(member) - 1
                self.so_far[ranks] = self._fold(last, ranks, arrived, so_far[ranks])
                some = before[ranks] != NOTHING
                later = ranks[some]
                self.before[ranks] = arrived
                self.before[later] = self._fold(last, later, arrived[some], before[later])
        self.round = last + 1

    def finish(self, rows: int) -> Schedule:
        """Write the results, the hosts before and the prefix in the host, and return the schedule."""
        slot = np.where(self.before == NOTHING, self.prefix, self.before)
        ranks = np.arange(len(slot)).reshape(-1, self.members).T.ravel()  # member by member
        both = ranks[((self.before != NOTHING) & (self.prefix != NOTHING))[ranks]]
        slot[both] = self._fold(self.round - 1, both, self.before[both], self.prefix[both])
        receivers = np.flatnonzero(slot != NOTHING)
        return self.schedule(rows, receivers, slot[receivers])

    def _fold(self, round_: int, ranks: Ints, left: Ints, right: Ints) -> Ints:
        """Fold two values of each of these ranks; return the slots."""
        out: Ints = self.free[ranks]
        self.free[ranks] += 1
        self.fold(round_, ranks, out, np.stack([left, right], axis=1))
        return out
