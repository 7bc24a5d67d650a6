"""Turns of what the members of one group of many alike send, where several share a NIC or a bus.

In a period members send messages to others, and on their rail to other groups, as many as there are
colours, while they receive as many. One at a time is on a link that they share: meanwhile the others send inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.algorithms.hosts.turn_packing import least_period, packed_turns, rows_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints

MOST_MEMBERS = 16
"""Largest group: there are as many messages inside as its members squared."""
GRAINS = (1, 2)
"""Turns of the shortest message that are tried."""


@dataclass(frozen=True, eq=False)
class HostTurns:
    """When messages begin, in turns of a period.

    Attributes:
        inside: Of a message from member to member, [members, members].
        across: Of a message to another group, by rail and colour, [rails, colours].
        held: How many turns each inside has, [members, members].
        held_across: The same of one between groups.
        period: Turns of the period.
        part: Length of a turn, as part of a message between groups.
    """

    inside: Ints
    across: Ints
    held: Ints
    held_across: int
    period: int
    part: float


def host_turns(
    groups: Groups,
    endpoints: Sequence[str],
    paths: PathFinder,
    inside: Floats,
    colours: int,
    share: float,
    rails: Sequence[int] | None = None,
) -> HostTurns | None:
    """Return the turns; None where groups are unlike, or members have links between groups each to itself.

    Args:
        groups: The groups, all of whose members are on rails.
        endpoints: The endpoint of every rank.
        paths: The routes of the machine.
        inside: Parts that each member sends to each other one in a period, [members, members].
        colours: Messages to other groups on each rail in a period.
        share: How much of a part such a message is.
        rails: The members that send to other groups; None: all.
    """
    members = groups.members(0)
    if len(groups.insides) > 1 or not 1 < members <= MOST_MEMBERS or len(groups.members_on[0]) != members:
        return None
    own = np.arange(members) if rails is None else np.array(rails)
    other = members + own
    src, dst = (ends.ravel() for ends in np.nonzero(inside))
    parts = np.append(inside[src, dst], np.ones(2 * len(own)))
    count = len(src)
    src, dst = np.concatenate([src, own, other]), np.concatenate([dst, other, own])
    routes = paths.routes(endpoints, src, dst)
    if np.isinf(routes.latency_us).any():
        return None
    rows = rows_of(src, dst, routes, paths.link_gb_per_s, 2 * members)
    between = [(*rows[count + rail], *rows[count + len(own) + rail]) for rail in range(len(own))]
    if max(map(len, between)) == min(map(len, between)) == 4:  # nothing but ports
        return None
    us_of = parts / routes.gb_per_s
    across_us = share * float(us_of[count:].max())
    shortest_us, best = min(across_us, float(us_of[:count].min())), None
    every = [*rows[:count], *(own for own in between for _ in range(colours))]
    for grain in GRAINS:
        turn_us = shortest_us / grain
        held = np.maximum(1, np.rint(np.append(us_of[:count], across_us) / turn_us)).astype(np.int64)
        durations = [*held[:-1].tolist(), *[int(held[-1])] * (len(own) * colours)]
        best_us = np.inf if best is None else best.period * best.part * across_us
        if least_period(every, durations) * turn_us >= best_us:
            continue
        first, period = packed_turns(every, durations)
        if period * turn_us < best_us:
            at = np.zeros((2, members, members), np.int64)
            at[:, src[:count], dst[:count]] = first[:count], held[:-1]
            across = np.zeros((members, colours), np.int64)
            across[own] = first[count:].reshape(len(own), colours)
            best = HostTurns(at[0], across, at[1], int(held[-1]), period, turn_us / across_us)
    return best
