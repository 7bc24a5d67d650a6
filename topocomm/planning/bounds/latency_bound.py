"""Least time of a collective without bytes under `alpha` and under `loggp`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

import numpy as np

from topocomm.planning.bounds.demand import SAME, Demand, farthest
from topocomm.planning.bounds.hierarchy_bound import Levels, least_time_us
from topocomm.planning.bounds.machine_columns import NOBODY, Ints, Machine
from topocomm.planning.bounds.rounds_bound import Bound, witness_of
from topocomm.planning.cost.port_time import PortModel

MOST_CLUSTERED = 256
"""Most endpoints of a machine whose groups by latency are tried beside hosts."""
MOST_LEVELS = 8
"""Most groupings by latency."""
MOST_OWN = 128
"""Most ranks of a group: the sets of pairs grow with it."""


def latency_bound(demand: Demand, machine: Machine, *, rounds: Bound, ports: int, port_model: PortModel) -> Bound:
    """Return the greatest of these bounds; of equal ones the first.

    path: a value must get from a rank to the farthest that needs it, relays allowed. Under alpha also messages: as many
    messages in a row as `rounds` says, each of at least the cheapest path; and levels: `hierarchy_bound.py`. Under
    loggp, where a port is free before its message arrives: one message of the cheapest path; and postal: what a rank
    knows grows with the gaps of its links.
    """
    if demand.least_messages() == 0:
        return Bound(0.0, "nothing needs to be sent", witness_of("latency", "none"))
    cheapest_us = machine.cheapest_us()
    apart_us, src, dst = farthest(demand, machine, machine.latency_us)
    a, b = machine.ids[machine.place[src]], machine.ids[machine.place[dst]]
    path = witness_of("latency", "path", **{"from": src, "to": dst})
    bounds = [Bound(apart_us, f"{a} and {b} are {apart_us:g} us apart", path)]
    alpha = port_model == "alpha"
    in_a_row, row_of = (int(rounds.value or 0), rounds.witness) if alpha else (1, None)
    row = f"{in_a_row} messages in a row" if in_a_row > 1 else "one message"
    messages = witness_of("latency", "messages", in_a_row=in_a_row, cheapest_us=cheapest_us, rounds=row_of)
    bounds.append(Bound(in_a_row * cheapest_us, f"{row} of the cheapest path, {cheapest_us:g} us", messages))
    bounds += (_levels if alpha else _postal)(demand, machine, cheapest_us, ports)
    best = bounds[0]
    for bound in bounds[1:]:
        if (bound.value or 0.0) > (best.value or 0.0) + SAME:
            best = bound
    return best


def _levels(demand: Demand, machine: Machine, cheapest_us: float, ports: int) -> Iterator[Bound]:
    """Yield the bounds of groupings of the ranks where messages across take longer than the cheapest."""
    if cheapest_us <= SAME:
        return
    everybody = demand.gives.all() and demand.gets.all() and not demand.prefix  # then both sides say the same
    groupings = [machine.host_of_ends]
    if len(machine.ends) <= MOST_CLUSTERED:
        groupings += _clusters(machine)
    for labels in {labels.tobytes(): labels for labels in groupings}.values():
        groups = len(np.unique(labels[machine.ends]))
        across_us = machine.cheapest_across_us(labels) if 1 < groups < len(machine.ends) else inf
        if cheapest_us + SAME < across_us < inf:
            group = np.unique(labels[machine.place], return_inverse=True)[1]
            for side in ("hears",) if everybody else ("hears", "reaches"):
                yield from _levels_of(demand, machine, group, side, cheapest_us, across_us, ports)


def _levels_of(
    demand: Demand, machine: Machine, group: Ints, side: str, inside_us: float, across_us: float, ports: int
) -> Iterator[Bound]:
    """Yield the bound of one grouping, from what ranks hear or whom they reach; none for large groups."""
    counts = demand.gives if side == "hears" else demand.gets
    if demand.prefix:
        counts = np.ones(demand.ranks, bool)
    sizes = np.bincount(group, counts)
    if sizes.max() > MOST_OWN:
        return
    members = np.bincount(group)
    ends = np.unique(np.stack([group, machine.place]), axis=1)[0]
    levels = Levels(
        inside_us,
        across_us,
        members=int(members.max()),
        most_own=max(int(sizes.max()), 1),
        total=demand.ranks,
        ports=ports,
        group_ports=ports * int(np.bincount(ends).max()),
    )
    best: tuple[float, int, int, int] | None = None
    others = (demand.heard() if side == "hears" else demand.reached()) - 1
    most = np.flatnonzero((others >= others.max() - 1) & (others > 0))
    # Of the ranks with most partners, the first of each group size may bind.
    binding = {(int(others[rank]), int(members[group[rank]])): rank for rank in reversed(most.tolist())}
    for _, rank in sorted(binding.items(), reverse=True):
        partners = demand.partners(rank, side)
        own = int(partners[group == group[rank]].sum() + counts[rank])
        foreign = int(partners[group != group[rank]].sum())
        time_us = least_time_us(levels, (own, foreign))
        if best is None or time_us > best[0] + SAME:
            best = time_us, rank, own, foreign
    if best is None:
        return
    time_us, rank, own, foreign = best
    groups = [np.flatnonzero(group == label).tolist() for label in dict.fromkeys(group.tolist())]
    figures = {"inside_us": inside_us, "across_us": across_us, "side": side, "rank": rank, "needs": [own, foreign]}
    yield Bound(
        time_us,
        f"{len(groups)} groups, messages of {inside_us:g} us inside and {across_us:g} us across: rank {rank} must "
        f"{'hear of' if side == 'hears' else 'reach'} {own} in its own and {foreign} in others",
        witness_of("latency", "levels", groups=groups, **figures),
    )


def _clusters(machine: Machine) -> list[Ints]:
    """Return groups of endpoints by single linkage: the edges of a least spanning tree (Prim 1957), shortest first.

    Of many levels those are kept where the latency rises most.
    """
    ends = machine.ends
    direct_us = machine.least(machine.starts(ends), machine.latency_us, relays=False)[:, ends]
    apart_us = np.minimum(direct_us, direct_us.T)
    joined, nearest_us, edges = np.zeros(len(ends), bool), apart_us[0].copy(), []
    joined[0], nearest = True, np.zeros(len(ends), np.int64)
    for _ in range(len(ends) - 1):
        best = int(np.where(joined, inf, nearest_us).argmin())
        edges.append((float(nearest_us[best]), int(nearest[best]), best))
        joined[best] = True
        closer = apart_us[best] < nearest_us
        nearest_us, nearest = np.where(closer, apart_us[best], nearest_us), np.where(closer, best, nearest)
    edges.sort()
    levels = [(after[0] / max(us, SAME), us) for (us, _, _), after in pairwise(edges)]
    rises = sorted((level for level in levels if level[0] > 1 + SAME), key=lambda level: (-level[0], level[1]))
    groupings = []
    for _, most_us in rises[:MOST_LEVELS]:
        group = np.arange(len(ends))
        for _, a, b in (edge for edge in edges if edge[0] <= most_us + SAME):
            group[group == max(group[a], group[b])] = min(group[a], group[b])
        labels = np.full(machine.devices, NOBODY)
        labels[ends] = group
        groupings.append(labels)
    return groupings


def _postal(demand: Demand, machine: Machine, cheapest_us: float, ports: int) -> Iterator[Bound]:
    """Yield the bounds of the postal model (Bar-Noy, Kipnis 1992): every message holds its ports for a gap."""
    sides = machine.is_end[machine.src], machine.is_end[machine.dst]
    gap_us = max(float(machine.gap_us[side].min(initial=inf)) for side in sides)  # of leaving an endpoint, entering one
    if min(gap_us, cheapest_us) <= SAME:
        return
    for side, counts in (("hears", demand.heard()), ("reaches", demand.reached())):
        rank = int(counts.argmax())
        needs = int(counts[rank])
        time_us = postal_us(needs, cheapest_us, gap_us, ports)
        yield Bound(
            time_us,
            f"rank {rank} must {'hear of' if side == 'hears' else 'reach'} {needs} ranks, each message takes "
            f"{cheapest_us:g} us and holds its ports for {gap_us:g} us",
            witness_of("latency", "postal", cheapest_us=cheapest_us, gap_us=gap_us, side=side, rank=rank, needs=needs),
        )


def postal_us(needs: int, latency_us: float, gap_us: float, ports: int) -> float:
    """Return the least time until a rank can know of `needs` ranks, itself included.

    A message takes the latency and holds its ports for the gap: known(t) = 1 + K * the sum over i >= 0 of
    known(t - latency - i gap), so from the first latency on known(t) = known(t - gap) + K known(t - latency).
    """
    times_us, known = [0.0], [1]

    def at(time_us: float) -> int:
        return known[max(bisect_right(times_us, time_us + SAME) - 1, 0)]

    heap = [latency_us]
    while known[-1] < needs:
        now_us = heappop(heap)
        if now_us <= times_us[-1] + SAME:
            continue
        grown = at(now_us - gap_us) + ports * at(now_us - latency_us)
        times_us.append(now_us)
        known.append(grown)
        heappush(heap, now_us + gap_us)
        heappush(heap, now_us + latency_us)
    return times_us[-1]
