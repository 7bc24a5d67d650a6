"""Greatest throughput of a collective in GB/s, by what must cross the borders of groups of devices.

A bound is a cut (`Demand.crossing` over the links of a group) or, of an allreduce, a partition of the endpoints; the
arguments, and which are searched, are in docs/concepts/cost-models.md. Least cuts are minimum cuts, with Newton's
method where the share depends on the group (Edmonds 1973; Frank 1978); partitions are in `partitions.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf

import numpy as np

from topocomm.planning.bounds.demand import Demand
from topocomm.planning.bounds.endpoint_groups import Level
from topocomm.planning.bounds.flows import UNLIMITED, FlowNetwork
from topocomm.planning.bounds.machine_columns import Ints, Machine
from topocomm.planning.bounds.partitions import LESS, best_of_family, best_partition
from topocomm.planning.bounds.rounds_bound import Bound, payload_words, witness_of
from topocomm.planning.collectives import IN_PARTS, PARTS_GIVEN

MOST_EXACT = 64
"""Endpoints, or hosts, up to which all cuts and partitions are searched with minimum cuts."""
MOST_ATOMS = 8
"""Endpoints, or hosts, of which every set is tried as a cut of an alltoall."""
ENOUGH = 1 - 1e-9
"""Share of the wanted flow that counts as all of it."""


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A cut (one group and the share that crosses its border) or a partition, and its bound in GB/s.

    `capacity` is that of the border, or the sum of the groups' borders.
    """

    rate: float
    direction: str
    groups: tuple[Ints, ...]
    capacity: float
    share: float | None = None


def throughput_bound(demand: Demand, machine: Machine, nested: Sequence[Sequence[Level]]) -> Bound:
    """Return the least bound found; `nested` are the machine's `families`."""
    if len(machine.ends) < 2:
        return Bound(None, "all ranks share one endpoint", witness_of("throughput", "none"))
    best = _Candidate(inf, "in", (), 0.0)
    for levels in nested:
        for cut in (cut for level in levels for cut in _cuts_of(demand, level)):
            best = _lower(best, cut)
        for direction in ("out", "in") if demand.name == "allreduce" else ():
            best = _lower(best, _partition_of(demand, levels, direction))
    if len(machine.ends) <= MOST_EXACT:
        best = _exact(demand, machine, np.arange(machine.devices), best)
    elif len(np.unique(machine.host[machine.ends])) <= MOST_EXACT:
        with_ends = np.isin(machine.host, machine.host[machine.ends])  # whole hosts; other devices alone
        node = np.where(with_ends, machine.host, machine.host.max() + 1 + np.arange(machine.devices))
        best = _exact(demand, machine, np.unique(node, return_inverse=True)[1].astype(np.int64), best)
    if not best.groups:
        return Bound(None, "nothing needs to be sent", witness_of("throughput", "none"))
    return _bound(best, machine)


def _lower(best: _Candidate, other: _Candidate) -> _Candidate:
    return other if other.rate < best.rate * LESS else best


def _cuts_of(demand: Demand, level: Level) -> Iterator[_Candidate]:
    shares = demand.crossing(level.of_rank, level.count)
    for direction, share in zip(("in", "out"), shares, strict=True):
        if (share > 0).any():
            rates = np.where(share > 0, level.border(direction) / np.where(share > 0, share, 1), inf)
            group = int(rates.argmin())
            devices = level.devices([group], direction)[0]
            capacity = float(level.border(direction)[group])
            yield _Candidate(float(rates[group]), direction, (devices,), capacity, float(share[group]))


def _partition_of(demand: Demand, levels: Sequence[Level], direction: str) -> _Candidate:
    parents = []
    for fine, coarse in pairwise(levels):
        parent = np.zeros(fine.count, np.int64)
        parent[fine.of_rank] = coarse.of_rank
        parents.append(parent)
    gives = [np.bincount(level.of_rank, demand.gives, level.count) > 0 for level in levels]
    rate, chosen = best_of_family(parents, [level.border(direction) for level in levels], gives)
    groups: list[Ints] = []
    for index, level in enumerate(levels):
        groups += level.devices([group for at, group in chosen if at == index], direction)
    capacity = float(sum(levels[level].border(direction)[group] for level, group in chosen))
    return _Candidate(rate, direction, tuple(sorted(groups, key=lambda devices: int(devices.min()))), capacity)


def _exact(demand: Demand, machine: Machine, node: Ints, best: _Candidate) -> _Candidate:
    """Return the least bound over all cuts and partitions that keep the devices of each node together."""
    nodes = int(node.max()) + 1
    arcs = list(zip(node[machine.src].tolist(), node[machine.dst].tolist(), machine.gb_per_s.tolist(), strict=True))
    network = FlowNetwork(nodes, arcs)
    of_rank = node[machine.place]
    if demand.pairs is not None:
        return _least_cut_of_pairs(demand, machine, node, network, best)
    for into, out_of, scaled in _terminals(demand, of_rank, nodes):
        best = _least_cut(demand, machine, node, network, (into, out_of, scaled), best)
    if demand.name == "allreduce" and demand.gives.all():
        atoms = sorted(set(of_rank.tolist()))
        back = [(b, a, rate) for a, b, rate in arcs]
        directions = [("out", network)] + [("in", FlowNetwork(nodes, back))] * (sorted(arcs) != sorted(back))
        for direction, net in directions:

            def border(side: set[int], out: bool = direction == "out") -> float:
                return float(machine.border(np.isin(node, sorted(side)).astype(np.int64) - 1, 1)[out][0])

            partition = best_partition(net, atoms, border, best.rate)
            if partition is not None:
                groups = [np.flatnonzero(np.isin(node, sorted(side))) for side in partition[1]]
                capacity = sum(border(side) for side in partition[1])
                best = _lower(best, _Candidate(partition[0], direction, tuple(groups), capacity))
    return best


def _least_cut_of_pairs(
    demand: Demand, machine: Machine, node: Ints, network: FlowNetwork, best: _Candidate
) -> _Candidate:
    """Return the least cut by what crosses it, of the sets of nodes with ranks of `_sides`."""
    of_rank = node[machine.place]
    for chosen, others in _sides(machine, node, sorted(set(of_rank.tolist()))):
        share = float(demand.crossing(np.isin(of_rank, chosen).astype(np.int64), 2)[1][1])
        into, out_of = dict.fromkeys(chosen, UNLIMITED), dict.fromkeys(others, UNLIMITED)
        side = network.min_cut(into, out_of, best.rate * share * ENOUGH) if share > 0 else None
        if side is not None:
            inside = np.isin(node, sorted(side))
            capacity = machine.border(inside.astype(np.int64), 2)[1][1].item()
            few = bool(2 * inside[machine.ends].sum() <= len(machine.ends))
            devices = np.flatnonzero(inside == few)
            best = _lower(best, _Candidate(capacity / share, "out" if few else "in", (devices,), capacity, share))
    return best


def _sides(machine: Machine, node: Ints, atoms: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield sets of nodes with ranks, and the others: all where they are few, else those around a forwarding device."""
    if len(atoms) <= MOST_ATOMS:
        some = [set(chosen) for count in range(1, len(atoms)) for chosen in combinations(atoms, count)]
    else:
        src, dst = node[machine.src], node[machine.dst]
        forwards = np.ones(int(node.max()) + 1, dtype=bool)
        forwards[node[machine.ends]] = False
        some = []
        for hub in np.flatnonzero(forwards).tolist():
            near, reached = np.zeros(0, np.int64), np.array([hub])
            while len(near) < len(reached):
                near = reached
                reached = np.unique(np.concatenate([near, dst[np.isin(src, near[forwards[near]])]]))
                some.append(set(reached.tolist()) & set(atoms))
    for chosen in {frozenset(side): None for one in some for side in (one, set(atoms) - one) if side}:
        if len(chosen) < len(atoms):
            yield sorted(chosen), sorted(set(atoms) - chosen)


def _terminals(demand: Demand, of_rank: Ints, nodes: int) -> Iterator[tuple[dict[int, float], dict[int, float], bool]]:
    """Yield (capacities from the source, capacities to the sink, whether finite ones are shares of the payload).

    Minimum cuts of these miss no cut: of a prefix between neighbours in rank order, since the least cut of two ranks is
    at least that of some neighbours between them; else from and to one rank that gives and gets.
    """
    atoms = sorted(set(of_rank.tolist()))
    if demand.name in IN_PARTS:
        share = np.bincount(of_rank, demand.shares, nodes).tolist()
        shares = {atom: share[atom] for atom in atoms if share[atom] > 0}
        gathers = demand.name in PARTS_GIVEN
        for atom in sorted(set(of_rank[demand.gets if gathers else demand.gives].tolist())):
            atom_alone = {atom: UNLIMITED}
            yield (shares, atom_alone, True) if gathers else (atom_alone, shares, True)
        return
    if demand.prefix:
        pairs = list(zip(of_rank.tolist(), of_rank[1:].tolist(), strict=False))
    else:
        givers = sorted(set(of_rank[demand.gives].tolist()))
        getters = sorted(set(of_rank[demand.gets].tolist()))
        hub = min(set(givers) & set(getters))  # on whichever side of a cut it is, it tells or hears across
        pairs = [(hub, b) for b in getters] + [(a, hub) for a in givers]
    for a, b in dict.fromkeys(pairs):
        if a != b:
            yield {a: UNLIMITED}, {b: UNLIMITED}, False


def _least_cut(
    demand: Demand,
    machine: Machine,
    node: Ints,
    network: FlowNetwork,
    terminals: tuple[dict[int, float], dict[int, float], bool],
    best: _Candidate,
) -> _Candidate:
    """Return the least cut by Newton's method: a minimum cut at the best rate so far, its own rate, and again.

    A cut is described by its side with fewer endpoints.
    """
    into, out_of, scaled = terminals
    while best.rate > 0:
        factor = best.rate if scaled and best.rate < inf else 1.0
        total = sum(min(sum(side.values()), inf) for side in (into, out_of) if UNLIMITED not in side.values())
        enough = (factor * total if scaled else best.rate) * ENOUGH
        source, sink = ({node: rate * factor for node, rate in ends.items()} for ends in (into, out_of))
        side = network.min_cut(source, sink, enough)
        if side is None:
            return best
        inside = np.isin(node, sorted(side))
        labels = inside.astype(np.int64)
        share = float(demand.crossing(labels[machine.place], 2)[1][1])
        capacity = machine.border(labels, 2)[1][1].item()
        if not share > 0 or not capacity / share < best.rate * LESS:
            return best
        few = bool(2 * inside[machine.ends].sum() <= len(machine.ends))
        devices = np.flatnonzero(inside == few)
        best = _Candidate(capacity / share, "out" if few else "in", (devices,), capacity, share)
    return best


def _bound(best: _Candidate, machine: Machine) -> Bound:
    groups = [[machine.ids[device] for device in np.sort(devices).tolist()] for devices in best.groups]
    if best.share is None:
        ends = [devices[machine.is_end[devices]] for devices in best.groups]
        hosts = [set(machine.host[own].tolist()) for own in ends]
        kind = "groups"
        if max(map(len, ends)) == 1:
            kind = "single endpoints"
        elif max(map(len, hosts)) == 1 and len(set().union(*hosts)) == len(groups):
            kind = "hosts"
        word = "egress" if best.direction == "out" else "ingress"
        return Bound(
            best.rate,
            f"{len(groups)} {kind}, {word} {best.capacity:g} GB/s in all",
            witness_of("throughput", "partition", direction=best.direction, groups=groups),
        )
    verb = "enter" if best.direction == "in" else "leave"
    return Bound(
        best.rate,
        f"{payload_words(best.share)} must {verb} {_name(best.groups[0], machine)}, at {best.capacity:g} GB/s",
        witness_of("throughput", "cut", direction=best.direction, group=groups[0], share=best.share),
    )


def _name(devices: Ints, machine: Machine) -> str:
    ends = np.sort(devices[machine.is_end[devices]])
    first = machine.ids[int(ends[0])]
    if len(ends) == 1:
        return first
    host = machine.host[ends[0]]
    if (machine.host[ends] == host).all() and len(ends) == (machine.host[machine.ends] == host).sum():
        return f"the endpoints of {first}'s host"
    return f"{first} and {len(ends) - 1} other endpoint{'s' * (len(ends) > 2)}"
