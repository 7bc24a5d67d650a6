"""Gossip over groups of ranks for any number of groups: a circulant over their rails, and ways to one of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.hosts.rail_assignment import RailDemand, assign_rails, rail_sets, spread_inside
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.algorithms.multiport import gather_gossip
from topocomm.planning.schedule.range_tree import RangeTree, nested_tree


def cyclic_tree(groups: Groups) -> RangeTree:
    """Return the expression of an allreduce by `cyclic_gossip`: the trees of the groups under an aligned tree."""
    below = [groups.insides[sort].tree for sort in groups.sorts]
    return nested_tree(below, [[tuple(range(len(below) + 1))]])


def cyclic_gossip(groups: Groups, radices: Sequence[int], ports: int = 1) -> Gossip:
    """Return a gossip of all ranks for any number of groups; radices as in `rails.py`.

    Group g, which knows groups g..g+c-1 (modulo their number), receives from g+c, g+2c, ... Messages carry up to
    2 log2 c nodes of an aligned tree over the groups.
    """
    rounds: list[list[tuple[int, int]]] = []
    for group, sort in enumerate(groups.sorts):
        _write(rounds, 0, groups.insides[sort].gossip, groups.starts[group])
    known = 1
    for radix in radices:
        known = _extend(groups, rounds, known, radix, ports)
    return rounds


def gather_over_groups(groups: Groups, root: int, ports: int = 1) -> Gossip:
    """Return a gossip from all ranks to the root; backwards it is a broadcast.

    Groups gather inside, then send to another group: with m rails, m * ports + 1 groups become one in a hop.

    `ports` (K) is the number of messages that a rank receives at once.
    """
    home = bisect_right(groups.starts, root) - 1
    holders = list(range(groups.count))
    rounds: list[list[tuple[int, int]]] = []
    members_on = groups.members_on
    size = max(1, min(sum(member >= 0 for member in own) for own in members_on)) * ports + 1
    while len(holders) > 1:
        first, messages = len(rounds), list[tuple[int, int]]()
        sets = [holders[low : low + size] for low in range(0, len(holders), size)]
        kept = [home if home in set_ else set_[0] for set_ in sets]
        demands = [
            RailDemand(target, group, [group], turn)
            for target, set_ in zip(kept, sets, strict=True)
            for turn, group in enumerate(group for group in set_ if group != target)
        ]
        for target, received in enumerate(assign_rails(demands, members_on, ports, [range(len(members_on[0]))])):
            for rail, _, group in received:
                sender, member = (max(members_on[at][rail], 0) for at in (group, target))
                ranks = range(groups.starts[group], groups.starts[group + 1])
                _write(rounds, first, gather_gossip(ranks, sender, ports), 0)
                messages.append((groups.starts[group] + sender, groups.starts[target] + member))
        rounds.append(messages)
        holders = kept
    ranks = range(groups.starts[home], groups.starts[home + 1])
    return [*rounds, *gather_gossip(ranks, root - groups.starts[home], ports)]


def rails_to_root(groups: Groups, root: int) -> Gossip:
    """Return a gossip to the root over all rails of its group at once: for parts, which add up on the way.

    Every member sends over its rail, or that of a member of its group if it has none, to the root's group.
    """
    home, on = bisect_right(groups.starts, root) - 1, groups.members_on
    rounds: list[list[tuple[int, int]]] = []
    most = max(map(groups.members, range(groups.count)))
    for group in range(groups.count):
        start, away = groups.starts[group], (group - home) % groups.count
        if away:
            pairs = [pair for pair in zip(on[group], on[home], strict=True) if min(pair) >= 0] or [(0, 0)]
            members = [member for member in range(groups.members(group)) if member not in dict(pairs)]
            relayed = [[(start + member, start + pairs[i % len(pairs)][0])] for i, member in enumerate(members)]
            _write(rounds, 0, relayed, 0)
            across = [(start + src, groups.starts[home] + dst) for src, dst in pairs]
            _write(rounds, most + away, [across], 0)
    others = [rank for rank in range(groups.starts[home], groups.starts[home + 1]) if rank != root]
    return [messages for messages in rounds if messages] + [[(rank, root)] for rank in others]


def _extend(groups: Groups, rounds: list[list[tuple[int, int]]], known: int, radix: int, ports: int) -> int:
    """Write a level: every group receives from up to radix - 1 others; return how many groups each knows then."""
    count, first = len(groups.sorts), len(rounds)
    blocks = min(radix, -(-count // known))
    if blocks < 2:
        return known
    on = groups.members_on
    demands = [
        RailDemand(group, step, [(group + step * known) % count], step - 1)
        for group in range(count)
        for step in range(1, blocks)
    ]
    for group, received in enumerate(assign_rails(demands, on, ports, rail_sets(len(on[0]), blocks - 1, ports))):
        start, by_member = groups.starts[group], [list[int]() for _ in range(groups.members(group))]
        messages = []
        for rail, step, source in received:
            member, sender = max(on[group][rail], 0), max(on[source][rail], 0)
            by_member[member].append(step)
            messages.append((groups.starts[source] + sender, start + member))
        _write(rounds, first, [messages], 0)
        gossip = spread_inside(len(by_member), on[group], tuple(map(tuple, by_member)), blocks - 1, ports)
        _write(rounds, first + 1, gossip, start)
    return min(known * blocks, count)


def _write(rounds: list[list[tuple[int, int]]], first: int, gossip: Gossip, offset: int) -> None:
    """Add a gossip among ranks from `offset` on, beginning in round `first`."""
    rounds.extend([] for _ in range(first + len(gossip) - len(rounds)))
    for index, messages in enumerate(gossip, start=first):
        rounds[index] += [(offset + src, offset + dst) for src, dst in messages]
