"""Dissemination (Bruck, Ho, Kipnis, Upfal, Weathersby 1997): ceil(log2 P) rounds for any P, each chunk moved once.

Allgather: in the round of distance w rank r, which has the parts of r..r+w-1 (modulo P), gets those of the next
min(w, P-w) ranks from rank r+w. Reduce-scatter is the same backwards in time, with folds of ranges that are not
neighbours: for commutative operators only.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.algorithms.gossip_parts import gossip_allgather, gossip_reduce_scatter
from topocomm.planning.algorithms.multiport import circulant_gossip
from topocomm.planning.schedule.schedule import Schedule


def dissemination_allgather(parts: Sequence[int]) -> Schedule:
    """ceil(log2 P) rounds, several chunks a message."""
    return gossip_allgather(circulant_gossip(len(parts), ports=1), parts)


def dissemination_reduce_scatter(parts: Sequence[int]) -> Schedule:
    """ceil(log2 P) rounds, P-1 chunks sent and folded a rank."""
    return gossip_reduce_scatter(circulant_gossip(len(parts), ports=1), parts, None)
