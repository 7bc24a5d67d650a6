"""Groups of ranks for tests, whole and with parts missing, and the machines of the same shape."""

from dataclasses import replace
from itertools import accumulate

from tests.machines import hosts
from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.algorithms.multiport import spread_gossip
from topocomm.planning.schedule.range_tree import aligned_tree


def groups_of(*sizes, ports=1):
    """Groups of so many ranks."""
    kinds = sorted(set(sizes))
    insides = [Inside(tuple(map(tuple, spread_gossip(size, ports))), aligned_tree(size)) for size in kinds]
    starts = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    return Groups(tuple(starts), tuple(kinds.index(size) for size in sizes), tuple(insides))


def repeated(radix, groups):
    radices = []
    while groups > 1:
        radices.append(min(radix, groups))
        groups = -(-groups // radix)
    return tuple(radices)


def without(groups, gone):
    """Groups of eight, some with a member less or one without a rail: {group: (rail, whether the member is there)}."""
    full, seven = groups_of(8, 7).insides[::-1]
    sorts = tuple(int(group in gone and not gone[group][1]) for group in range(groups))
    starts = (0, *accumulate(8 - sort for sort in sorts))
    rails = [tuple(range(8))] * groups
    for group, (rail, there) in gone.items():
        left = [member if there else member - (member > rail) for member in range(8)]
        rails[group] = tuple(-1 if member == rail else left[member] for member in range(8))
    return Groups(starts, sorts, (full, seven), tuple(rails))


def machine_without(count, gone):
    """The machine of these groups, a rail down or a GPU dead in some hosts."""
    whole = hosts(count, 8)
    dead = {f"h{host}/{kind}{rail}" for host, (rail, there) in gone.items() for kind in ("GPU", "NIC")[there:]}
    links = tuple(link for link in whole.links if not {link.src, link.dst} & dead)
    return replace(whole, devices=tuple(device for device in whole.devices if device.id not in dead), links=links)


GONE = [{0: (3, False)}, {1: (3, True)}, {0: (0, True), 1: (7, False), 2: (5, True)}, {0: (2, False), 3: (2, False)}]
