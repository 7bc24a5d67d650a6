"""Lists of CPUs in the form of the Linux kernel: `0-2,8`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any


def cpu_ranges(cpus: Collection[int]) -> str:
    """A CPU list in the kernel's form: [0, 1, 2, 8] is `0-2,8`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def mask_ranges(mask: int) -> str | None:
    """Return the CPU list of a bit mask in the kernel's form, `0-23,48-71`; None for an empty mask."""
    ranges = ((run.start(), run.end() - 1) for run in re.finditer("1+", f"{mask:b}"[::-1]))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges) or None


def cpus_of(text: str | None) -> set[int]:
    """The CPUs of a list in the kernel's form, `0-2,8`; empty where it is none."""
    found: set[int] = set()
    for part in (text or "").split(","):
        ends = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if ends:
            found.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return found


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
