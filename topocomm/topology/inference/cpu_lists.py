"""Lists of CPUs in the form of the Linux kernel, `0-2,8`, and the cores of a host in hwloc's order.

Linux numbers CPUs as the firmware lists them, often in turn over sockets and one hardware thread after the other.
Launchers count cores in hwloc's order: cores of one package, NUMA node or cache are neighbours, and the part with the
lowest CPU comes first. The fact `cores_by_package` of a topology has the CPU list of every core, by package.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

FACT = "cores_by_package"
Core = frozenset[int]
"""CPU numbers of a core, by Linux."""


def cpu_ranges(cpus: Collection[int]) -> str:
    """Return a CPU list in the kernel's form: [0, 2, 1, 8] is `0-2,8`."""
    return number_ranges(sorted(cpus))


def number_ranges(numbers: Iterable[int]) -> str:
    """Return the numbers in their order, those that follow each other as ranges: [5, 0, 1, 2] is `5,0-2`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def mask_ranges(mask: int) -> str | None:
    """Return the CPU list of a bit mask in the kernel's form; None for an empty mask."""
    return cpu_ranges([cpu for cpu, bit in enumerate(f"{mask:b}"[::-1]) if bit == "1"]) or None


def mask_of(cpus: str, most: int) -> int | None:
    """Return the bit mask of a CPU list; None where a number is not below `most`, or a range ends before it begins."""
    mask = 0
    for part in cpus.split(","):
        low, _, high = part.partition("-")
        if not int(low) <= int(high or low) < most:
            return None
        mask |= ((1 << (int(high or low) - int(low) + 1)) - 1) << int(low)
    return mask


def cpus_of(text: str | None) -> set[int]:
    """Return the CPUs of a list in the kernel's form; empty for any other text."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        if ends := re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip()):
            cpus.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return cpus


def core_facts(packages: Iterable[Iterable[Collection[int]]]) -> dict[str, Any]:
    """Return the fact of a topology for cores by package."""
    return {FACT: [[cpu_ranges(core) for core in package] for package in packages]}


def read_cores(facts: Mapping[str, Any]) -> list[list[Core]]:
    """Return the cores by package from the facts of a host; none where the fact is absent or damaged."""
    packages = facts.get(FACT)
    if not isinstance(packages, list) or not all(isinstance(package, list) and package for package in packages):
        return []
    cores = [[frozenset(cpus_of(core if isinstance(core, str) else "")) for core in package] for package in packages]
    cpus = [cpu for package in cores for core in package for cpu in core]
    return cores if len(cpus) == len(set(cpus)) and all(core for package in cores for core in package) else []
