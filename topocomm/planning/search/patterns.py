"""Gossips in closed form to start from: circulant doubling and XOR, under several orders of the ranks and of the steps.

Circulant doubling (Bruck et al. 1997): in step j of radix K+1 the rank in place p tells the places p + i (K+1)^j,
i = 1..K. XOR: place p tells p xor 2^j, for 2^k ranks. What is heard in the end does not depend on the order of the
steps; how long it takes does, where latencies differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.search.gossip import Gossip, Message

STEP_ORDERS = 24
"""Most orders of the steps tried; all of them up to four steps."""


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
        for steps in (_circulant(count, ports), _xor(count, ports)):
            for turn, chosen in enumerate(permutations(steps)):
                if turn == STEP_ORDERS:
                    break
                gossip = tuple(
                    tuple(
                        (order[src], order[dst]) for i in range(len(step[0])) for src, dst in (row[i] for row in step)
                    )
                    for step in chosen
                )
                if gossip and all(routes[src][dst] for messages in gossip for src, dst in messages):
                    yield gossip


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


def _circulant(count: int, ports: int) -> list[list[list[Message]]]:
    """Steps, each a list over places of the messages that the place sends."""
    steps, width = [], 1
    while width < count:
        offsets = [i * width for i in range(1, ports + 1) if i * width < count]
        steps.append([[(p, (p + offset) % count) for offset in offsets] for p in range(count)])
        width *= ports + 1
    return steps


def _xor(count: int, ports: int) -> list[list[list[Message]]]:
    if count & (count - 1) or ports != 1:
        return []
    return [[[(p, p ^ 1 << bit)] for p in range(count)] for bit in range(count.bit_length() - 1)]
