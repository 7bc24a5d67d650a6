"""The cores of a host in hwloc's order, by package: the numbers that launchers count cores by.

Linux numbers CPUs as the firmware lists them, often in turn over sockets and one hardware thread after the other.
hwloc's logical numbers follow the tree instead: what shares a package, NUMA node or cache stands together, and of two
parts the one with the lowest CPU comes first. A topology has them as the fact `cores_by_package`: a list for every
package, with the CPU list of every core.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from topocomm.topology.inference.cpu_lists import cpu_ranges, cpus_of

FACT = "cores_by_package"
Core = frozenset[int]
"""Its CPUs, by Linux's numbers."""


def core_facts(packages: Iterable[Iterable[Collection[int]]]) -> dict[str, Any]:
    """The fact of a topology for cores by package."""
    return {FACT: [[cpu_ranges(core) for core in package] for package in packages]}


def read_cores(facts: Mapping[str, Any]) -> list[list[Core]]:
    """The cores by package that a host's facts name; none where they name none, or nothing that can be.

    Args:
        facts: Of the host.
    """
    told = facts.get(FACT)
    if not isinstance(told, list) or not all(isinstance(package, list) and package for package in told):
        return []
    found = [[frozenset(cpus_of(core if isinstance(core, str) else "")) for core in package] for package in told]
    cpus = [cpu for package in found for core in package for cpu in core]
    return found if len(cpus) == len(set(cpus)) and all(core for package in found for core in package) else []
