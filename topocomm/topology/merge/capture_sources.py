"""One capture as a part of a machine of several captures: its tree, its fabric, its figures, its facts.

The *fabric* joins GPUs beside PCIe: NVLink and xGMI, direct or through switches. The *tree* is all other links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
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
        self.topology, self.ids = topology, ids
        self.facts = renamed(topology.facts, ids)
        fabric = [link for link in topology.links if self._is_fabric(link)]
        self.fabric = [self._mapped(link) for link in fabric]
        tree = [link for link in topology.links if not self._is_fabric(link)]
        self.tree = [self._mapped(link) for link in tree]
        ends = {end for link in tree for end in link[:2]}
        switches = {end for link in fabric for end in link[:2]} - ends
        others = [device for device in topology.devices if device.id not in ids]
        self.switches = tuple(d for d in others if d.kind == "switch" and d.id in switches)
        self.tree_devices = tuple(d for d in others if d not in self.switches)

    def _is_fabric(self, link: Link) -> bool:
        kinds = {self.topology.by_id[link.src].kind, self.topology.by_id[link.dst].kind}
        return link.kind in _FABRIC_KINDS and "gpu" in kinds and kinds <= {"gpu", "switch"}

    def _mapped(self, link: Link) -> Link:
        return link._replace(src=self.ids.get(link.src, link.src), dst=self.ids.get(link.dst, link.dst))

    @cached_property
    def covered(self) -> set[str]:
        """GPUs and NICs that the tree joins."""
        return {end for link in self.tree for end in link[:2]} & set(self.ids.values())

    @cached_property
    def addressed(self) -> set[str]:
        """Devices whose PCI address this capture gives."""
        return {new for own, new in self.ids.items() if self.topology.by_id[own].bus_id}

    @cached_property
    def slots(self) -> dict[str, list[Link]]:
        """PCIe links out of each GPU and NIC."""
        slots: dict[str, list[Link]] = {}
        for link in self.tree:
            if link.kind == "pcie" and link.src in self.covered:
                slots.setdefault(link.src, []).append(link)
        return slots

    @cached_property
    def lanes(self) -> dict[PairKey, Link]:
        """The fabric by (GPU or `SWITCH`, GPU or `SWITCH`): the sum of the links of one direction."""
        lanes: dict[PairKey, Link] = {}
        switches = {device.id for device in self.switches}
        for link in self.fabric:
            key = (SWITCH if link.src in switches else link.src, SWITCH if link.dst in switches else link.dst)
            lanes[key] = _sum(lanes[key], link) if key in lanes else link
        return lanes


def _sum(a: Link, b: Link) -> Link:
    """Two parallel links as one."""
    lanes = None if a.lanes is None or b.lanes is None else a.lanes + b.lanes
    rate = None if a.gb_per_s is None or b.gb_per_s is None else a.gb_per_s + b.gb_per_s
    return a._replace(lanes=lanes, gb_per_s=rate, gb_per_s_source=a.gb_per_s_source if rate is not None else None)


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
