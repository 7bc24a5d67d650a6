"""Trees of a scan over hosts that are alike: rooted trees inside all of them, whose roots are below one another.

Of few hosts all roots are below that of one, which owns the chunk; of many those of a group of hosts are, and the
owners of the groups below one of them. Each host owns as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import numpy as np

from topocomm.planning.routing.routes import Ints
from topocomm.planning.scan_trees.host_hops import HostHops, padded
from topocomm.planning.scan_trees.nested_trees import nested_trees
from topocomm.planning.scan_trees.rank_trees import NO_RANK, ScanTrees
from topocomm.planning.scan_trees.tree_packing import HostTree

MOST_OWNED_HOSTS = 32
"""Most hosts that all tell one of them."""


def groups_of_hosts(count: int) -> int:
    """Return how many hosts neighbours in one group are: all, or about the root of many."""
    return count if count <= MOST_OWNED_HOSTS else isqrt(count - 1) + 1


def owners(count: int, trees: int) -> Ints:
    """Return the host above each, NO_RANK of the owner: [trees, pieces, hosts]."""
    group = groups_of_hosts(count)
    every = nested_trees([(*range(0, count, group), count)], count, count).parents
    outer = len(every) // group
    piece = np.arange(group)
    which = piece * outer + (piece + np.arange(trees)[:, None]) % outer
    return np.asarray(every[which])


def heights(above: Ints) -> Ints:
    """Return how many levels of hosts are below each, of the hosts above them, [chunks, hosts]."""
    chunk, host = np.nonzero(above != NO_RANK)
    made = np.zeros_like(above)
    while True:
        longer = made.copy()
        np.maximum.at(longer, (chunk, above[chunk, host]), 1 + made[chunk, host])
        if (longer == made).all():
            return made
        made = longer


def rooted_trees(hosts: HostHops, trees: Sequence[HostTree], above: Ints) -> ScanTrees:
    """Return each tree on all hosts, as often as a chunk has pieces.

    Args:
        hosts: Hops of the machine.
        trees: Rooted ones.
        above: [trees, pieces, hosts]: the host whose root is above.
    """
    pieces, first = above.shape[1], np.arange(hosts.hosts) * hosts.members
    above = above.reshape(-1, hosts.hosts)
    root = np.repeat([tree.parents.index(NO_RANK) for tree in trees], pieces)
    parents = np.repeat(hosts.on_all(np.array([tree.parents for tree in trees])), pieces, axis=0)
    chunk, host = np.nonzero(above != NO_RANK)
    over, member = above[chunk, host], root[chunk]
    parents[chunk, first[host] + member] = first[over] + member
    ways = []
    for each, ends in (([tree.up for tree in trees], (host, over)), ([tree.down for tree in trees], (over, host))):
        relays = np.array([[padded(way[1:-1]) for way in own] for own in each])
        across = np.repeat(relays, pieces, axis=0)[chunk, member]
        src, dst = (first[end][:, None] for end in ends)
        moved = across + np.where(across < hosts.members, src, dst - hosts.members)
        every = np.repeat(hosts.on_all(relays), pieces, axis=0)
        every[np.arange(len(root))[:, None], root[:, None] + first] = NO_RANK
        every[chunk, first[host] + member] = np.where(across == NO_RANK, NO_RANK, moved)
        ways.append(every)
    return ScanTrees(parents, *ways)
