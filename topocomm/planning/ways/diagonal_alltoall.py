"""All-to-all in which the members of a host send to other hosts at the same time: what they share is never idle.

Where a round of all ranks goes to one host, or stays inside, either NICs or the links inside wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topocomm.planning.algorithms.gossip_parts import carried
from topocomm.planning.routing.own_nics import OwnNics
from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import Schedule, part_chunks
from topocomm.planning.ways.way_schedule import with_paths


def diagonal_alltoall(
    parts: Sequence[int], endpoints: Sequence[str], starts: Sequence[int], order: Sequence[int], nics: OwnNics | None
) -> Schedule:
    """Every block straight to its rank; in a round member j of a host sends to the (i + j)-th host after its own.

    So every round has as many blocks to each host, and inside, as any. Steps from member to member are in bit-reversed
    order, so that those past a bus in the middle of a host come in between. With one port and hosts of equal size a
    round has one block of every port.

    Args:
        parts: Rows from each rank to each, by giving rank, then by getting rank.
        endpoints: Endpoint id of every rank.
        starts: The first place of each host in `order`, and the number of ranks.
        order: The ranks, host by host.
        nics: The NICs by which blocks between hosts go; None: all take the cheapest route.
    """
    ranks, hosts = len(order), len(starts) - 1
    chunks, pairs = part_chunks(parts)
    giver, taker = np.divmod(np.array(pairs, dtype=np.int64), ranks)
    place, first = np.argsort(np.array(order)), np.array(starts)
    home, away = (np.searchsorted(first, place[rank], side="right") - 1 for rank in (giver, taker))
    src, dst = place[giver] - first[home], place[taker] - first[away]
    most = int(np.diff(first).max())
    step = src ^ dst if most & (most - 1) == 0 else (dst - src) % most
    turn = (away - home - src) % hosts * most + _bits_reversed(most)[step]
    moving = np.flatnonzero(giver != taker)
    moving = moving[np.argsort(turn[moving], kind="stable")]
    round_ = np.unique(turn[moving], return_inverse=True)[1].astype(np.int64)
    moves = np.stack([round_, giver[moving], taker[moving], moving])
    schedule = carried(ranks, chunks, moves, givers=giver.tolist(), takers=taker.tolist())
    if nics is None:
        return schedule
    across = (home != away)[moving].tolist()
    ends = [[endpoints[rank] for rank in side[moving].tolist()] for side in (giver, taker)]
    ways = nics.ways(*([end for end, out in zip(side, across, strict=True) if out] for side in ends))
    among = iter(ways)
    return with_paths(schedule, [next(among) if out else () for out in across])


def _bits_reversed(count: int) -> Ints:
    """Return the place of each number below `count` among all, sorted by their bits from the lowest on."""
    bits = max(1, (count - 1).bit_length())
    reversed_ = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(count)]
    return np.argsort(np.argsort(np.array(reversed_)))
