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
        except (ImportError, AttributeError, OSError, RuntimeError) as error:  # what broken drivers raise, too
            found.append((entry.name, [f"{entry.value} has nothing to say: {type(error).__name__}: {error}"]))
    return found
