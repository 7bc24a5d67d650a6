"""What packages have the doctor say of themselves: the entry-point group `topocomm.doctor`.

An entry point leads to a module with

    sections() -> list of (title, lines)   printed below the findings, by one rank

so that the package needs to import nothing of topocomm.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

GROUP = "topocomm.doctor"
Section = tuple[str, Sequence[str]]


def registered_sections() -> list[Section]:
    """The sections of every package that has some; what cannot be loaded is said in its place."""
    found: list[Section] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        try:
            found += entry.load().sections()
        except (ImportError, AttributeError) as error:
            found.append((entry.name, [f"cannot load {entry.value}: {error}"]))
    return found
