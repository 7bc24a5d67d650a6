"""Gossips that a search starts from: closed forms, flooding, and greedy broadcast trees.

What every rank knows in the end does not depend on the order of the rounds of a closed form; the time does, where
latencies differ. In a broadcast tree every rank that has the value keeps sending it, each time its port is free.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice, permutations

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Gossip, Message
from topocomm.planning.algorithms.multiport import circulant_gossip, exchange_gossip
from topocomm.planning.search.gossip import SAME_US, Timed

ROUND_ORDERS = 24
"""Most orders of the rounds tried: all of them up to four rounds."""


def patterns(away_us: NDArray[np.float64], latency_us: NDArray[np.float64], ports: int) -> Iterator[Gossip]:
    """Yield every closed form whose messages all have a route; `away_us` are the latencies with relays."""
    count = len(away_us)
    routes = np.isfinite(latency_us).tolist()
    round_trip_us = away_us + away_us.T
    chain, waiting = [0], list(range(1, count))  # each rank followed by its nearest
    while waiting:
        waiting.sort(key=lambda rank: (round(float(round_trip_us[chain[-1], rank]), 6), rank))
        chain.append(waiting.pop(0))
    ranks = list(range(count))
    for order in [ranks, chain] if chain != ranks else [ranks]:
        for gossip in (circulant_gossip(count, ports), exchange_gossip(count, ports)):
            for chosen in islice(permutations(gossip), ROUND_ORDERS):
                numbered = [[(order[src], order[dst]) for src, dst in messages] for messages in chosen]
                if numbered and all(routes[src][dst] for messages in numbered for src, dst in messages):
                    yield numbered


def flood(latency_us: NDArray[np.float64], ports: int) -> Gossip:
    """Return all messages that have a route, in rounds, repeated once a rank: whatever can arrive does."""
    count = len(latency_us)
    rounds: list[list[Message]] = []
    for src, dst in np.argwhere(np.isfinite(latency_us) & ~np.eye(count, dtype=bool)).tolist():
        for messages in rounds:
            sends, receives = sum(a == src for a, _ in messages), sum(b == dst for _, b in messages)
            if max(sends, receives) < ports:
                messages.append((src, dst))
                break
        else:
            rounds.append([(src, dst)])
    return tuple(map(tuple, rounds)) * count


def broadcast_tree(kinds: Sequence[int], latency_us: NDArray[np.float64], root: int, ports: int = 1) -> list[Timed]:
    """Return the messages of a greedy broadcast by start time, one per rank in reach.

    The faster of two trees: always the message that arrives first; and the same, but each sender prefers kinds that no
    rank has reached yet. It takes O(ranks x (log ranks + kinds)).

    Ranks of one kind (of a host, say) are reached in order. `latency_us` float64 [kinds, kinds] is that from a rank of
    one kind to a rank of another, on the diagonal to another of its kind; infinite where no route exists.
    """
    trees = [_tree(kinds, latency_us, root, ports, new_first=new_first) for new_first in (False, True)]
    return min(trees, key=lambda tree: (-len(tree), max((message.arrival_us for message in tree), default=0.0)))


def _tree(
    kinds: Sequence[int], latency_us: NDArray[np.float64], root: int, ports: int, *, new_first: bool
) -> list[Timed]:
    waiting: list[list[int]] = [[] for _ in range(len(latency_us))]
    for rank in range(len(kinds) - 1, -1, -1):
        if rank != root:
            waiting[kinds[rank]].append(rank)
    waiting_count = np.array([len(ranks) for ranks in waiting])
    unreached = np.arange(len(waiting)) != kinds[root]
    tree: list[Timed] = []
    heap: list[tuple[float, int, float]] = []

    def nearest(rank: int) -> tuple[float, int]:
        """Return (latency, kind) of the next target: of the nearest kinds the one with most ranks left."""
        row = np.where(waiting_count > 0, latency_us[kinds[rank]], np.inf)
        if new_first and np.isfinite(row[unreached]).any():
            row = np.where(unreached, row, np.inf)
        least_us = float(row.min())
        return least_us, int(np.where(row <= least_us + SAME_US, waiting_count, -1).argmax())

    def offer(rank: int, free_us: float) -> None:
        latency_us_there, _ = nearest(rank)
        if np.isfinite(latency_us_there):
            heapq.heappush(heap, (free_us + latency_us_there, rank, free_us))

    for _ in range(ports):
        offer(root, 0.0)
    while heap:
        arrival_us, src, free_us = heapq.heappop(heap)
        latency_us_there, kind = nearest(src)
        if free_us + latency_us_there > arrival_us + SAME_US:  # other senders were faster
            offer(src, free_us)
            continue
        dst = waiting[kind].pop()
        waiting_count[kind] -= 1
        unreached[kind] = False
        arrival_us = free_us + latency_us_there
        tree.append(Timed(free_us, arrival_us, src, dst))
        offer(src, arrival_us)
        for _ in range(ports):
            offer(dst, arrival_us)
    return sorted(tree)
