"""The cores of a live host in hwloc's order, from Linux's sysfs; `inference/core_order.py` says what the order is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from pathlib import Path

from topocomm.topology.discovery.sysfs_files import entries, numbers_in, text_in
from topocomm.topology.inference.core_order import Core
from topocomm.topology.inference.cpu_lists import cpus_of


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
