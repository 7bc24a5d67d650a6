"""Parts of a long value over hosts that are alike: while one member sends by a NIC, those that share it send inside.

An allgather of the parts; a reduce_scatter is the same backwards in time, and an allreduce is both, first that.
Where some members have slow ways out, their parts leave by others, or in an allreduce only these others own parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from topocomm.planning.algorithms.hosts.tree_columns import TreeEdges, TreeMessages, tree_schedule
from topocomm.planning.hierarchical.host_messages import HostMessages, host_messages
from topocomm.planning.hierarchical.long_values import is_long
from topocomm.planning.hierarchical.spreading_trees import relayed_trees, spreading_trees
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.message_pace import fast_rails
from topocomm.planning.routing.paths import NoRouteError
from topocomm.planning.schedule.schedule import Schedule, split_rows
from topocomm.planning.schedule.transforms import relabelled

MOST_OVERLAPPED_RANKS, MOST_HOST_MEMBERS = 128, 16
"""Most ranks, P^2 messages a slice, and most of a host."""
MOST_MESSAGES, MOST_CYCLES, SLICES = 2048, 16, (8, 4, 2, 1)
"""Most messages of a host, and most cycles, in which each sends a piece to another one, with which a part is cut."""
LEAST_BYTES = 8 << 10
"""Least bytes of a slice of a part."""
WORTH = 1.05
"""How many times as long it must take if hosts send inside and between each other one after the other."""


def overlapped_parts(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder of an allreduce, allgather or reduce_scatter, in slices.

    Where ports have time left they do not keep to turns of NICs, and less depends on others in one slice: also that.
    """
    if not _fits(request, groups) or (messages := _best(request, groups)) is None:
        return
    part_bytes = request.payload_bytes // (messages.hosts * len(messages.owners))
    slices = _slices(messages, part_bytes)
    for number in dict.fromkeys((slices, 1) if messages.waits_for_nics else (slices,)):
        yield f"rails-overlap-{number}", partial(_schedule, request, groups, messages, number)


def _fits(request: Request, groups: RankPatterns) -> bool:
    """Whether hosts are few and alike, and one port sends by its NIC or inside; many rounds must cost nothing."""
    name, parts, ends, hosts = request.collective.name, request.collective.parts, request.endpoints, groups.hosts
    if request.objective != "auto" or request.port_model != "loggp" or request.cores or request.launch_us:
        return False
    if request.ports > 1 or not is_long(request) or request.payload_bytes < LEAST_BYTES * len(ends):
        return False
    few = len(ends) <= MOST_OVERLAPPED_RANKS and 1 < hosts.members(0) <= MOST_HOST_MEMBERS
    if not few or hosts.count < 2 or len(hosts.insides) > 1 or len(set(ends)) < len(ends):
        return False
    classes = groups.paths.classes
    alike = classes.alike[[classes.index[ends[rank]] for rank in groups.order]].reshape(hosts.count, -1)
    each_a_part = request.layout.rows >= len(ends) if name == "allreduce" else groups.in_order and all(parts)
    return each_a_part and bool((alike == alike[0]).all()) and (request.operator.commutative or name == "allgather")


def _best(request: Request, groups: RankPatterns) -> HostMessages | None:
    """The messages that take least, by the trees inside and the ways out; None where they gain nothing."""
    count, members = groups.hosts.count, groups.hosts.members(0)
    ends = [request.endpoints[rank] for rank in groups.order[: 2 * members]]
    straight = groups.rings_of(groups.hosts) is None
    options: list[HostMessages] = []
    with suppress(NoRouteError):
        for owners, gates in _owners(request.collective.name, ends, groups):
            make = partial(host_messages, ends, count, owners, gates, paths=groups.paths)
            options += [make(trees).in_turns() for trees in spreading_trees(groups, request.payload_bytes)]
            if straight:
                options += [make(trees).in_turns() for trees in relayed_trees(options[-1].turns.tolist())]
    best = min(options, key=lambda option: option.least_us() / len(option.owners), default=None)
    return best if best is not None and best.is_worth(WORTH) else None


class _Owners(NamedTuple):
    """The members of a host that own a part, and the gate of each, by which its part leaves the host."""

    owners: Sequence[int]
    gates: Sequence[int]


def _owners(name: str, ends: Sequence[str], groups: RankPatterns) -> Iterator[_Owners]:
    """Yield all members, and where some have slow ways out, those that have fast ones, or the gates of all."""
    members = np.arange(len(ends) // 2)
    every = members.tolist()
    yield _Owners(every, every)
    fast = fast_rails(groups.hosts, ends, groups.paths)
    if len(fast) == len(members):
        return
    if name == "allreduce":
        yield _Owners(fast, fast)
        return
    src, dst = (side.ravel() for side in np.meshgrid(members, fast, indexing="ij"))
    inside = groups.paths.routes(ends, src, dst).gb_per_s.reshape(len(members), len(fast))
    gates, served = list[int](), np.zeros(len(fast))
    for member in every:
        gate = int((inside[member] / (1 + served)).argmax())
        served[gate] += member not in fast
        gates.append(member if member in fast else fast[gate])
    yield _Owners(every, gates)


def _slices(messages: HostMessages, part_bytes: int) -> int:
    """The slices of a part: hosts that are few have few pieces to overlap with others."""
    for slices in SLICES:
        few = slices * (messages.hosts - 1) <= MOST_CYCLES and slices * len(messages.table) <= MOST_MESSAGES
        if few and part_bytes >= slices * LEAST_BYTES:
            return slices
    return 1


def _schedule(request: Request, groups: RankPatterns, messages: HostMessages, slices: int) -> Schedule:
    """The schedule of all hosts."""
    name, parts = request.collective.name, request.collective.parts
    owned = messages.hosts * len(messages.owners)
    slices = min(slices, *(parts or (request.layout.rows // owned,)))
    first = np.cumsum([0, *parts[:-1]]).tolist()
    whole = list(zip(first, parts, strict=True)) if parts else split_rows(request.layout.rows, owned)
    chunks = [(low + at, rows) for low, own in whole for at, rows in split_rows(own, slices)]
    number = np.repeat(np.arange(owned), slices)
    host, own = np.divmod(number, len(messages.owners))
    owners = host * messages.members + np.array(messages.owners)[own]
    tree = _of_all_hosts(messages, slices, request.payload_bytes // owned // slices, name)
    made = tree_schedule(name, request.collective.ranks, chunks, owners, tree)
    return made if groups.in_order else relabelled(made, groups.order)


def _of_all_hosts(messages: HostMessages, slices: int, slice_bytes: int, name: str) -> TreeMessages:
    """The messages of all hosts in rounds, each of those that begin at a time; what is up, backwards, comes first."""
    _, sends = messages.sends(slices, slice_bytes)
    slice_, message = np.divmod([send.piece for send in sends], len(messages.table))
    behind, owner, src, dst, across, _ = messages.table[message].T
    here = np.arange(messages.hosts)[:, None]
    before = (here - behind) % messages.hosts
    chunk = (before * len(messages.owners) + owner) * slices + slice_
    parent = np.where(across, before, here) * messages.members + src
    child = here * messages.members + dst
    rounds = []
    if name != "allgather":
        rounds.append((_in_order(-np.array(messages.ends_us(sends, slice_bytes))), True))
    if name != "reduce_scatter":
        down = _in_order(np.array([send.start_us for send in sends]))
        rounds.append((down + sum(1 + up.max() for up, _ in rounds), False))
    tables = [
        [np.broadcast_to(column, chunk.shape).ravel() for column in (up, round_, child, parent, chunk)]
        for round_, up in rounds
    ]
    up, *columns = map(np.concatenate, zip(*tables, strict=True))
    edges = TreeEdges(*columns)
    order = np.argsort(edges.round, kind="stable")
    return TreeMessages(up[order], edges.of(order))


def _in_order(
    times_us: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the number of each time among all; equal ones have one."""
    return np.unique(np.round(times_us, 6), return_inverse=True)[1].astype(np.int64)
