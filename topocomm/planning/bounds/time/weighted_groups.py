"""Least time of what crosses the borders of many groups of one host at once, where pairs of it have unlike rates.

Groups have weights, and so have the ports of the endpoints, in all 1, such that no message counts more in the groups
whose borders it crosses than it holds ports: then what must cross the groups, by weight, holds the ports so long. The
best weights are a linear program. Why it holds: docs/concepts/cost-models.md, section Bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from topocomm.planning.bounds.demand import Demand
from topocomm.planning.bounds.machine_columns import Flags, Floats, Ints, Machine
from topocomm.planning.forests.linear_program.simplex import Simplex

MOST_MEMBERS = 8
"""Endpoints of the largest host, of which every set is a group."""
LEAST_WEIGHT = 1e-6
"""Weights below it are none."""
LEAST_PORT = 1e-6
"""Weight of a port beyond that of the program, whose solution is rounded."""


@dataclass(frozen=True)
class WeightedGroups:
    """Weights of groups and ports, and the payloads that they make.

    Attributes:
        gb_per_s: Payload over the time that ports are held, with one port.
        groups: (ids of a group, "in" or "out", weight in GB/s).
        ports: (id of an endpoint, "in" or "out", weight); 1 in all.
    """

    gb_per_s: float
    groups: tuple[tuple[list[str], str, float], ...]
    ports: tuple[tuple[str, str, float], ...]


class _Pairs(NamedTuple):
    """Messages from (source, destination), as members of the host or its number of members for any other endpoint."""

    ends: Ints
    rates: Floats


def weighted_groups(demand: Demand, machine: Machine) -> Iterator[WeightedGroups]:
    """Yield the best weights of a host or two whose pairs have unlike rates: else single groups are as good."""
    if demand.pairs is not None or demand.prefix:  # `lengths_bound.py` and `neighbour_flow.py` are as good
        return
    host_of = machine.host[machine.ends]
    starts = np.flatnonzero(np.diff(host_of, prepend=-1))
    of_root = machine.host[machine.place[int((demand.gives if demand.gives.sum() == 1 else demand.gets).argmax())]]
    others = [host for host in host_of[starts[:2]].tolist() if host != of_root]
    for host in [int(of_root), *others[:1]]:
        members = machine.ends[host_of == host]
        if 2 < len(members) <= MOST_MEMBERS:
            pairs = _pairs(machine, members)
            inside = pairs.rates[(pairs.ends < len(members)).all(axis=1)]
            if inside.size and inside.min() < inside.max():
                yield from _best(demand, machine, members, pairs)


def _pairs(machine: Machine, members: Ints) -> _Pairs:
    """Return the pairs with a route, and the GB/s of the slowest link of their fastest."""
    apart = np.ones(machine.devices, bool)
    apart[members] = False
    others = np.flatnonzero(machine.is_end & apart)
    count, starts = len(members), machine.starts(members)
    rates = np.zeros((count + 1, count + 1))
    for rate in np.unique(machine.gb_per_s).tolist():
        weights = np.where(machine.gb_per_s >= rate, 0.0, np.inf)
        out = np.isfinite(machine.least(starts, weights, relays=False))
        rates[:count, :count][out[:, members]] = rate
        if len(others):
            into = np.isfinite(machine.least(starts, weights, relays=False, backward=True))
            rates[:count, count][out[:, others].any(axis=1)] = rate
            rates[count, :count][into[:, others].any(axis=1)] = rate
    np.fill_diagonal(rates, 0.0)
    ends = np.argwhere(rates > 0)
    return _Pairs(ends, rates[tuple(ends.T)])


def _best(demand: Demand, machine: Machine, members: Ints, pairs: _Pairs) -> Iterator[WeightedGroups]:
    """Solve the program: the most payloads, by weight, with weights of ports that sum to 1."""
    count, fastest = len(members), float(pairs.rates.max())
    sets = [np.array(chosen, bool) for chosen in product((False, True), repeat=count) if any(chosen)]
    columns: list[tuple[Flags, str, float]] = []
    place = np.searchsorted(members, machine.place).clip(max=count - 1)
    held = members[place] == machine.place
    for chosen in sets:
        into, out = demand.crossing((held & chosen[place]).astype(np.int64), 2)
        columns += [(chosen, way, float(need[1])) for way, need in (("out", out), ("in", into)) if need[1] > 0]
    program = Simplex(np.append(np.zeros(len(pairs.rates)), 1.0))
    for chosen, way, need in columns:
        rows = np.flatnonzero(_crosses(chosen, way, pairs.ends))
        program.add(rows, pairs.rates[rows] / fastest, need)
    for side, member in product((0, 1), range(count)):
        rows = np.flatnonzero(pairs.ends[:, side] == member)
        program.add(np.append(rows, len(pairs.rates)), np.append(-np.ones(len(rows)), 1.0), 0.0)
    program.solve()
    weights = program.weights()
    found = np.array([weights.get(number, 0.0) for number in range(len(columns) + 2 * count)])
    found[found < LEAST_WEIGHT] = 0.0
    ports = found[len(columns) :] + LEAST_PORT
    ports /= ports.sum()
    counted = np.zeros(len(pairs.rates))
    for (chosen, way, _), weight in zip(columns, found, strict=False):
        counted += weight * _crosses(chosen, way, pairs.ends)
    yield from _scaled(columns, found, ports, (counted, pairs, [machine.ids[member] for member in members.tolist()]))


def _crosses(chosen: Flags, way: str, ends: Ints) -> Flags:
    """Return which pairs leave (enter) a set of members."""
    inside: Flags = np.append(chosen, False)[ends]
    return np.asarray(inside[:, 0] & ~inside[:, 1] if way == "out" else inside[:, 1] & ~inside[:, 0])


def _scaled(
    columns: Sequence[tuple[Flags, str, float]], found: Floats, ports: Floats, of: tuple[Floats, _Pairs, list[str]]
) -> Iterator[WeightedGroups]:
    """Yield the weights of groups scaled such that no message counts for more than it holds ports."""
    counted, pairs, ids = of
    count = len(ids)
    out, into = (np.append(ports[low : low + count], 0.0) for low in (0, count))
    holds = (out[pairs.ends[:, 0]] + into[pairs.ends[:, 1]]) / pairs.rates
    some = counted > 0
    if not some.any():
        return
    scale = float((holds[some] / counted[some]).min())
    groups = []
    for (chosen, way, _), weight in zip(columns, found, strict=False):
        if weight > 0:
            groups.append(([ids[member] for member in np.flatnonzero(chosen).tolist()], way, float(weight * scale)))
    needed = sum(need * weight * scale for (_, _, need), weight in zip(columns, found, strict=False))
    named = [(ids[number % count], ("out", "in")[number // count], float(w)) for number, w in enumerate(ports)]
    yield WeightedGroups(float(1 / needed), tuple(groups), tuple(named))
