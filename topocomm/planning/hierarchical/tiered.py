"""Sums of long values host by host, where the network between hosts has tiers: racks, and rows of racks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from topocomm.planning.algorithms.hosts.rail_rings import rail_rings_allreduce
from topocomm.planning.algorithms.hosts.rails_parts import rails_allreduce_in_parts, transfer_count
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.rank_patterns import MOST_RING_RANKS, RankPatterns
from topocomm.planning.routing.network_tiers import Order, tier_orders
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import relabelled


def tiered_allreduces(patterns: RankPatterns, rows: int, most_transfers: int) -> Iterator[tuple[str, Schedule]]:
    """Yield name and schedule of what crosses the links between switches as few times, or with as few bytes, as can be.

    Each is for a commutative operator, and has `most_transfers` at most.
    """
    starts = patterns.host_starts
    if not 2 < len(starts) - 1 <= MOST_RING_RANKS:
        return
    first = [patterns.request.endpoints[patterns.order[rank]] for rank in starts[:-1]]
    orders = tier_orders(first, patterns.paths)
    if orders is None:
        return
    hosts = patterns.hosts
    if transfer_count(hosts, hosts.count) > most_transfers:
        return
    rings = patterns.rings_of(hosts)
    around, by_turns = (_in_order(hosts, order) for order in orders)
    ring = rail_rings_allreduce(around, rows, rings)
    halving = rails_allreduce_in_parts(by_turns, rows, hosts.count, rings)
    for name, order, schedule in zip(("rails-ring", "rails-tiers"), orders, (ring, halving), strict=True):
        ranks = [patterns.order[rank] for host in order for rank in range(*starts[host : host + 2])]
        yield name, relabelled(schedule, ranks)


def _in_order(groups: Groups, order: Order) -> Groups:
    """The groups in another order."""
    starts = accumulate((groups.members(group) for group in order), initial=0)
    sorts = tuple(groups.sorts[group] for group in order)
    return Groups(tuple(starts), sorts, groups.insides)
