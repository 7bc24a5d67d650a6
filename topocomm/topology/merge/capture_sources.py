"""One capture as a part of a machine of several captures: its tree, its fabric, its figures, its facts.

The *fabric* joins GPUs beside PCIe: NVLink and xGMI, direct or through switches. The *tree* is all other links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from topocomm.topology.inference.host_tree import PairKey, group_words
from topocomm.topology.merge.device_matching import label
from topocomm.topology.model import FigureSource, Link, Pair, Topology

SWITCH = "*switch"
"""Stands for any switch that a GPU is linked to."""
RANK: dict[FigureSource | None, int] = {"measured": 4, "read": 3, "table": 2, "assumed": 1, None: 0}
"""Rank of a figure's source; of two figures the one of the higher rank is kept."""

_FABRIC_KINDS = ("nvlink", "xgmi")

Figured = TypeVar("Figured", Link, Pair)


def better_figures(first: Figured, second: Figured) -> tuple[Figured, list[str]]:
    """Return the first with every figure of the second that has a better source, and contradictions in words."""
    clashes = []
    changes: dict[str, Any] = {}
    for figure, unit in (("gb_per_s", "GB/s"), ("latency_us", "us")):
        a, b = getattr(first, figure), getattr(second, figure)
        source_a, source_b = getattr(first, f"{figure}_source"), getattr(second, f"{figure}_source")
        if b is not None and (a is None or RANK[source_b] > RANK[source_a]):
            changes |= {figure: b, f"{figure}_source": source_b}
        elif None not in (a, b) and source_a == source_b and RANK[source_a] >= RANK["read"] and not agree(a, b):
            clashes.append(f"{a:g} {unit} against {b:g} {unit}")
    return first._replace(**changes), clashes


class Clashes:
    """Contradictions by the captures that make them: one warning for two captures."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, None]] = {}

    def add(self, kept: Topology, other: Topology, items: Iterable[str], which: str = "the first kept") -> None:
        """Add items (`GPU0-GPU1 PIX against PXB`) in which two captures differ, and which was kept."""
        words = f"{label(kept)} against {label(other)}; {which}"
        for item in items:
            self._items.setdefault(words, {})[item] = None

    def texts(self) -> list[str]:
        """Return one warning for each two captures."""
        return [f"{group_words(list(items))}: {words}" for words, items in self._items.items()]


def between(a: str, b: str) -> str:
    """Return the name of a link in messages, equal for both directions."""
    return "-".join("switch" if end == SWITCH else end for end in sorted((a, b), reverse=SWITCH in (a, b)))


class LinkSource:
    """One capture's links with the machine's ids; forwarding devices keep their own."""

    def __init__(self, topology: Topology, ids: Mapping[str, str]) -> None:
        self.topology = topology
        self.facts = renamed(topology.facts, ids)
        self.fabric: list[Link] = []
        self.tree: list[Link] = []
        for link in topology.links:
            kinds = {topology.by_id[end].kind for end in link[:2]}
            in_fabric = link.kind in _FABRIC_KINDS and "gpu" in kinds and kinds <= {"gpu", "switch"}
            mapped = link._replace(src=ids.get(link.src, link.src), dst=ids.get(link.dst, link.dst))
            (self.fabric if in_fabric else self.tree).append(mapped)
        ends = {end for link in self.tree for end in link[:2]}
        switches = {end for link in self.fabric for end in link[:2]} - ends
        others = [device for device in topology.devices if device.id not in ids]
        self.switches = tuple(d for d in others if d.kind == "switch" and d.id in switches)
        self.tree_devices = tuple(d for d in others if d not in self.switches)
        self.covered = ends & set(ids.values())
        """GPUs and NICs that the tree joins."""
        self.addressed = {new for own, new in ids.items() if topology.by_id[own].bus_id}
        """Devices whose PCI address this capture gives."""
        self.slots: dict[str, list[Link]] = {}
        """PCIe links out of each GPU and NIC."""
        for link in self.tree:
            if link.kind == "pcie" and link.src in self.covered:
                self.slots.setdefault(link.src, []).append(link)
        self.lanes: dict[PairKey, Link] = {}
        """The fabric by (GPU or `SWITCH`, GPU or `SWITCH`): the sum of the links of one direction."""
        into = {device.id: SWITCH for device in self.switches}
        for link in self.fabric:
            key = into.get(link.src, link.src), into.get(link.dst, link.dst)
            first = self.lanes.setdefault(key, link)
            if first is not link:
                lanes = None if None in (first.lanes, link.lanes) else (first.lanes or 0) + (link.lanes or 0)
                rates = first.gb_per_s, link.gb_per_s
                rate = None if None in rates else (first.gb_per_s or 0.0) + (link.gb_per_s or 0.0)
                source = None if rate is None else first.gb_per_s_source
                self.lanes[key] = first._replace(lanes=lanes, gb_per_s=rate, gb_per_s_source=source)


Facts = dict[str, Any]

BY_SOURCE = "by_source"
"""The fact that holds values of other captures that differ from the merged ones: by source, then by key."""

_OF_THE_CAPTURE = (
    *("capability", "p2p", "legend", "format", "sections", "tables", "columns"),
    *("xml_version", "hwloc_xml", "library", "gpus_listed", "notes", "cpus"),
)
"""Facts about a text, not about the machine; differences between them are no contradiction."""

_DEVICE = re.compile(r"[^-]+")
TOLERANCE = 0.05
"""Relative difference up to which figures agree, as tools print raw and net rates of links."""


def renamed(facts: Mapping[str, Any], ids: Mapping[str, str]) -> Facts:
    """Return the facts with other device ids, also in keys of pairs (`GPU0-GPU1`)."""
    changed = {a: b for a, b in ids.items() if a != b}

    def name(text: str) -> str:
        return _DEVICE.sub(lambda match: changed.get(match[0], match[0]), text)

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name(str(key)): walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return name(value) if isinstance(value, str) else value

    return dict(walk(facts)) if changed else dict(facts)


def merge_facts(captures: Sequence[tuple[Topology, Facts]]) -> tuple[Facts, list[str]]:
    """Merge facts and return contradictions; of two values the first is kept, the other goes to `by_source`."""
    merged: Facts = {}
    owner: dict[str, Topology] = {}
    others: dict[str, Facts] = {}
    warnings = []
    for topology, facts in captures:
        for key, value in facts.items():
            if key not in merged:
                merged[key], owner[key] = value, topology
                continue
            both = _merged(merged[key], value)
            if both is not None:
                merged[key] = both
                continue
            others.setdefault(topology.source, {})[key] = value
            if key not in _OF_THE_CAPTURE:
                shown = f"{_short(merged[key])} ({label(owner[key])}), {_short(value)} ({label(topology)})"
                warnings.append(f"{key}: {shown}; the first kept, the other is in facts.{BY_SOURCE}")
    return merged | ({BY_SOURCE: others} if others else {}), warnings


def _merged(first: Any, second: Any) -> Any:
    """One value that contains both, None where they contradict each other."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        merged = dict(first)
        for key, value in second.items():
            both = _merged(merged[key], value) if key in merged else value
            if both is None and value is not None:
                return None
            merged[key] = both
        return merged
    return first if first is not None and agree(first, second) else second if first is None else None


def agree(first: Any, second: Any) -> bool:
    """Return whether values are equal or, for floats, within the tolerance."""
    if isinstance(first, float) or isinstance(second, float):
        numbers = [x for x in (first, second) if isinstance(x, int | float) and not isinstance(x, bool)]
        return len(numbers) == 2 and abs(first - second) <= TOLERANCE * max(abs(first), abs(second))
    return bool(first == second)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
