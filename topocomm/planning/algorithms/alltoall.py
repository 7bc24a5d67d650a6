"""All-to-all without a gossip: every block straight to its rank, or with those of its host over a rail.

`parts` has the rows from each rank to each, by giving rank, then by getting rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_parts import carried
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.schedule.schedule import Schedule, part_chunks


def flat_alltoall(parts: Sequence[int], ranks: int) -> Schedule:
    """Every block straight from rank to rank: P-1 one-port rounds."""
    chunks, pairs = part_chunks(parts)
    src, dst = np.divmod(np.array(pairs, dtype=np.int64), ranks)
    away = np.flatnonzero(src != dst)
    moves = np.stack([(dst - src)[away] % ranks - 1, src[away], dst[away], away])
    return carried(ranks, chunks, moves, givers=src.tolist(), takers=dst.tolist())


def rails_alltoall(parts: Sequence[int], ranks: int, groups: Groups, order: Sequence[int]) -> Schedule:
    """Blocks go to the member of their group on the rail of their rank, there join those of the others, then across.

    So two groups exchange one message a rail. What is for a member without a rail goes over that of another, and a step
    more inside. `order` has the rank of every member, group by group.
    """
    chunks, pairs = part_chunks(parts)
    giver, taker = np.divmod(np.array(pairs, dtype=np.int64), ranks)
    ranked, starts = np.array(order), np.array(groups.starts)
    place = np.argsort(ranked)
    home, away = (np.searchsorted(starts, place[rank], side="right") - 1 for rank in (giver, taker))
    first, last = _members_between(groups)[:, home, away, place[taker] - starts[away]]
    stops = (place[giver], starts[home] + first, starts[away] + last, place[taker])
    most, moves, before = max(map(groups.members, range(groups.count))), [], 0
    for index, (a, b) in enumerate(pairwise(stops)):
        chunk = np.flatnonzero(a != b)
        count, distance = (groups.count, away - home) if index == 1 else (most, b - a)
        moves.append(np.stack([before + distance[chunk] % count - 1, ranked[a[chunk]], ranked[b[chunk]], chunk]))
        before += count - 1
    round_, src, dst, chunk = np.concatenate(moves, axis=1)
    round_ = np.unique(round_, return_inverse=True)[1]
    return carried(ranks, chunks, np.stack([round_, src, dst, chunk]), givers=giver.tolist(), takers=taker.tolist())


def _members_between(groups: Groups) -> NDArray[np.int64]:
    """[2, groups, groups, members]: over which members of both groups the blocks for each member of the second go."""
    most = max(map(groups.members, range(groups.count)))
    between = np.zeros((2, groups.count, groups.count, most), dtype=np.int64)
    for home, away in product(range(groups.count), repeat=2):
        rails = [pair for pair in zip(groups.members_on[home], groups.members_on[away], strict=True) if min(pair) >= 0]
        if home == away:
            rails = [(member, member) for member in range(most)]
        between[:, home, away] = np.resize(np.array(rails or [(0, 0)]), (most, 2)).T
    return between
