"""Least time of a collective with bytes: what must cross borders or pass ports, and the latency before or after it.

Why each argument holds: docs/concepts/cost-models.md, section Bounds. They do not depend on the payload, and give a
time for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from topocomm.planning.bounds.demand import Demand
from topocomm.planning.bounds.endpoint_groups import Level
from topocomm.planning.bounds.machine_columns import NOBODY, Ints, Machine
from topocomm.planning.bounds.rounds_bound import Bound, payload_words, witness_of
from topocomm.planning.bounds.time.fastest_links import fastest_across, fastest_at, fastest_of, ids_of
from topocomm.planning.bounds.time.flow_over_time import FlowOverTime, flows_over_time
from topocomm.planning.bounds.time.leaving_bound import Leaving, leaving_arguments
from topocomm.planning.bounds.time.neighbour_flow import neighbour_flows
from topocomm.planning.bounds.time.prefix_bound import Prefix, prefix_arguments
from topocomm.planning.bounds.time.weighted_groups import weighted_groups


@dataclass(frozen=True)
class Crossing:
    """At least `least_us`, and the payload at this rate."""

    least_us: float
    gb_per_s: float
    words: str
    witness: dict[str, Any]

    def us(self, payload_bytes: int) -> float:
        """Return the least time."""
        return self.least_us + payload_bytes / self.gb_per_s / 1e3


@dataclass(frozen=True)
class Relayed:
    """Either every group hears the others at first hand, or some value takes two messages between groups in a row.

    Attributes:
        across_us: Least latency of a message between groups.
        gb_per_s: Into (out of) the root's group; of an allreduce into all groups together.
        root_gb_per_s: Of a broadcast between groups also out of the root, which what is relayed leaves as early.
        groups: Number of groups.
        rooted: Whether it is a reduce or a broadcast.
    """

    across_us: float
    gb_per_s: float
    root_gb_per_s: float
    groups: int
    rooted: bool
    words: str
    witness: dict[str, Any]

    def us(self, payload_bytes: int) -> float:
        """Return the least time."""
        value_us, late_us = (payload_bytes / rate / 1e3 for rate in (self.gb_per_s, self.root_gb_per_s))
        return relayed_us(self.across_us, value_us, self.groups, rooted=self.rooted, late_us=max(value_us, late_us))


TimeArgument = Crossing | Relayed | Leaving | Prefix | FlowOverTime


def relayed_us(across_us: float, value_us: float, groups: int, *, rooted: bool, late_us: float) -> float:
    """Return the least time where a value takes `value_us` over all borders (rooted: that of the root's group).

    Of the rows a share goes at first hand, which takes more bytes but one message; the best share balances both. Of a
    broadcast all that is relayed takes `late_us` to leave the root, before two messages in a row.
    """
    others = groups - 1
    if rooted:
        if others * value_us <= across_us:
            return across_us + others * value_us
        share = (across_us + late_us - value_us) / ((others - 1) * value_us + late_us)
        return 2 * across_us + (1 - share) * late_us
    if groups * others * value_us <= across_us:
        return across_us + groups * others * value_us
    early = max(1.0, across_us / (others * value_us))
    return max(across_us + 2 * others * value_us, 2 * across_us + (groups - early) * value_us)


def time_arguments(
    demand: Demand, machine: Machine, nested: Sequence[Sequence[Level]], *, throughput: Bound, ports: int
) -> tuple[TimeArgument, ...]:
    """Return the arguments of a machine; `nested` are its `families`."""
    if demand.least_messages() == 0 or len(machine.ends) < 2:
        return ()
    single, *others = [*nested[0], *(family[-1] for family in nested[1:] if len(family) > 1)]
    cheapest_us = machine.cheapest_us()
    arguments: list[TimeArgument] = []
    if not throughput.value:
        return ()
    arguments.append(_at_border(throughput, machine))
    for level in others:
        across_us = machine.cheapest_across_us(_labels(level))
        if 0 < across_us < np.inf:
            arguments += _borders(demand, level)
            arguments += _relays(demand, level, across_us, ports)
            arguments += leaving_arguments(demand, single, level, across_us, ports)
    if 0 < (across_us := machine.cheapest_across_us(_labels(single))) < np.inf:
        arguments += _relays(demand, single, across_us, ports, by_ports=True)
    arguments += [_at_ports(demand, [single, *levels], ports, cheapest_us) for levels in _chains(nested)]
    for level in others:
        arguments += _at_ports_of_a_group(demand, single, level, ports, cheapest_us)
    arguments += _at_one_endpoint(demand, machine, ports, cheapest_us)
    arguments += _at_weighted_groups(demand, machine, ports, cheapest_us)
    arguments += _at_neighbours(demand, machine, ports, cheapest_us)
    arguments += prefix_arguments(demand, single, others, ports)
    arguments += flows_over_time(demand, machine, ports)
    return tuple(arguments)


def _chains(nested: Sequence[Sequence[Level]]) -> list[list[Level]]:
    """The levels above single endpoints, each inside the next: hosts with the clusters that fit them, and all clusters.

    One level more is never less, as the finer one is crossed by no fewer payloads.
    """
    hosts, clusters = ([*nested[0][1:]], [level for family in nested[1:] for level in family[1:]])
    if not hosts:
        return [clusters]
    fine = [level for level in clusters if _refines(level, hosts[0])]
    fitting = [*fine, *hosts, *(level for level in clusters if _refines(hosts[-1], level))]
    apart = [level for level in clusters if level.count != hosts[0].count and level not in fitting]
    return [fitting, *[clusters] * bool(apart)]


def _refines(fine: Level, coarse: Level) -> bool:
    """Whether every group of `fine` lies in one of `coarse`."""
    pairs = np.unique(fine.of_rank * coarse.count + coarse.of_rank)
    return len(pairs) == fine.count > coarse.count


def _labels(level: Level) -> Ints:
    """The group of each endpoint; NOBODY for other devices."""
    return np.where(level.machine.is_end, level.owned[0], NOBODY)


def _at_border(throughput: Bound, machine: Machine) -> Crossing:
    """The bytes of the throughput bound, and one message between its groups."""
    groups = throughput.witness.get("groups") or [throughput.witness["group"]]
    number = {name: index for index, own in enumerate(groups) for name in own}
    labels = np.array([number.get(name, len(groups)) for name in machine.ids])
    labels[~machine.is_end] = NOBODY
    least_us = machine.cheapest_across_us(labels)
    least_us = least_us if np.isfinite(least_us) else 0.0
    witness = witness_of("time", "border", across_us=least_us, of=throughput.witness)
    words = f"{throughput.argument}, and a message between takes {least_us:g} us"
    return Crossing(least_us, float(throughput.value or 0.0), words, witness)


def _borders(demand: Demand, level: Level) -> Iterator[Crossing]:
    """What must cross the border of the group that takes longest, in and out."""
    for direction, share in zip(("in", "out"), demand.crossing(level.of_rank, level.count), strict=True):
        if not (share > 0).any():
            continue
        # One that nothing needs to cross may have no border at all, as the root of a broadcast on links of one way.
        times = np.divide(share, level.border(direction), out=np.zeros(level.count), where=share > 0)
        group = int(times.argmax())
        ids = ids_of(level.machine, level.devices([group], direction)[0])
        capacity, much = float(level.border(direction)[group]), float(share[group])
        across_us = level.machine.cheapest_across_us(np.where(level.machine.is_end, level.owned[0] == group, NOBODY))
        cut = witness_of("throughput", "cut", direction=direction, group=ids, share=much)
        yield Crossing(
            across_us,
            capacity / much,
            f"{payload_words(much)} must {_VERBS[direction]} the group of {ids[0]} at {capacity:g} GB/s, and a "
            f"message takes {across_us:g} us",
            witness_of("time", "border", across_us=across_us, of=cut),
        )


def _relays(demand: Demand, level: Level, across_us: float, ports: int, *, by_ports: bool = False) -> Iterator[Relayed]:
    """Every group hears the others at first hand, or a value waits for a second message.

    Of single endpoints values pass the fastest links of an endpoint, as many as it has ports; what a broadcast relays
    between groups has passed those of the root.
    """
    rooted = demand.name in ("reduce", "broadcast") or demand.prefix
    if level.count < 3 or not (rooted or (demand.name == "allreduce" and demand.gives.all())):
        return
    direction = "out" if demand.name == "broadcast" else "in"
    order = list(range(level.count))
    if rooted:
        root = int((demand.gives if direction == "out" else demand.gets).argmax())
        root = demand.ranks - 1 if demand.prefix else root  # the last of a prefix hears of all
        order.insert(0, order.pop(int(level.of_rank[root])))
    border = (fastest_at(level.machine, direction, ports) if by_ports else level.border(direction))[order]
    capacity = float(border[0] if rooted else border.sum())
    groups = [ids_of(level.machine, devices) for devices in level.devices(order, direction)]
    of_groups = {"across_us": across_us, "groups": groups, "by_ports": by_ports}
    by_root, at_root = demand.name == "broadcast" and not by_ports, capacity
    if by_root:
        end = np.searchsorted(level.machine.ends, level.machine.place[root])
        at_root = min(capacity, float(fastest_at(level.machine, "out", ports)[end]))
    where = "at that of the root" if rooted else "in all"
    yield Relayed(
        across_us,
        capacity,
        at_root,
        level.count,
        rooted,
        f"of {level.count} {'endpoints' if by_ports else 'groups'} {across_us:g} us apart each pair must exchange "
        f"values itself, or some value takes two messages in a row; the {'ports' if by_ports else 'borders'} have "
        f"{capacity:g} GB/s {where}" + (f", whose ports have {at_root:g} GB/s" if at_root < capacity else ""),
        witness_of("time", "relays", direction=direction, **of_groups, by_root=by_root),
    )


def _at_ports(demand: Demand, chain: Sequence[Level], ports: int, cheapest_us: float) -> Crossing:
    """All messages pass ports of their endpoints, those between groups no faster than the fastest link there."""
    machine = chain[0].machine
    us_of, before, levels, last = 0.0, 0.0, list[list[list[str]]](), chain[0]
    for level in chain:
        rate, labels = fastest_across(level)
        if level is not chain[0]:
            if 1 / rate <= before:  # links that leave its groups are as fast as those of the level inside
                continue
            order = np.argsort(labels, kind="stable")
            edges = np.searchsorted(labels[order], np.arange(level.count + 1))
            levels.append([ids_of(machine, order[low:high]) for low, high in pairwise(edges.tolist())])
        us_of += _values_between(demand, level) * (1 / rate - before)
        before, last = 1 / rate, level
    return Crossing(
        cheapest_us,
        ports * len(machine.ends) / us_of,
        f"all messages pass {len(machine.ends)} endpoints with {_ports_text(ports)} each"
        + (f", those between {last.count} groups at most at {1 / before:g} GB/s" if levels else ""),
        witness_of("time", "ports", cheapest_us=cheapest_us, levels=levels),
    )


def _values_between(demand: Demand, level: Level) -> float:
    """Payloads that messages between the groups carry in all, at least."""
    into, out = demand.crossing(level.of_rank, level.count)
    giving = int((np.bincount(level.of_rank, demand.gives, level.count) > 0).sum())
    in_all = level.count + giving - 2 if demand.name == "allreduce" else 0
    return max(float(into.sum()), float(out.sum()), float(in_all))


def _at_ports_of_a_group(
    demand: Demand, single: Level, level: Level, ports: int, cheapest_us: float
) -> Iterator[Crossing]:
    """What each endpoint of a group sends (receives), of which what crosses its border goes no faster than links there.

    Of the group that takes longest, in and out.
    """
    machine = single.machine
    ends = np.bincount(level.owned[0][machine.ends], minlength=level.count)
    for direction in ("in", "out"):
        side = direction == "out"
        moved, crossing = (demand.crossing(each.of_rank, each.count)[side] for each in (single, level))
        in_all = np.maximum(np.bincount(level.owned[0][machine.ends], moved, level.count), crossing)
        fastest = fastest_of(single.owned[0], machine, direction, single.count)
        at_ends = np.zeros(level.count)
        np.maximum.at(at_ends, level.owned[0][machine.ends], fastest)
        options = np.stack([fastest_of(labels, machine, direction, level.count) for labels in level.owned])
        across = np.minimum(options.min(axis=0), at_ends)
        wanted = (crossing > 0) & (across > 0)
        if not wanted.any():
            continue
        slow, fast = (np.where(wanted, rates, 1.0) for rates in (across, at_ends))
        us_of = np.where(wanted, crossing / slow + (in_all - crossing) / fast, 0.0) / (ports * ends)
        group = int(us_of.argmax())
        ids = ids_of(machine, np.flatnonzero(level.owned[int(options[:, group].argmin())] == group))
        after_us, named = cheapest_us, {"cheapest_us": cheapest_us}
        if side and demand.name == "reduce" and not demand.gets[level.of_rank == group].any():  # all of it must leave
            after_us = machine.cheapest_across_us(np.where(machine.is_end, level.owned[0] == group, NOBODY))
            named = {"across_us": after_us}
        yield Crossing(
            after_us,
            1 / float(us_of[group]),
            f"{in_all[group]:.4g} payloads must {_VERBS[direction]} {ends[group]} endpoints with {_ports_text(ports)} "
            f"each, {crossing[group]:.4g} of them across the border, at {slow[group]:g} GB/s at most",
            witness_of("time", "group", **named, direction=direction, group=ids),
        )


def _at_one_endpoint(demand: Demand, machine: Machine, ports: int, cheapest_us: float) -> Iterator[Crossing]:
    """What must enter or leave the endpoint that takes longest, over as many links at once as it has ports."""
    label = np.searchsorted(machine.ends, machine.place)
    for direction, share in zip(("in", "out"), demand.crossing(label, len(machine.ends)), strict=True):
        if not (share > 0).any():
            continue
        rates = fastest_at(machine, direction, ports)
        worst = int(np.divide(share, rates, out=np.zeros_like(rates), where=rates > 0).argmax())
        name, rate, much = machine.ids[int(machine.ends[worst])], float(rates[worst]), float(share[worst])
        if much > 0 < rate:
            yield Crossing(
                cheapest_us,
                rate / much,
                f"{payload_words(much)} must {_VERBS[direction]} {name} by {_ports_text(ports)}, at {rate:g} GB/s",
                witness_of("time", "endpoint", cheapest_us=cheapest_us, direction=direction, endpoint=name),
            )


def _at_weighted_groups(demand: Demand, machine: Machine, ports: int, cheapest_us: float) -> Iterator[Crossing]:
    """What must cross the borders of many groups of a host at once, by the pairs that it crosses between."""
    for found in weighted_groups(demand, machine):
        groups, weights = ([list(row) for row in table] for table in (found.groups, found.ports))
        yield Crossing(
            cheapest_us,
            ports * found.gb_per_s,
            f"{_ports_text(ports)} of each of {len({name for name, *_ in weights})} endpoints around "
            f"{weights[0][0]} pass what must cross {len(groups)} borders among them, at the rates of their pairs",
            witness_of("time", "weights", cheapest_us=cheapest_us, groups=groups, ports=weights),
        )


def _at_neighbours(demand: Demand, machine: Machine, ports: int, cheapest_us: float) -> Iterator[Crossing]:
    """What the result of each rank takes of the rank before it, of the links and ports of a host."""
    for found in neighbour_flows(demand, machine, ports):
        links, weights = ([list(row) for row in table] for table in (found.links, found.ports))
        yield Crossing(
            cheapest_us,
            found.gb_per_s,
            f"what results need of the ranks before them passes {len(links)} links of a length and {len(weights)} "
            f"ports of a weight around {found.first}, which carry {found.gb_per_s:g} GB/s of payload",
            witness_of("time", "neighbours", cheapest_us=cheapest_us, group=found.group, links=links, ports=weights),
        )


def _ports_text(ports: int) -> str:
    return f"{ports} port{'s' * (ports > 1)}"


_VERBS = {"in": "enter", "out": "leave"}
