"""Rates of flows that share links max-min fairly: for the fluid cost model of plans, and for the simulator.

The tightest links divide equally among their flows, then the next tightest (Bertsekas, Gallager, Data Networks, 6.5.2).
A change is worked out for the flows alone that it can reach over links in common.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.routing.routes import Floats, Ints

SAME, ROOM = 1e-9, 1 + 1e-9
"""Time in us, and of all of it, for which a flow may last into the next; rate of a link that flows may have."""
_NONE: Ints = np.zeros(0, dtype=np.int64)


class LinkSharing:
    """Flows under way and their rates; flows and links are numbers.

    Attributes:
        rate_bytes_per_us: float64 [flows]: the present rate of each flow under way; of others, the last one.
        users: int64 [links]: flows under way on each link.
    """

    def __init__(
        self,
        starts: Ints,
        links: Ints,
        link_bytes_per_us: Floats,
        *,
        route_of: NDArray[np.integer] | None = None,
        most_bytes_per_us: Floats | None = None,
    ) -> None:
        """Take the links of every route, one route after the other.

        Args:
            starts: int64 [routes + 1]: route i crosses links[starts[i]:starts[i + 1]].
            links: int64: numbers of links.
            link_bytes_per_us: float64 [links]: bandwidth of each link.
            route_of: int64 [flows]: the route of each flow; None: flow i takes route i.
            most_bytes_per_us: float64 [flows]: a limit on the rate of each flow; None: none.
        """
        self._starts, self._hops, self._links = starts, np.diff(starts), links
        self._link_bytes_per_us = link_bytes_per_us
        self._route_of = np.arange(len(starts) - 1) if route_of is None else route_of
        flows = len(self._route_of)
        alone = np.full(len(starts) - 1, np.inf)
        crossing = np.flatnonzero(self._hops)
        if len(crossing):
            alone[crossing] = np.minimum.reduceat(link_bytes_per_us[links], starts[crossing])
        self._alone = alone
        self._most = most_bytes_per_us
        self.users: Ints = np.zeros(len(link_bytes_per_us), dtype=np.int64)
        self.rate_bytes_per_us: Floats = np.zeros(flows)
        self._under_way: NDArray[np.bool_] = np.zeros(flows, dtype=bool)
        self._known: list[Ints] = []
        """Flows that were started; those that ended are dropped when the list is next read."""

    def change(self, started: Ints, ended: Ints) -> Ints:
        """Start and end flows at one instant, set all rates, and return the flows under way whose rate is another."""
        touched = self._end(ended) if len(ended) else _NONE
        if not len(started) and not len(touched):
            return _NONE
        joined, alone = self._start(started) if len(started) else (_NONE, _NONE)
        if len(alone):
            self.rate_bytes_per_us[alone] = self._least(alone)
        if len(touched) or len(joined):
            return np.concatenate([alone, self._share(np.concatenate([touched, joined]))])
        return alone

    def links_of(self, flows: Ints) -> tuple[Ints, Ints]:
        """Return (number of links of each flow, the links of all of them, one flow after the other)."""
        routes = self._route_of[flows]
        hops = self._hops[routes]
        return hops, self._links[span_places(self._starts[routes], hops)]

    def _least(self, flows: Ints) -> Floats:
        """The rates of flows that share no link."""
        rates: Floats = self._alone[self._route_of[flows]]
        return rates if self._most is None else np.minimum(rates, self._most[flows])

    def _end(self, ended: Ints) -> Ints:
        """Take flows off their links; returns links that others are on."""
        self._under_way[ended] = False
        links = self.links_of(ended)[1]
        np.subtract.at(self.users, links, 1)
        return links[self.users[links] > 0]

    def _start(self, started: Ints) -> tuple[Ints, Ints]:
        """Put flows on their links; returns (links that several are on, flows that share none)."""
        self._under_way[started] = True
        self._known.append(started)
        hops, links = self.links_of(started)
        np.add.at(self.users, links, 1)
        several = self.users[links] > 1
        if not several.any():
            return _NONE, started
        return links[several], started[~np.logical_or.reduceat(several, np.cumsum(hops) - hops)]

    def _share(self, touched: Ints) -> Ints:
        """Set the rates of all flows that these links reach; returns those whose rate changed."""
        flows = np.concatenate(self._known)
        flows = flows[self._under_way[flows]]
        self._known = [flows]
        hops, links = self.links_of(flows)
        first = np.cumsum(hops) - hops
        reached: NDArray[np.bool_] = np.zeros(len(self.users), dtype=bool)
        reached[touched] = True
        count = 0
        while True:
            hit = np.logical_or.reduceat(reached[links], first)
            found = int(hit.sum())
            if found in (count, len(flows)):
                break
            count = found
            reached[links[np.repeat(hit, hops)]] = True
        if found < len(flows):
            flows = flows[hit]
            hops, links = self.links_of(flows)
        most = None if self._most is None else self._most[flows]
        rates = max_min_rates(hops, links, self._link_bytes_per_us, most)
        changed: Ints = flows[rates != self.rate_bytes_per_us[flows]]
        self.rate_bytes_per_us[flows] = rates
        return changed


def max_min_rates(
    hops: Ints, links: Ints, link_bytes_per_us: Floats, most_bytes_per_us: Floats | None = None
) -> Floats:
    """Return float64 [flows]: the max-min fair rates of flows, each of which crosses one link or more.

    A link is done when no flow on it can be held to less than its equal share elsewhere; all such links are done at
    once, so there are as many passes as bottlenecks that wait for each other, not as many as links.

    Args:
        hops: int64 [flows]: number of links of each flow.
        links: int64: numbers of the links of all flows, one flow after the other.
        link_bytes_per_us: float64: bandwidth of each link by number.
        most_bytes_per_us: float64 [flows]: a limit on the rate of each flow; None: none.
    """
    used, local = np.unique(links, return_inverse=True)
    left, users = link_bytes_per_us[used], np.bincount(local, minlength=len(used))
    flows = np.arange(len(hops))
    rates: Floats = np.zeros(len(flows))
    while len(flows):
        first = np.cumsum(hops) - hops
        share = np.divide(left, users, out=np.full(len(used), np.inf), where=users > 0)
        held = np.minimum.reduceat(share[local], first)
        if most_bytes_per_us is not None:
            held = np.minimum(held, most_bytes_per_us[flows])
        least = np.full(len(used), np.inf)
        np.minimum.at(least, local, np.repeat(held, hops))
        done = np.logical_or.reduceat((least >= share)[local], first)
        if most_bytes_per_us is not None:
            done |= held == most_bytes_per_us[flows]
        rates[flows[done]] = held[done]
        if done.all():
            break
        ended = np.repeat(done, hops)
        users -= np.bincount(local[ended], minlength=len(used))
        left -= np.bincount(local[ended], np.repeat(held[done], hops[done]), minlength=len(used))
        flows, hops, local = flows[~done], hops[~done], local[~ended]
    return rates


def has_room(
    hops: Ints, links: Ints, start_us: Floats, end_us: Floats, rate: Floats, link_bytes_per_us: Floats
) -> bool:
    """Return whether no link ever has flows of more than its rate: then max-min fair rates are these all the time.

    Args:
        hops: int64 [flows]: number of links of each flow.
        links: int64: numbers of the links of all flows, one flow after the other.
        start_us: float64 [flows].
        end_us: float64 [flows].
        rate: float64 [flows]: bytes of each flow in a microsecond, of a flow alone.
        link_bytes_per_us: float64: bandwidth of each link by number.
    """
    of = np.repeat(np.arange(len(hops)), hops)
    in_all = np.bincount(links, rate[of], len(link_bytes_per_us))
    some = (in_all > link_bytes_per_us * ROOM)[links] & (end_us > start_us)[of]
    of, links = of[some], links[some]
    time_us = np.concatenate([start_us[of] * (1 + SAME) + SAME, end_us[of]])  # an end comes before what follows it
    change = np.concatenate([rate[of], -rate[of]])
    order = np.lexsort((time_us, np.tile(links, 2)))
    used = np.cumsum(change[order])  # of each link all that began has ended
    return bool((used <= link_bytes_per_us[np.tile(links, 2)[order]] * ROOM).all())


def span_places(first: Ints, counts: Ints) -> Ints:
    """Return the numbers of n ranges, one after the other: each begins at `first`, and has the length in `counts`."""
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    if total == len(first) and counts.all():  # one each
        return first
    places: Ints = (first - ends + counts).repeat(counts)
    places += np.arange(total)
    return places
