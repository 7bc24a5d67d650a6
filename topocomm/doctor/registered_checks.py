"""Sections that packages add to the doctor's output: the entry-point group `topocomm.doctor`.

An entry point leads to a module with

    sections() -> list of (title, lines)   printed below the findings, by one rank

so the package needs to import nothing of topocomm.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

GROUP = "topocomm.doctor"
Section = tuple[str, Sequence[str]]


def registered_sections() -> list[Section]:
    """Return the sections of all packages, with a line in place of one that cannot be loaded."""
    found: list[Section] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        try:
            found += entry.load().sections()
        except (ImportError, AttributeError, OSError, RuntimeError) as error:  # what broken drivers raise, too
            found.append((entry.name, [f"{entry.value} has nothing to say: {type(error).__name__}: {error}"]))
    return found
