"""The cores of a host in hwloc's order, by package: the numbers that launchers count cores by.

Linux numbers CPUs as the firmware lists them, often in turn over sockets and one hardware thread after the other.
hwloc's logical numbers follow the tree instead: what shares a package, NUMA node or cache stands together, and of two
parts the one with the lowest CPU comes first. A topology has them as the fact `cores_by_package`: a list for every
package, with the CPU list of every core.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from topocomm.topology.sysfs import cpu_ranges, cpus_of, entries, numbers_in, text_in

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


def sysfs_cores(sysfs: Path, usable: Collection[int]) -> list[list[Core]]:
    """The cores by package of a live host; none where sysfs does not say, or where not all CPUs are to be used.

    hwloc leaves out what a container or a batch system withholds and numbers the rest. What it leaves out cannot be
    known from the CPUs that a process may use: those it may only have been bound to.

    Args:
        sysfs: Root of sysfs.
        usable: CPUs that this process may run on.
    """
    online = numbers_in(sysfs / "devices/system/cpu/online")
    if not online or not online <= set(usable):
        return []
    cores = {cpu: _siblings(sysfs, cpu, _CORE) & online for cpu in online}
    if not all(cores.values()):
        return []
    around = _around(sysfs, online)
    placed = sorted(set(cores.values()), key=lambda core: _place(core, around[min(core)]))
    owned = [(_siblings(sysfs, min(core), _PACKAGE) & online, core) for core in placed]
    found = [(package, [core for _, core in own]) for package, own in groupby(owned, key=lambda both: both[0])]
    whole = all(package == frozenset().union(*own) for package, own in found)
    return [own for _, own in found] if whole else []


_CORE = ("core_cpus_list", "thread_siblings_list")
_PACKAGE = ("package_cpus_list", "core_siblings_list")
"""Names of a file of `cpuN/topology`, now and before Linux 5.4."""


def _siblings(sysfs: Path, cpu: int, names: Iterable[str]) -> Core:
    folder = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
    return next((frozenset(found) for name in names if (found := numbers_in(folder / name))), frozenset())


def _around(sysfs: Path, online: Collection[int]) -> dict[int, set[Core]]:
    """By CPU the sets of CPUs that hwloc makes an object of: packages, dies, clusters, NUMA nodes and caches."""
    nodes = [numbers_in(node / "cpulist") for node in entries(sysfs / "devices/system/node")]
    found: dict[int, set[Core]] = {cpu: set() for cpu in online}
    for cpu in online:
        folder = sysfs / f"devices/system/cpu/cpu{cpu}"
        lists = [*(folder / "topology").glob("*_cpus_list"), *(folder / "topology").glob("*_siblings_list")]
        lists += (folder / "cache").glob("index*/shared_cpu_list")
        sets = [cpus_of(text_in(path)) for path in lists] + [node for node in nodes if cpu in node]
        found[cpu] = {frozenset(one & set(online)) for one in sets if cpu in one}
    return found


def _place(core: Core, around: Collection[Core]) -> tuple[int, ...]:
    """The lowest CPU of all that holds the core, from the largest in, and its own: the way down hwloc's tree."""
    return (*(min(one) for one in sorted(around, key=len, reverse=True) if one > core), min(core))
