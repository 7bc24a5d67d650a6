"""All-to-all in the best mix of matchings (`matching_program.py`): blocks cut as matchings carry them, some relayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from topocomm.planning.algorithms.gossip_parts import carried
from topocomm.planning.routing.own_nics import OwnNics
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.ways.block_parts import Part
from topocomm.planning.ways.folded_hosts import FoldedHosts
from topocomm.planning.ways.matching_order import in_order
from topocomm.planning.ways.matching_program import best_mix
from topocomm.planning.ways.matching_sequence import in_sequence
from topocomm.planning.ways.way_schedule import MOST_BETWEEN, with_paths

NO_CHUNK = -1
"""Of a part without rows."""
LEAST_BYTES = 64 << 10
"""Least bytes of a run."""


@dataclass(frozen=True)
class GroupedRanks:
    """The ranks host by host.

    Attributes:
        order: The ranks.
        starts: The first place of each host in `order`, and the number of ranks.
        endpoints: Endpoint id of every rank.
        nics: The NICs by which blocks between hosts go.
    """

    order: tuple[int, ...]
    starts: tuple[int, ...]
    endpoints: tuple[str, ...]
    nics: OwnNics


def matching_alltoall(parts: Sequence[int], ranks: GroupedRanks, hosts: FoldedHosts, block_bytes: int) -> Schedule:
    """Return an all-to-all of about equal blocks in the best mix of matchings.

    Args:
        parts: Rows from each rank to each, by giving rank, then by getting rank.
        ranks: The ranks, host by host.
        hosts: The same hosts as one.
        block_bytes: Bytes of a block.
    """
    wanted = np.where(hosts.away, hosts.count - 1.0, 1.0)
    mix = best_mix(hosts, wanted)
    if hosts.count > 1:
        found = in_order(hosts, mix, np.maximum(wanted * (block_bytes / LEAST_BYTES), 1.0))
    else:  # of few messages none goes in parts, and all keep to the matchings
        found = in_sequence(hosts, mix)
    return _written(np.array(parts, dtype=np.int64), ranks, hosts, found)


def _written(rows: Ints, ranks: GroupedRanks, hosts: FoldedHosts, parts: Sequence[Part]) -> Schedule:
    """Return the schedule in which every host does this, with `rows` from each rank to each."""
    parts = sorted(parts, key=lambda part: part[:2])
    of, step = (np.array(column, dtype=np.int64) for column in list(zip(*parts, strict=True))[:2])
    low, high = (np.tile(edge, hosts.count) for edge in _edges(of, step, np.array([part.blocks for part in parts])))
    count, size, order = len(ranks.order), hosts.members, np.array(ranks.order)
    host = np.repeat(np.arange(hosts.count), len(parts))
    to = (host + np.tile(step, hosts.count)) % hosts.count
    ends = np.tile(hosts.ends[of], (hosts.count, 1))
    pair = order[host * size + ends[:, 0]] * count + order[to * size + ends[:, 1]]
    first, last = (np.round(edge * rows[pair]).astype(np.int64) for edge in (low, high))
    kept = np.flatnonzero(last > first)
    own = np.arange(0, count**2, count + 1)  # what stays where it is
    own = own[rows[own] > 0]
    chunk_pair = np.concatenate([pair[kept], own])
    begin, end = np.concatenate([first[kept], np.zeros_like(own)]), np.concatenate([last[kept], rows[own]])
    sort = np.lexsort((begin, chunk_pair))
    chunk = np.full(len(pair), NO_CHUNK)
    chunk[kept[sort[sort < len(kept)]]] = np.flatnonzero(sort < len(kept))
    sizes = (end - begin)[sort].tolist()
    givers, takers = np.divmod(chunk_pair[sort], count)
    moves = _moves(hosts, parts, order, np.stack([host, chunk]))
    schedule = carried(
        count,
        list(zip(accumulate(sizes, initial=0), sizes, strict=False)),
        moves,
        givers=givers.tolist(),
        takers=takers.tolist(),
    )
    home = np.empty(count, dtype=np.int64)
    home[order] = np.searchsorted(np.array(ranks.starts), np.arange(count), side="right")
    across = home[moves[1]] != home[moves[2]]
    among = iter(ranks.nics.ways(*([ranks.endpoints[rank] for rank in side[across].tolist()] for side in moves[1:3])))
    return with_paths(schedule, [next(among) if out else () for out in across.tolist()])


def _edges(of: Ints, step: Ints, blocks: Floats) -> tuple[Floats, Floats]:
    """Return where each piece begins and ends in its block; those of a block follow each other."""
    fresh = np.flatnonzero((np.diff(of, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0))
    counts = np.diff(fresh, append=len(of))
    end = np.cumsum(blocks)
    before = np.repeat(end[fresh] - blocks[fresh], counts)
    whole = np.repeat(end[fresh + counts - 1], counts) - before
    high = (end - before) / whole
    low = np.append(0.0, high[:-1])
    low[fresh], high[fresh + counts - 1] = 0.0, 1.0
    return low, high


def _moves(hosts: FoldedHosts, parts: Sequence[Part], order: Ints, at: Ints) -> Ints:
    """Return (round, source, destination, chunk) of all messages, by round; `at` has host and chunk of every part."""
    turns: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    tables, count, size = [], hosts.count, hosts.members
    host, chunk = (column.reshape(count, len(parts)) for column in at)
    for number, part in enumerate(parts):
        here = host[:, number]
        for moment, message in part.hops:
            (src, dst), away = hosts.ends[message].tolist(), bool(hosts.away[message])
            there = (here + part.step * away) % count
            own = turns[moment, message]
            turn = own.setdefault(part.step * away, len(own))
            round_ = np.full(count, moment * MOST_BETWEEN + turn)
            tables.append(np.stack([round_, order[here * size + src], order[there * size + dst], chunk[:, number]]))
            here = there
    table = np.concatenate(tables, axis=1)
    table = table[:, table[3] != NO_CHUNK]
    table = table[:, np.argsort(table[0], kind="stable")]
    table[0] = np.unique(table[0], return_inverse=True)[1]
    return table
