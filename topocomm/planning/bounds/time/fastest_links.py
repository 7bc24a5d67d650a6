"""The fastest links at the borders of groups and at endpoints: no message there is faster."""

from __future__ import annotations

import numpy as np

from topocomm.planning.bounds.endpoint_groups import Level
from topocomm.planning.bounds.machine_columns import NOBODY, Floats, Ints, Machine


def fastest_across(level: Level) -> tuple[float, Ints]:
    """Return the GB/s of the fastest link that leaves a group, and the assignment of devices that makes it least."""
    machine, options = level.machine, []
    for labels in level.owned if level.count < len(machine.ends) else level.owned[:1]:
        leaves = (labels[machine.src] != labels[machine.dst]) & (labels[machine.src] != NOBODY)
        options.append((float(machine.gb_per_s[leaves].max(initial=0.0)), labels))
    return min(options, key=lambda option: option[0])


def fastest_of(labels: Ints, machine: Machine, direction: str, count: int) -> Floats:
    """Return the GB/s of the fastest link that enters (leaves) each group of devices."""
    own, other = (machine.dst, machine.src) if direction == "in" else (machine.src, machine.dst)
    crosses = (labels[own] != NOBODY) & (labels[own] != labels[other])
    rates = np.zeros(count)
    np.maximum.at(rates, labels[own][crosses], machine.gb_per_s[crosses])
    return rates


def fastest_at(machine: Machine, direction: str, ports: int) -> Floats:
    """Return the GB/s of the fastest links into (out of) each endpoint, as many as it has ports."""
    at = machine.dst if direction == "in" else machine.src
    order = np.lexsort((-machine.gb_per_s, at))
    first = np.searchsorted(at[order], at[order])
    fastest = order[np.arange(len(order)) - first < ports]
    rates = np.bincount(at[fastest], machine.gb_per_s[fastest], machine.devices)
    return np.asarray(rates[machine.ends], float)


def ids_of(machine: Machine, devices: Ints) -> list[str]:
    """Return the ids of devices, in the topology's order."""
    return [machine.ids[device] for device in np.sort(devices).tolist()]
