"""Trees inside a host by which a part gets from one member to all others, those with few messages in a row first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.schedule.schedule import split_rows

Edge = tuple[int, int]
"""(parent, child), members of a host."""
Trees = Mapping[int, Sequence[Edge]]
"""For each member the edges of the tree from it, parents first."""


def spreading_trees(groups: RankPatterns, payload_bytes: int) -> Iterator[Trees]:
    """Yield trees for hosts of one kind: straight to all, or both ways around a ring and by the earliest edges."""
    hosts = groups.hosts
    members = range(hosts.members(0))
    rings = groups.rings_of(hosts)
    if rings is None:
        yield {root: [(root, member) for member in members if member != root] for root in members}
        return
    yield {root: _both_ways(rings[0], rings[0].index(root)) for root in members}
    trees = groups.trees_of(hosts, payload_bytes)
    if trees is not None:
        edges: dict[int, list[Edge]] = {root: [] for root in members}
        for _, owner, src, dst in trees.messages[0].tolist():
            edges[owner].append((src, dst))
        yield edges


def relayed_trees(turns: Sequence[int]) -> Iterator[Trees]:
    """Yield trees in which members of other turns than the root's relay to members of their own turn.

    Those of its own turn it sends to itself, and of each other turn to one member, then to two, and so on.
    """
    by_turn = [[member for member, own in enumerate(turns) if own == turn] for turn in range(max(turns) + 1)]
    for heads in range(1, max(map(len, by_turn)) if len(by_turn) > 1 else 0):
        yield {root: _relayed(by_turn, root, turns[root], heads) for root in range(len(turns))}


def _relayed(by_turn: Sequence[Sequence[int]], root: int, turn: int, heads: int) -> list[Edge]:
    """One tree; roots of one turn begin at unlike members of the others."""
    own = by_turn[turn]
    edges = [(root, member) for member in own if member != root]
    for others in (*by_turn[:turn], *by_turn[turn + 1 :]):
        first = own.index(root) % len(others)
        turned = [*others[first:], *others[:first]]
        for low, count in split_rows(len(turned), min(heads, len(turned))):
            edges.append((root, turned[low]))
            edges += [(turned[low], member) for member in turned[low + 1 : low + count]]
    return edges


def _both_ways(ring: Sequence[int], at: int) -> list[Edge]:
    """The way around from a place of the ring in both directions, which meet opposite."""
    count, edges = len(ring), list[Edge]()
    for step in range(1, count // 2 + 1):
        edges.append((ring[(at + step - 1) % count], ring[(at + step) % count]))
        if 2 * step < count:
            edges.append((ring[(at - step + 1) % count], ring[(at - step) % count]))
    return edges
