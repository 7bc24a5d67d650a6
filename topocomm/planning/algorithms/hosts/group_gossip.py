"""Gossip over groups of ranks for any number of groups: a circulant over their rails, and a tree to one of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.hosts.rail_assignment import RailDemand, deal, rail_sets, told_inside
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.algorithms.multiport import gather_gossip
from topocomm.planning.schedule.range_tree import RangeTree, nested_tree


def cyclic_tree(groups: Groups) -> RangeTree:
    """The expression that an allreduce by `cyclic_gossip` evaluates: groups keep their trees, under an aligned one."""
    below = [groups.insides[sort].tree for sort in groups.sorts]
    return nested_tree(below, [[tuple(range(len(below) + 1))]])


def cyclic_gossip(groups: Groups, radices: Sequence[int], ports: int = 1) -> Gossip:
    """All tell all, for any number of groups, in as many rounds as the radices say (see `rails.py`).

    Group g, which knows groups g..g+c-1 (modulo their number), hears from g+c, g+2c, ...: every group tells as many as
    it hears. What travels are nodes of an aligned tree over the groups, up to 2 log2 c of them in a message.
    """
    rounds: list[list[tuple[int, int]]] = []
    for group, sort in enumerate(groups.sorts):
        _write(rounds, 0, groups.insides[sort].gossip, groups.starts[group])
    known = 1
    for radix in radices:
        known = _extend(groups, rounds, known, radix, ports)
    return rounds


def gather_over_groups(groups: Groups, root: int, ports: int = 1) -> Gossip:
    """All tell the root: a group gathers inside, then tells another group, whose members hear from as many groups each.

    With m rails a set of m * ports + 1 groups becomes one in a hop between groups. Backwards it is a broadcast.

    Args:
        groups: At least one.
        root: Rank.
        ports: K.
    """
    home = bisect_right(groups.starts, root) - 1
    holders = list(range(groups.count))
    rounds: list[list[tuple[int, int]]] = []
    on = groups.members_on
    size = max(1, min(sum(member >= 0 for member in own) for own in on)) * ports + 1
    while len(holders) > 1:
        first, told = len(rounds), list[tuple[int, int]]()
        sets = [holders[low : low + size] for low in range(0, len(holders), size)]
        kept = [home if home in set_ else set_[0] for set_ in sets]
        wishes = [
            RailDemand(target, group, [group], turn)
            for target, set_ in zip(kept, sets, strict=True)
            for turn, group in enumerate(group for group in set_ if group != target)
        ]
        for target, heard in enumerate(deal(wishes, on, ports, [range(len(on[0]))])):
            for rail, _, group in heard:
                teller, member = (max(on[at][rail], 0) for at in (group, target))
                ranks = range(groups.starts[group], groups.starts[group + 1])
                _write(rounds, first, gather_gossip(ranks, teller, ports), 0)
                told.append((groups.starts[group] + teller, groups.starts[target] + member))
        rounds.append(told)
        holders = kept
    ranks = range(groups.starts[home], groups.starts[home + 1])
    return [*rounds, *gather_gossip(ranks, root - groups.starts[home], ports)]


def _extend(groups: Groups, rounds: list[list[tuple[int, int]]], known: int, radix: int, ports: int) -> int:
    """Every group hears from up to radix - 1 others; returns how many groups each knows then."""
    count, first = len(groups.sorts), len(rounds)
    blocks = min(radix, -(-count // known))
    if blocks < 2:
        return known
    on = groups.members_on
    wishes = [
        RailDemand(group, step, [(group + step * known) % count], step - 1)
        for group in range(count)
        for step in range(1, blocks)
    ]
    for group, heard in enumerate(deal(wishes, on, ports, rail_sets(len(on[0]), blocks - 1, ports))):
        start, by_member = groups.starts[group], [list[int]() for _ in range(groups.members(group))]
        told = []
        for rail, step, source in heard:
            member, teller = max(on[group][rail], 0), max(on[source][rail], 0)
            by_member[member].append(step)
            told.append((groups.starts[source] + teller, start + member))
        _write(rounds, first, [told], 0)
        gossip = told_inside(len(by_member), on[group], tuple(map(tuple, by_member)), blocks - 1, ports)
        _write(rounds, first + 1, gossip, start)
    return min(known * blocks, count)


def _write(rounds: list[list[tuple[int, int]]], first: int, gossip: Gossip, offset: int) -> None:
    """Add a gossip among ranks from `offset` on, beginning in round `first`."""
    rounds.extend([] for _ in range(first + len(gossip) - len(rounds)))
    for index, messages in enumerate(gossip, start=first):
        rounds[index] += [(offset + src, offset + dst) for src, dst in messages]
