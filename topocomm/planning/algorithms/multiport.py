"""Gossips with K ports for machines whose pairs are all equal: ceil(log_{K+1} P) rounds for every P.

Circulant (Bruck, Ho, Kipnis, Upfal, Weathersby 1997, k-port concatenation): rank r, which knows ranks r..r+w-1,
receives from r+w, r+2w, ... r+Kw. Exchange, where P is a power of K+1: the K+1 ranks that differ in one digit exchange
single nodes of an aligned tree. Trees of degree K+1 reduce and broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.algorithms.gossip_schedule import Gossip, gossip_allreduce, gossip_broadcast, gossip_reduce
from topocomm.planning.schedule.range_tree import RangeTree, aligned_tree
from topocomm.planning.schedule.schedule import Schedule


def multiport_allreduce(ranks: int, rows: int, ports: int) -> Schedule:
    """ceil(log_{K+1} P) rounds for any P, rank order kept: a circulant that carries nodes of the aligned tree."""
    return gossip_allreduce(spread_gossip(ranks, ports), aligned_tree(ranks, ports + 1), rows)


def multiport_reduce(ranks: int, rows: int, root: int, ports: int) -> Schedule:
    """ceil(log_{K+1} P) rounds, rank order kept, one value a message."""
    gossip = gather_gossip(range(ranks), root, ports)
    return gossip_reduce(gossip, aligned_tree(ranks, ports + 1), rows, root)


def multiport_broadcast(ranks: int, rows: int, root: int, ports: int) -> Schedule:
    """ceil(log_{K+1} P) rounds."""
    return gossip_broadcast(reversed_gossip(gather_gossip(range(ranks), root, ports)), ranks, rows, root)


def gossip_back(to_root: Gossip, tree: RangeTree, rows: int, root: int) -> Schedule:
    """Return a broadcast along a gossip to the root of the tree's ranks, backwards."""
    return gossip_broadcast(reversed_gossip(to_root), tree.ranks, rows, root)


def spread_gossip(ranks: int, ports: int) -> Gossip:
    """Return a gossip of ceil(log_{K+1} P) rounds: an exchange where P is a power of K+1, else the circulant."""
    return exchange_gossip(ranks, ports) or circulant_gossip(ranks, ports)


def circulant_gossip(ranks: int, ports: int) -> Gossip:
    """Return the circulant: in round j rank r receives from r + i (K+1)^j, i = 1..K; rounds may be in any order."""
    rounds = []
    for width in powers_below(ranks, ports + 1):
        steps = range(width, min((ports + 1) * width, ranks), width)
        rounds.append([((dst + step) % ranks, dst) for step in steps for dst in range(ranks)])
    return rounds


def exchange_gossip(ranks: int, ports: int) -> Gossip:
    """Return rounds in which ranks that differ in one digit to the base K+1 exchange; none for other P than powers."""
    radix, widths = ports + 1, powers_below(ranks, ports + 1)
    if radix ** len(widths) != ranks:
        return []
    rounds = []
    for width in widths:
        lowest = [dst - dst // width % radix * width for dst in range(ranks)]
        alike = [range(low, low + radix * width, width) for low in lowest]
        rounds.append([(src, dst) for dst, own in enumerate(alike) for src in own if src != dst])
    return rounds


def gather_gossip(members: Sequence[int], root: int, ports: int) -> Gossip:
    """Return a gossip to member number `root` along a tree of degree K+1; subtrees are neighbouring members."""
    holders, rounds = list(range(len(members))), []
    while len(holders) > 1:
        messages, kept = [], []
        for first in range(0, len(holders), ports + 1):
            group = holders[first : first + ports + 1]
            target = root if root in group else group[0]
            messages += [(members[index], members[target]) for index in group if index != target]
            kept.append(target)
        rounds.append(messages)
        holders = kept
    return rounds


def reversed_gossip(gossip: Gossip) -> Gossip:
    """Return the gossip backwards in time."""
    return [[(dst, src) for src, dst in reversed(messages)] for messages in reversed(gossip)]


def powers_below(ranks: int, radix: int) -> list[int]:
    """Return the powers of the radix below the number of ranks: as many as a circulant has rounds."""
    powers = [1]
    while powers[-1] < ranks:
        powers.append(powers[-1] * radix)
    return powers[:-1]
