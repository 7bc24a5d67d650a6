"""The facts of several captures of one machine in one mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from topocomm.topology.merge.device_matching import label
from topocomm.topology.model import Topology

Facts = dict[str, Any]

BY_SOURCE = "by_source"
"""Where values go that another capture gives otherwise: by source, then by key."""

_OF_THE_CAPTURE = frozenset(
    [
        "capability",
        "p2p",
        "legend",
        "format",
        "sections",
        "tables",
        "columns",
        "xml_version",
        "hwloc_xml",
        "library",
        "gpus_listed",
        "notes",
        "cpus",
    ]
)
"""Facts of a text rather than of the machine; that they differ is no contradiction."""

_DEVICE = re.compile(r"[^-]+")
TOLERANCE = 0.05
"""Figures that are nearer than this agree: tools print raw and net rates of links."""


def renamed(facts: Mapping[str, Any], ids: Mapping[str, str]) -> Facts:
    """Facts with other device ids, also in keys of pairs (`GPU0-GPU1`)."""
    changed = {a: b for a, b in ids.items() if a != b}

    def name(text: str) -> str:
        return _DEVICE.sub(lambda found: changed.get(found[0], found[0]), text)

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name(str(key)): walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return name(value) if isinstance(value, str) else value

    return dict(walk(facts)) if changed else dict(facts)


def merge_facts(captures: Sequence[tuple[Topology, Facts]]) -> tuple[Facts, list[str]]:
    """All facts, and what contradicts: of two values the first stays, the other goes to `by_source`."""
    merged: Facts = {}
    owner: dict[str, Topology] = {}
    aside: dict[str, Facts] = {}
    warnings = []
    for topology, facts in captures:
        for key, value in facts.items():
            if key not in merged:
                merged[key], owner[key] = value, topology
                continue
            together = _together(merged[key], value)
            if together is not None:
                merged[key] = together
                continue
            aside.setdefault(topology.source, {})[key] = value
            if key not in _OF_THE_CAPTURE:
                shown = f"{_short(merged[key])} ({label(owner[key])}), {_short(value)} ({label(topology)})"
                warnings.append(f"{key}: {shown}; the first kept, the other is in facts.{BY_SOURCE}")
    return merged | ({BY_SOURCE: aside} if aside else {}), warnings


def _together(mine: Any, theirs: Any) -> Any:
    """One value that says both, None where they contradict each other."""
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        found = dict(mine)
        for key, value in theirs.items():
            both = _together(found[key], value) if key in found else value
            if both is None and value is not None:
                return None
            found[key] = both
        return found
    return mine if mine is not None and agree(mine, theirs) else theirs if mine is None else None


def agree(mine: Any, theirs: Any) -> bool:
    """True for equal values and for decimal figures within the tolerance."""
    if isinstance(mine, float) or isinstance(theirs, float):
        numbers = [x for x in (mine, theirs) if isinstance(x, int | float) and not isinstance(x, bool)]
        return len(numbers) == 2 and abs(mine - theirs) <= TOLERANCE * max(abs(mine), abs(theirs))
    return bool(mine == theirs)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
