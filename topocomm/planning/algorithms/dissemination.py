"""Dissemination (Bruck, Ho, Kipnis, Upfal, Weathersby 1997): ceil(log2 P) rounds for any P, each chunk moved once.

Allgather: in the round of distance w rank r, which has the parts of r..r+w-1 (modulo P), gets those of the next
min(w, P-w) ranks from rank r+w. Reduce-scatter is the same backwards in time, with folds of ranges that are not
neighbours: for commutative operators only.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.algorithms.gossip_parts import gossip_allgather, gossip_reduce_scatter
from topocomm.planning.algorithms.multiport import circulant_gossip, powers_below
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def dissemination_allgather(parts: Sequence[int]) -> Schedule:
    """ceil(log2 P) rounds, several chunks a message."""
    return gossip_allgather(circulant_gossip(len(parts), ports=1), parts)


def dissemination_reduce_scatter(parts: Sequence[int]) -> Schedule:
    """ceil(log2 P) rounds, P-1 chunks sent and folded a rank."""
    return gossip_reduce_scatter(circulant_gossip(len(parts), ports=1), parts, None)


def disseminate(build: ScheduleBuilder, owners: Sequence[int], held: list[dict[int, int]], *, first_round: int) -> None:
    """Send every chunk from its owner to all ranks that do not hold it, and add the slots to `held`."""
    ranks = build.ranks
    for round_, width in enumerate(powers_below(ranks, 2), start=first_round):
        for chunk, owner in enumerate(owners):
            for offset in range(min(width, ranks - width)):
                source = (owner - offset) % ranks
                target = (source - width) % ranks
                if chunk not in held[target]:
                    held[target][chunk] = build.send(round_, source, held[source][chunk], target, chunk=chunk)
