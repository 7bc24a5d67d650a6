"""Who passes which chunk on to whom, where pairs of endpoints have unlike routes: the earliest completing edge first.

Of all messages that could bring a chunk to an endpoint without it, the one is taken that arrives first, then the next
(Bhat, Raghavendra, Prasanna 2003, there for one message; here for several chunks from one endpoint or from all). An
endpoint sends one message at a time and receives one, and a link serves its messages one after the other. The few
orders that are tried differ in how much a message's duration counts beside its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.member_ring import member_ring
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints

MOST_EDGE_MEMBERS = 16
"""Most endpoints, whose pairs are all looked at for every message."""
WEIGHTS = ((1.0, 1.0, 1e-3), (2.0, 1.0, 1e-3), (1.0, 1.0, 0.3))
"""What counts, of start and duration of a message, and how soon another could bring the same; the best is taken."""
FAR_US = 1e6
"""Where no other could."""


class EdgeOrder(NamedTuple):
    """Messages in rounds: of an endpoint's, as it sends or receives, no two are in one round.

    Attributes:
        rounds: Number of rounds.
        messages: int64 [messages, 4]: round, chunk, source, destination, by round.
        us: When the last one arrives.
    """

    rounds: int
    messages: Ints
    us: float


class _Pairs(NamedTuple):
    """All ordered pairs of endpoints with a route: their figures, and their links, padded with one that is free."""

    src: Ints
    dst: Ints
    latency_us: Floats
    byte_us: Floats
    gap_us: Floats
    links: Ints
    link_byte_us: Floats


def earliest_edges(
    endpoints: Sequence[str], paths: PathFinder, owners: Sequence[int], chunk_bytes: float
) -> EdgeOrder | None:
    """Return messages that bring each chunk from its owner, an index of `endpoints`, to all others.

    None for too many endpoints, and where some do not reach all others.
    """
    if not 1 < len(endpoints) <= MOST_EDGE_MEMBERS:
        return None
    pairs = _pairs_of(endpoints, paths)
    if not len(pairs.src):
        return None
    orders = (_ordered(len(endpoints), pairs, np.array(owners), chunk_bytes, weights) for weights in WEIGHTS)
    made = [order for order in orders if order is not None]
    return min(made, key=lambda order: order.us, default=None)


def pairs_differ(endpoints: Sequence[str], paths: PathFinder) -> bool:
    """Whether routes between the members of a group differ, or share links more than a ring of them does."""
    src, dst = np.nonzero(~np.eye(len(endpoints), dtype=bool))
    routes = paths.routes(endpoints, src, dst)
    if not len(src):
        return False
    differ = routes.gb_per_s.min() < routes.gb_per_s.max() or np.ptp(routes.latency_us) > 0
    return bool(differ) or member_ring(endpoints, paths) is not None


def _pairs_of(endpoints: Sequence[str], paths: PathFinder) -> _Pairs:
    src, dst = np.nonzero(~np.eye(len(endpoints), dtype=bool))
    routes = paths.routes(endpoints, src, dst)
    free = len(paths.link_gb_per_s)
    links = np.full((len(src), int(routes.hops.max())), free)
    links[np.arange(links.shape[1]) < routes.hops[:, None]] = routes.links
    known = np.isfinite(routes.latency_us)
    byte_us = 1 / (routes.gb_per_s[known] * 1e3)
    link_byte_us = np.append(1 / (paths.link_gb_per_s * 1e3), 0.0)
    return _Pairs(
        src[known], dst[known], routes.latency_us[known], byte_us, routes.gap_us[known], links[known], link_byte_us
    )


def _ordered(
    members: int, pairs: _Pairs, owners: Ints, chunk_bytes: float, weights: tuple[float, float, float]
) -> EdgeOrder | None:
    """Take one message after the other, the one of least weight first."""
    chunks = np.arange(len(owners))
    there_us, soon_us = np.full((2, members, len(owners)), FAR_US)
    there_us[owners, chunks] = 0.0
    known = there_us == 0.0
    ports_us, links_us = np.zeros(2 * members), np.zeros(len(pairs.link_byte_us))
    held_us = chunk_bytes * pairs.byte_us + pairs.gap_us
    duration_us = held_us + pairs.latency_us
    of_start, of_duration, of_need = weights
    from_ = [np.flatnonzero(pairs.src == member) for member in range(members)]
    for chunk, owner in enumerate(owners.tolist()):
        soon_us[pairs.dst[from_[owner]], chunk] = duration_us[from_[owner]]
    taken: list[tuple[float, int, int]] = []
    for _ in range(len(owners) * (members - 1)):
        free_us = np.maximum(ports_us[pairs.src], ports_us[members + pairs.dst])
        free_us = np.maximum(free_us, links_us[pairs.links].max(axis=1))
        start_us = np.maximum(free_us[:, None], there_us[pairs.src])
        weight = of_start * start_us + of_duration * duration_us[:, None] - of_need * soon_us[pairs.dst]
        weight[known[pairs.dst] | ~known[pairs.src]] = np.inf
        pair, chunk = divmod(int(weight.argmin()), len(owners))
        if weight[pair, chunk] == np.inf:
            return None
        src, dst, begins_us = int(pairs.src[pair]), int(pairs.dst[pair]), float(start_us[pair, chunk])
        ports_us[[src, members + dst]] = begins_us + held_us[pair]
        links = pairs.links[pair]
        links_us[links] = begins_us + chunk_bytes * pairs.link_byte_us[links]
        there_us[dst, chunk], known[dst, chunk] = begins_us + duration_us[pair], True
        own = from_[dst]
        soon_us[pairs.dst[own], chunk] = np.minimum(
            soon_us[pairs.dst[own], chunk], there_us[dst, chunk] + duration_us[own]
        )
        taken.append((begins_us, pair, chunk))
    return _in_rounds(members, pairs, taken, float(there_us.max()))


def _in_rounds(members: int, pairs: _Pairs, taken: Sequence[tuple[float, int, int]], us: float) -> EdgeOrder:
    """Put every message into the first round after those of its ports before it, and after what brought its chunk."""
    next_of_port, ready, rows = [0] * (2 * members), dict[tuple[int, int], int](), []
    for _, pair, chunk in sorted(taken, key=lambda message: message[0]):
        src, dst = int(pairs.src[pair]), int(pairs.dst[pair])
        round_ = max(next_of_port[src], next_of_port[members + dst], ready.get((src, chunk), 0))
        next_of_port[src] = next_of_port[members + dst] = ready[dst, chunk] = round_ + 1
        rows.append((round_, chunk, src, dst))
    return EdgeOrder(1 + max(round_ for round_, *_ in rows), np.array(sorted(rows), np.int64), us)
