"""Scan, reduce and broadcast along a chain of ranks whose links go over several ways at once: relays only carry.

The value is cut where one of the links changes its way, so a chunk has one way on each link. Those that go from
one rank to another at the same time are one message. In slices every rank sends and receives the value about once, and
every NIC of a host carries its share of the link to the next host. A slice begins a period after the one before; each
message of a host has its turn in a period, so that ports and links have one at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from topocomm.planning.forests.chain_flow import ChainFlow, Way
from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import schedule_of_columns, table_of

OWN, BEFORE, RESULT, RELAYED = range(4)
"""Slots: the own value, what comes before it, both folded, and the first of those that a rank carries for others."""
GRID = 32
"""Shares are rounded to such parts, so that links change their ways at the same rows or far from each other."""
Message = tuple[int, int, tuple[int, int]]
"""(rank of a host whose link it is of, hop on the way, its ends)."""


def relay_chain(flow: ChainFlow, rows: int, name: str, *, at_once: bool = False) -> tuple[Schedule, int]:
    """Return a collective along the chain, and the rounds between its slices.

    `name` is scan, exscan, reduce (to the last rank) or broadcast (from the first). With `at_once` the messages of a
    period have no turns, and a slice begins a round after the one before.
    """
    edges = _edges(flow, rows)
    turns: Mapping[Message, int] = defaultdict(int) if at_once else _turns(flow)
    period = 1 + max(turns.values(), default=0)
    longest = [max(len(way) for way, _ in ways) - 1 for ways in flow.ways]
    before = np.concatenate([[0], np.cumsum(longest)])
    """Hops of a host before those of each link, and of all its links."""
    passed_on, moves = BEFORE if name == "broadcast" else RESULT, []
    for rank, chunk, way in _ways_by_chunk(flow, edges):
        carried = RELAYED + rank, RELAYED + rank + flow.period  # for the next host, for that of the host before
        host = np.arange(flow.hosts - (flow.hosts > 1 and rank == flow.period - 1))
        for hop, ends in enumerate(pairwise(way)):
            src, dst = (host * flow.period + end for end in ends)
            round_ = (host * before[-1] + before[rank] + hop) * period + turns[rank, hop, ends]
            sent = carried[ends[0] // flow.period] if hop else np.where(src, passed_on, OWN)
            arrived = BEFORE if ends[1] == way[-1] else carried[ends[1] // flow.period]
            moves.append(table_of(round_, src, sent, dst, arrived, chunk, NO_PATH))
    ranks, every = np.arange(flow.period * flow.hosts), np.arange(len(edges) - 1)
    folding = {"exscan": ranks[1:-1], "broadcast": ranks[:0]}.get(name, ranks[1:])
    links = np.divmod(folding - 1, flow.period)
    heard = (links[0] * before[-1] + before[links[1] + 1]) * period - 1
    results = {
        "scan": [(ranks[:1], OWN), (ranks[1:], RESULT)],
        "exscan": [(ranks[1:], BEFORE)],
        "reduce": [(ranks[-1:], RESULT)],
        "broadcast": [(ranks[:1], OWN), (ranks[1:], BEFORE)],
    }[name]
    return schedule_of_columns(
        len(ranks),
        [(low, high - low) for low, high in pairwise(edges)],
        inputs=np.zeros((1, 3), np.int64) if name == "broadcast" else None,
        outputs=np.concatenate([table_of(receivers[:, None], slot, every) for receivers, slot in results]),
        transfers=np.concatenate([np.zeros((0, 7), np.int32), *moves]),
        combines=table_of(heard[:, None], folding[:, None], RESULT, every),
        operands=[np.tile([BEFORE, OWN], (len(folding) * len(every), 1))],
    ), period


def _edges(flow: ChainFlow, rows: int) -> list[int]:
    """Return the first row of every chunk, and the number of rows."""
    shares = [share for own in flow.ways for share in np.cumsum([share for _, share in own]).tolist()]
    return sorted({0, rows, *(rows * round(share * GRID) // GRID for share in shares)})


def _ways_by_chunk(flow: ChainFlow, edges: list[int]) -> Iterator[tuple[int, int, Way]]:
    """Yield (rank of a host, chunk, way to the next rank)."""
    middles = (np.array(edges[:-1]) + edges[1:]) / 2 / max(edges[-1], 1)
    for rank, own in enumerate(flow.ways):
        ends = np.cumsum([share for _, share in own])
        chosen: Ints = np.minimum(np.searchsorted(ends, middles), len(own) - 1)
        yield from ((rank, chunk, own[way][0]) for chunk, way in enumerate(chosen.tolist()))


def _turns(flow: ChainFlow) -> dict[Message, int]:
    """Return the turn of each message of a host in a period, in which each belongs to another slice.

    Messages that share a port or link have different turns, in an order in which they seldom wait for each other:
    whenever all that it needs is free, the message goes whose ports or links have most to do.
    """
    needs: dict[Message, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    left: dict[int, float] = defaultdict(float)
    for rank, ways in enumerate(flow.ways):
        for way, share in ways:
            for hop, ends in enumerate(pairwise(way)):
                for row, time in flow.loads[ends]:
                    needs[rank, hop, ends][row] += share * time
                    left[row] += share * time
    free, last = dict.fromkeys(left, 0.0), dict.fromkeys(left, 0)
    turns: dict[Message, int] = {}
    while needs:
        ready = {each: (max(free[row] for row in own), -max(left[row] for row in own)) for each, own in needs.items()}
        message = min(needs, key=lambda each: (ready[each], each))
        own = needs.pop(message)
        turns[message] = max(last[row] for row in own)
        for row, time in own.items():
            free[row], last[row] = ready[message][0] + time, turns[message] + 1
            left[row] -= time
    return turns
