"""Gossips in closed form to start from: `multiport`'s, under several orders of the ranks and of the rounds.

What is heard in the end does not depend on the order of the rounds; how long it takes does, where latencies differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, permutations

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Gossip, Message
from topocomm.planning.algorithms.multiport import circulant_gossip, exchange_gossip

ROUND_ORDERS = 24
"""Most orders of the rounds tried; all of them up to four rounds."""


def patterns(away_us: NDArray[np.float64], latency_us: NDArray[np.float64], ports: int) -> Iterator[Gossip]:
    """Every pattern all of whose messages have a route.

    Args:
        away_us: float64 [n, n]: latencies with relays.
        latency_us: float64 [n, n]: latencies, infinite where no route exists.
        ports: Messages that a rank sends, and receives, at once.
    """
    count = len(away_us)
    routes = np.isfinite(latency_us).tolist()
    for order in _orders(away_us):
        for gossip in (circulant_gossip(count, ports), exchange_gossip(count, ports)):
            for chosen in islice(permutations(gossip), ROUND_ORDERS):
                told = [[(order[src], order[dst]) for src, dst in messages] for messages in chosen]
                if told and all(routes[src][dst] for messages in told for src, dst in messages):
                    yield told


def flood(latency_us: NDArray[np.float64], ports: int) -> Gossip:
    """All messages that have a route, in rounds, as often as there are ranks: whatever can arrive does."""
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


def _orders(away_us: NDArray[np.float64]) -> list[list[int]]:
    """Orders of the ranks: as they are, and from near to near."""
    count = len(away_us)
    both = away_us + away_us.T
    chain, left = [0], list(range(1, count))
    while left:
        left.sort(key=lambda rank: (round(float(both[chain[-1], rank]), 6), rank))
        chain.append(left.pop(0))
    orders = [list(range(count)), chain]
    return orders if orders[0] != orders[1] else orders[:1]
