"""All-to-all on rails whose switches above carry less: what fits goes straight over them, the rest along the rails."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from topocomm.planning.algorithms.gossip_parts import carried
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule, part_chunks

LEAST_TAPER = 1.01
"""Least factor by which messages to other rails must take longer."""


def straight_steps(ends: Sequence[str], starts: Sequence[int], paths: PathFinder) -> int:
    """Return how many of the steps from member to member fit into the links above the rails; 0 where all do.

    Args:
        ends: Endpoint ids, host by host.
        starts: The first place of each host, and their number.
        paths: The routes of the machine.
    """
    size, ranks = starts[1], starts[-1]
    if len(starts) < 3 or size < 3 or any(high - low != size for low, high in pairwise(starts)):
        return 0
    places = np.arange(ranks)
    host, member = np.divmod(places, size)
    longest = []
    for step in (0, 1):
        to = (host + 1) % (len(starts) - 1) * size + (member + step) % size
        routes = paths.routes(ends, places, to)
        if np.isinf(routes.latency_us).any():
            return 0
        longest.append(float((np.bincount(routes.links) / paths.link_gb_per_s[: routes.links.max() + 1]).max()))
    return int(size * longest[0] / longest[1]) if longest[1] > LEAST_TAPER * longest[0] else 0


def tapered_alltoall(parts: Sequence[int], ranks: int, size: int, order: Sequence[int], straight: int) -> Schedule:
    """Return an all-to-all of hosts of one size; blocks of the first steps to other rails go straight between hosts.

    The others go first to the member of their own host on the rail of their rank. After all that stays inside, a host
    sends to one other host in as many rounds as it has members; in these, hosts take turns on the links above the
    rails, so that these have the same share of all messages at any time.

    Args:
        parts: Rows from each rank to each, by giving rank, then by getting rank.
        ranks: Number of ranks.
        size: Ranks of a host.
        order: The ranks, host by host, member i on rail i.
        straight: Steps of which blocks go straight, 1 to size - 1.
    """
    chunks, pairs = part_chunks(parts)
    giver, taker = np.divmod(np.array(pairs, dtype=np.int64), ranks)
    ranked = np.array(order)
    place = np.argsort(ranked)
    (home, src), (away, dst) = (np.divmod(place[rank], size) for rank in (giver, taker))
    hosts, step = ranks // size, (dst - src) % size
    relayed = (home != away) & (step > straight)
    first = np.where(relayed | (home == away), dst, src)
    inside = np.flatnonzero(first != src)
    between = np.flatnonzero(home != away)
    turn = (away - home) % hosts * size + (step - 1 + home * straight) % size
    moves = [
        np.stack([(away - home)[inside] % hosts * size + step[inside] - hosts * size, giver[inside], inside]),
        np.stack([turn[between], ranked[home * size + first][between], between]),
    ]
    to = [ranked[home * size + first][inside], taker[between]]
    round_, sender, chunk = np.concatenate(moves, axis=1)
    table = np.stack([np.unique(round_, return_inverse=True)[1], sender, np.concatenate(to), chunk])
    return carried(
        ranks, chunks, table[:, np.argsort(table[0], kind="stable")], givers=giver.tolist(), takers=taker.tolist()
    )
