"""All-to-all without a gossip: every block straight to its rank, in two orders, or with those of its host over a rail.

`parts` has the rows from each rank to each, by giving rank, then by getting rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_parts import carried
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import Schedule, part_chunks

Inside = tuple[Ints, Floats]
"""Relays and times between the members of a host (`member_relays.py`)."""


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


def hosts_alltoall(
    parts: Sequence[int],
    ranks: int,
    starts: Sequence[int],
    order: Sequence[int],
    insides: Sequence[Inside],
    nic_turns: Sequence[int] = (0,),
) -> Schedule:
    """Every block straight to its rank, host after host; inside hosts last, perhaps over a relay.

    In a round all ranks of a host send to one other host, each to another member, so ranks that share a NIC use it
    evenly. `order` has the ranks host by host, `starts` the first place of each host and the number of ranks, `insides`
    what is known of each host. With `nic_turns` of every member (`member_relays.py`), of hosts of equal size, those
    that share a NIC use it in turn, and meanwhile the others send inside.
    """
    chunks, pairs = part_chunks(parts)
    giver, taker = np.divmod(np.array(pairs, dtype=np.int64), ranks)
    ranked, first = np.array(order), np.array(starts)
    place = np.argsort(ranked)
    home, away = (np.searchsorted(first, place[rank], side="right") - 1 for rank in (giver, taker))
    members = place[giver] - first[home], place[taker] - first[away]
    most = int(np.diff(first).max())
    step = members[0] ^ members[1] if most & (most - 1) == 0 else (members[1] - members[0]) % most
    across = np.flatnonzero(home != away)
    turn = (away - home)[across] % (len(first) - 1) * most + step[across]
    turn = turn * (1 + max(nic_turns)) + np.resize(np.array(nic_turns), most)[members[0][across]]
    round_ = np.unique(turn, return_inverse=True)[1]
    moves, before = [np.stack([round_, giver[across], taker[across], across])], int(round_.max(initial=-1)) + 1
    free = np.ones((2, before if max(nic_turns) else 0, most), dtype=bool)
    for end, at_end in enumerate((home[across], away[across]) if max(nic_turns) else ()):
        free[end, round_[at_end == 0], members[end][across][at_end == 0]] = False
    known: dict[tuple[bytes, ...], Ints] = {}
    for host, inside in enumerate(insides):
        own = np.flatnonzero((home == host) & (away == host) & (giver != taker))
        sizes = np.array([chunks[chunk][1] for chunk in own.tolist()], dtype=np.int64)
        blocks = np.stack([members[0][own], members[1][own], sizes], axis=1)
        key = *(table.tobytes() for table in inside), blocks.tobytes()
        if key not in known:
            early, late = _in_gaps(blocks, inside[0], free)
            when, src, dst, place_of = _inside(late[:, :3], *inside)
            known[key] = np.concatenate([early, np.stack([before + when, src, dst, late[place_of, 3]])], axis=1)
        when, src, dst, block = known[key]
        moves.append(np.stack([when, *(ranked[first[host] + end] for end in (src, dst)), own[block]]))
    table = np.concatenate(moves, axis=1)
    table = table[:, np.lexsort(table[2::-1])]
    return carried(ranks, chunks, table, givers=giver.tolist(), takers=taker.tolist())


def _in_gaps(blocks: Ints, relays: Ints, free: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return (rounds, sources, destinations, blocks) of what goes inside a host while others use NICs, and the rest.

    `free` [2, rounds, members] says whose ports send, and receive, nothing else in a round, and take one message then:
    with more, ports that serve their messages in order wait for each other. The rest is [source, destination, rows,
    block], of what has no free round left, or has come as far as its relay.
    """
    waiting = [(-1, block, int(src), int(dst)) for block, (src, dst, _) in enumerate(blocks.tolist())]
    moves = []
    for round_ in range(free.shape[1]):
        sends, receives = (free[end, round_].copy() for end in (0, 1))
        left = np.bincount([src for _, _, src, _ in waiting], minlength=free.shape[2])
        for entry in sorted(waiting, key=lambda entry: (relays[entry[2:]] < 0, -left[entry[2]], entry)):
            after, block, src, dst = entry
            hop = dst if relays[src, dst] < 0 else int(relays[src, dst])
            if after < round_ and sends[src] and receives[hop]:
                sends[src] = receives[hop] = False
                moves.append((round_, src, hop, block))
                waiting.remove(entry)
                if hop != dst:
                    waiting.append((round_, block, hop, dst))
    rest = [(src, dst, int(blocks[block, 2]), block) for _, block, src, dst in waiting]
    return np.array(moves, dtype=np.int64).reshape(-1, 4).T, np.array(rest, dtype=np.int64).reshape(-1, 4)


def _inside(blocks: Ints, relays: Ints, time: Floats) -> Ints:
    """Return (rounds, sources, destinations, blocks) of what goes inside a host, of blocks [source, destination, rows].

    Whenever both its ports are free, the message goes whose ports have most to do.
    """
    left, free = (np.zeros((2, len(time))) for _ in range(2))
    last = np.zeros((2, len(time)), dtype=np.int64)
    waiting = []
    for block, (src, dst, rows) in enumerate(blocks.tolist()):
        way = (src, dst) if relays[src, dst] < 0 else (src, int(relays[src, dst]), dst)
        for a, b in pairwise(way):
            left[0, a] += time[a, b] * rows
            left[1, b] += time[a, b] * rows
        waiting.append((0.0, 0, block, way))

    def urgency(message: tuple[float, int, int, tuple[int, ...]]) -> tuple[float, float, int]:
        there, _, block, (a, b, *_) = message
        return max(there, free[0, a], free[1, b]), -max(left[0, a], left[1, b]), block

    moves = []
    while waiting:
        message = min(waiting, key=urgency)
        waiting.remove(message)
        _, earliest, block, (a, b, *further) = message
        took = time[a, b] * blocks[block, 2]
        ends = ((0, 1), (a, b))
        free[ends] = end = urgency(message)[0] + took
        left[ends] -= took
        round_ = max(earliest, int(last[ends].max()))
        last[ends] = round_ + 1
        moves.append((round_, a, b, block))
        if further:
            waiting.append((end, round_ + 1, block, (b, *further)))
    return np.array(moves, dtype=np.int64).reshape(-1, 4).T


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
