"""Gossip by the letter and optima by trying everything: written apart from what it checks."""

from itertools import combinations, permutations, product
from math import inf

import numpy as np

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.search.gossip import bit_rows
from topocomm.planning.search.gossip import replay as planner_replay
from topocomm.topology.model import ENDPOINT_KINDS


def machine(topology):
    """float64 [n, n]: latencies between the endpoints of a topology."""
    paths = PathFinder(topology)
    ends = [device.id for device in topology.devices if device.kind in ENDPOINT_KINDS]
    return np.array([paths.latencies_us([a] * len(ends), ends) for a in ends])


def direct(count, edges):
    """float64 [n, n]: links of 1 us both ways, and no other route."""
    latency = np.full((count, count), inf)
    np.fill_diagonal(latency, 0.0)
    for a, b in edges:
        latency[a, b] = latency[b, a] = 1.0
    return latency


def everything(count):
    return np.ones((count, count), bool)


def gossip_time_us(gossip, latency, wants, ports):
    """Time of the last wanted arrival by the planner's replay; wants[a, b]: rank b needs the contribution of rank a."""
    return planner_replay(gossip, latency.tolist(), bit_rows(wants.T), ports).time_us


def replay(gossip, latency, wants, ports=1):
    """(time of the last wanted arrival, whether all arrive): contribution by contribution, nothing left out as useless.

    Only for wants of everything: then whatever is news is of use.
    """
    count = len(wants)
    at = [{rank: 0.0} for rank in range(count)]
    send, receive = [[0.0] * ports for _ in range(count)], [[0.0] * ports for _ in range(count)]
    for messages in gossip:
        before = [dict(known) for known in at]
        for src, dst in messages:
            news = [c for c in before[src] if c not in at[dst]]
            if not news:
                continue
            send[src].sort()
            receive[dst].sort()
            start = max([before[src][c] for c in news] + [send[src][0], receive[dst][0]])
            send[src][0] = receive[dst][0] = start + latency[src][dst]
            for c in news:
                at[dst][c] = start + latency[src][dst]
    wanted = [(a, b) for a in range(count) for b in range(count) if wants[a][b]]
    complete = all(a in at[b] for a, b in wanted)
    return max((at[b].get(a, inf) for a, b in wanted), default=0.0), complete


def every_round(count, latency, ports):
    """Every set of messages that one round can hold."""
    edges = [(a, b) for a, b in permutations(range(count), 2) if latency[a][b] < inf]
    found = []
    for size in range(1, min(len(edges), ports * count) + 1):
        for some in combinations(edges, size):
            sends, receives = [a for a, _ in some], [b for _, b in some]
            if max(map(sends.count, sends)) <= ports and max(map(receives.count, receives)) <= ports:
                found.append(some)
    return found


def fewest_rounds(latency, wants, ports=1):
    """Breadth first over everything that can be known."""
    count = len(wants)
    target = [{a for a in range(count) if wants[a][b]} for b in range(count)]
    rounds = every_round(count, latency, ports)
    states, number = {tuple(frozenset([rank]) for rank in range(count))}, 0
    while not any(all(target[r] <= state[r] for r in range(count)) for state in states):
        after = set()
        for state in states:
            for messages in rounds:
                known = list(state)
                for src, dst in messages:
                    known[dst] |= state[src]
                after.add(tuple(known))
        states, number = after, number + 1
    return number


def least_time(latency, wants, labels):
    """The least time of any gossip of so many rounds, one port."""
    rounds = every_round(len(wants), latency, 1)
    best = inf
    for gossip in product(rounds, repeat=labels):
        time, complete = replay(gossip, latency, wants)
        if complete:
            best = min(best, time)
    return best


def least_broadcast(latency, root):
    """The least time of a broadcast with one port, over all trees and all orders of sending."""
    count = len(latency)

    def grow(free, last):
        if len(free) == count:
            return last
        best = inf
        for u, at in free.items():
            for v in range(count):
                if v not in free and latency[u][v] < inf:
                    arrival = at + latency[u][v]
                    best = min(best, grow({**free, u: arrival, v: arrival}, max(last, arrival)))
        return best

    return grow({root: 0.0}, 0.0)
