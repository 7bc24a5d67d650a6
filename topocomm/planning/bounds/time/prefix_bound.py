"""Least time of a scan or exscan by depth against size: few messages in a row need more messages in all (Snir 1986).

Of each row the contribution of rank 0 reaches the last rank in d messages between groups. Every other group receives a
message with it, and every group but the first and the last sends what the last rank needs of it: in the first of these
messages that leaves the group, which has rank 0's contribution too only if it is one of the d. So m groups exchange at
least 2 (m - 1) - d values of a row. docs/concepts/cost-models.md, section Bounds, says how long both take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from topocomm.planning.bounds.demand import Demand
from topocomm.planning.bounds.endpoint_groups import Level
from topocomm.planning.bounds.machine_columns import NOBODY, Floats, Ints
from topocomm.planning.bounds.rounds_bound import witness_of
from topocomm.planning.bounds.time.fastest_links import fastest_across, fastest_at, ids_of

HALVINGS = 100
"""Steps in which the least time is enclosed: more than a float64 has digits."""


@dataclass(frozen=True)
class Exchange:
    """Groups that a prefix passes.

    Attributes:
        count: Number of groups.
        apart_us: Least latency of a message between them.
        ends_gb_per_s: What leaves the group of rank 0, and what enters that of the last rank.
    """

    count: int
    apart_us: float
    ends_gb_per_s: tuple[float, float]

    def passing_us(self, payload_bytes: int) -> float:
        """Return how much of the time a mean row waits to leave the first group and to enter the last one."""
        return sum(payload_bytes / rate / 2e3 for rate in self.ends_gb_per_s)

    def values(self, in_a_row: float) -> float:
        """Return the least values that the groups exchange of each row, with so many messages in a row on average."""
        return max(self.count - 1.0, 2.0 * (self.count - 1) - in_a_row)


@dataclass(frozen=True)
class Prefix:
    """Depth against size of endpoints, and of groups of them.

    Attributes:
        single, groups: Both levels; equal without groups.
        port_us: Time that a byte holds all ports of all endpoints together, at the fastest rate of an endpoint.
        more_us: By how much longer between the groups.
        border_us: Time that a byte takes over the borders of all groups together.
    """

    single: Exchange
    groups: Exchange
    port_us: float
    more_us: float
    border_us: float
    words: str
    witness: dict[str, Any]

    def us(self, payload_bytes: int) -> float:
        """Return the least time in which rows whose paths are no longer can be exchanged."""
        low, high = 0.0, self.groups.apart_us
        while high < self._needed_us(high, payload_bytes):
            low, high = high, 2.0 * high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if middle < self._needed_us(middle, payload_bytes) else (low, middle)
        return low

    def _needed_us(self, within_us: float, payload_bytes: int) -> float:
        """Return the time that rows need whose paths take no longer than this; infinite where none is so short.

        Of the messages in a row as many go between groups as is best; ports and borders need the least at a corner.
        """
        inside, groups = self.single, self.groups
        more_us = groups.apart_us - inside.apart_us
        path_us = within_us - inside.passing_us(payload_bytes) + more_us
        most = min(path_us, within_us - groups.passing_us(payload_bytes)) / groups.apart_us
        if most < 1.0:
            return inf
        corners = [1.0, most, groups.count - 1.0]
        if more_us > 0:
            corners.append((path_us - inside.apart_us * (inside.count - 1)) / more_us)
        held_us = min(
            inside.values((path_us - across * more_us) / inside.apart_us) * self.port_us
            + groups.values(across) * self.more_us
            for across in (min(max(corner, 1.0), most) for corner in corners)
        )
        return max(
            inside.apart_us + payload_bytes * held_us,
            groups.apart_us + payload_bytes * groups.values(most) * self.border_us,
        )


def prefix_arguments(demand: Demand, single: Level, others: Sequence[Level], ports: int) -> Iterator[Prefix]:
    """Yield the argument of single endpoints, and of these with each level of groups of them."""
    machine = single.machine
    if not demand.prefix or machine.place[0] == machine.place[-1]:
        return
    rates = [fastest_at(machine, way, ports) for way in ("in", "out")]
    alone = _exchange(single, _labels(single), rates)
    fastest, _ = fastest_across(single)
    for level in (single, *others) if alone else ():
        labels = _labels(level)
        borders = machine.border(labels, level.count)
        groups = _exchange(level, labels, borders)
        if alone is None or groups is None:
            continue
        leaves = (labels[machine.src] != NOBODY) & (labels[machine.src] != labels[machine.dst])
        across = min(fastest, float(machine.gb_per_s[leaves].max()))
        held_bytes = 1e3 * ports * len(machine.ends)
        words = "endpoints" if level is single else f"endpoints and {level.count} groups"
        yield Prefix(
            alone,
            groups,
            1 / fastest / held_bytes,
            (1 / across - 1 / fastest) / held_bytes,
            1 / float(borders[0].sum()) / 1e3,
            f"{single.count} {words}, {groups.apart_us:g} us apart, pass a row on one after the other, or exchange up "
            "to twice as many values",
            witness_of(
                "time",
                "prefix",
                apart_us=alone.apart_us,
                across_us=groups.apart_us,
                groups=[ids_of(machine, np.flatnonzero(labels == group)) for group in range(level.count)],
            ),
        )


def _labels(level: Level) -> Ints:
    """The group of each device, by the assignment that makes what enters each group least."""
    labels = np.full(level.machine.devices, NOBODY)
    for group, devices in enumerate(level.devices(list(range(level.count)), "in")):
        labels[devices] = group
    return labels


def _exchange(level: Level, labels: Ints, rates: Sequence[Floats]) -> Exchange | None:
    """The groups of a level; None where one has rank 0 and the last, or messages between them no latency or no link."""
    machine = level.machine
    apart_us = machine.cheapest_across_us(np.where(machine.is_end, labels, NOBODY))
    first, last = int(level.of_rank[0]), int(level.of_rank[-1])
    ends = float(rates[1][first]), float(rates[0][last])
    return Exchange(level.count, apart_us, ends) if first != last and 0 < apart_us < inf and min(ends) > 0 else None
