"""Least time of a sum between groups by what leaves its ranks: two messages before the end, or to all at first hand.

Why it holds: docs/concepts/cost-models.md, section Bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from topocomm.planning.bounds.demand import Demand
from topocomm.planning.bounds.endpoint_groups import Level
from topocomm.planning.bounds.machine_columns import Floats
from topocomm.planning.bounds.rounds_bound import witness_of
from topocomm.planning.bounds.time.fastest_links import fastest_at, fastest_of, ids_of


@dataclass(frozen=True)
class Leaving:
    """A share of the rows gets from a group to the others at first hand, and the rest leaves it two messages early.

    Attributes:
        across_us: Least latency of a message between groups.
        others: Values that pass the border for a row at first hand.
        border_gb_per_s: Of the border that these values pass.
        late_gb_per_s: At which the ranks of the group send the rest.
    """

    across_us: float
    others: int
    border_gb_per_s: float
    late_gb_per_s: float
    words: str
    witness: dict[str, Any]

    def us(self, payload_bytes: int) -> float:
        """Return the least time."""
        every_us, late_us = (payload_bytes / rate / 1e3 for rate in (self.border_gb_per_s, self.late_gb_per_s))
        return leaving_us(self.across_us, self.others * every_us, late_us)


def leaving_us(across_us: float, every_us: float, late_us: float) -> float:
    """Return the least time over the share of rows at first hand, all of which take `every_us` at the border."""
    if every_us <= across_us:
        return across_us + every_us
    return (2 * across_us * every_us + late_us * (every_us + across_us)) / (every_us + late_us)


def leaving_arguments(demand: Demand, single: Level, level: Level, across_us: float, ports: int) -> Iterator[Leaving]:
    """Yield the bound of a reduce or allreduce between the groups of a level, none of others.

    Of a reduce the border is that of the root's group, and the group one of the others, whichever is least. Of an
    allreduce it is that of the group itself, the one for which it is most.
    """
    of_all = demand.name == "allreduce" and demand.gives.all()
    if level.count < 3 or not (of_all or demand.name == "reduce"):
        return
    late_us_of = _late_us_of(demand, single, level, ports)
    order = np.arange(level.count)
    if of_all:
        first, others = int((1 / level.border("out") + late_us_of).argmax()), level.count - 1
        border, late = float(level.border("out")[first]), float(late_us_of[first])
    else:
        first = int(level.of_rank[int(demand.gets.argmax())])
        giving = (late_us_of > 0) & (order != first)
        if giving.sum() < 2:
            return
        others, border, late = int(giving.sum()), float(level.border("in")[first]), float(late_us_of[giving].min())
    named = np.delete(order, first).tolist()
    devices = level.devices([first], "out" if of_all else "in") + level.devices(named, "out")
    groups = [ids_of(level.machine, own) for own in devices]
    yield Leaving(
        across_us,
        others,
        border,
        1 / late,
        f"of {level.count} groups {across_us:g} us apart one sends each row to all others at first hand, by "
        f"{border:g} GB/s, or its ranks have sent it, at {1 / late:g} GB/s, two messages before the end",
        witness_of("time", "leaving", across_us=across_us, groups=groups),
    )


def _late_us_of(demand: Demand, single: Level, level: Level, ports: int) -> Floats:
    """What a payload takes to leave each group, in us a KB: its ports, each endpoint, its border; 0 where none must."""
    machine = single.machine
    of_end = level.owned[0][machine.ends]
    ends = np.bincount(of_end, minlength=level.count)
    moved, crossing = (demand.crossing(each.of_rank, each.count)[1] for each in (single, level))
    in_all = np.maximum(np.bincount(of_end, moved, level.count), crossing)
    fastest = fastest_of(single.owned[0], machine, "out", single.count)
    inside, at_ends = np.zeros((2, level.count))
    np.maximum.at(inside, of_end, fastest)
    at_rate = fastest_at(machine, "out", ports)
    np.maximum.at(at_ends, of_end, np.divide(moved, at_rate, out=np.zeros_like(at_rate), where=at_rate > 0))
    rates = np.stack([fastest_of(labels, machine, "out", level.count) for labels in level.owned])
    across = np.minimum(rates[level.assignments("out"), np.arange(level.count)], inside)
    leaves = (crossing > 0) & (across > 0)
    slow, fast = (np.where(leaves, rates, 1.0) for rates in (across, inside))
    at_ports = (crossing / slow + (in_all - crossing) / fast) / (ports * np.maximum(ends, 1))
    at_border = crossing / np.where(leaves, level.border("out"), 1.0)
    return np.where(leaves, np.max([at_ports, at_ends, at_border], axis=0), 0.0)
