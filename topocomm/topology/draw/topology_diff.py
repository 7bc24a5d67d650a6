"""What differs between two topologies, in words: devices, NUMA nodes, pair codes, links."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topocomm.topology.draw.device_tree import local
from topocomm.topology.draw.names import counts, plural, ranges
from topocomm.topology.model import Device, Link, Pair, Topology

Facts = dict[str, str]
"""What is compared of one thing, in words."""
MOST_NAMES = 8
"""Names in one line; what happened to more is counted."""
MOST_LETTERS = 120
"""Of names drawn together."""
MOST_LINES = 40
"""Lines of one part."""


def render(first: Topology, second: Topology, *, names: tuple[str, str]) -> str:
    """The differences, ending in a newline; what differs in the same way is one line.

    Devices are the same if their ids are; one host alone is compared with one host, whatever the two are called.

    Args:
        first: One topology.
        second: The other.
        names: What to call them.
    """
    one, other = _Side(first, second), _Side(second, first)
    devices = _changed(_device_facts, one.devices, other.devices)
    pairs = _changed(_pair_facts, one.pairs, other.pairs)
    links = _changed(_link_facts, one.links, other.links)
    parts = [
        ("Devices", [*_missing(one.devices, other.devices, names), *devices]),
        ("Pairs", [*_missing(one.pairs, other.pairs, names), *pairs]),
        ("Links", [*_missing(one.links, other.links, names), *links]),
    ]
    lines = [f"{name}: {t.name} ({t.source}): {counts(t)}" for name, t in zip(names, (first, second), strict=True)]
    lines.append("")
    for title, found in parts:
        if found:
            lines += [title, *(f"  {line}" for line in found[:MOST_LINES])]
            if len(found) > MOST_LINES:
                lines.append(f"  and {plural(len(found) - MOST_LINES, 'more difference')}")
    same = [title.lower() for title, found in parts if not found]
    if same:
        words = " and ".join(filter(None, (", ".join(same[:-1]), same[-1])))
        lines.append(f"No difference in {words}.")
    return "\n".join(lines) + "\n"


class _Side:
    """What one topology has, under names that do not depend on what a single host is called."""

    def __init__(self, own: Topology, other: Topology) -> None:
        alone = all(len({d.host for d in t.devices}) == 1 for t in (own, other))
        names = {d.id: local(d.id, d.host) if alone else d.id for d in own.devices}
        self.devices: dict[str, Device] = {names[d.id]: d for d in own.devices}
        self.pairs: dict[str, Pair] = {}
        for pair in own.pairs:
            self.pairs["-".join(sorted((names[pair.a], names[pair.b]), key=_natural))] = pair
        self.links: dict[str, list[Link]] = {}
        """Both directions, those out of the first name first."""
        for link in own.links:
            a, b = names[link.src], names[link.dst]
            forth = _natural(a) < _natural(b)
            ways = self.links.setdefault(f"{link.kind} {a}-{b}" if forth else f"{link.kind} {b}-{a}", [])
            ways.insert(0 if forth else len(ways), link)


def _missing(one: Mapping[str, Any], other: Mapping[str, Any], names: tuple[str, str]) -> list[str]:
    lines = []
    for name, mine, others in ((names[0], one, other), (names[1], other, one)):
        only = [key for key in mine if key not in others]
        if only:
            lines.append(f"only in {name}: {_listed(only)}")
    return lines


def _changed(facts: Callable[[Any], Facts], one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """A line for each way in which what both have differs, with all that differs so."""
    ways: dict[tuple[str, str, str], list[str]] = {}
    for key, mine in one.items():
        if key in other and mine != other[key]:
            before, after = facts(mine), facts(other[key])
            for what, text in before.items():
                if text != after[what]:
                    ways.setdefault((what, text, after[what]), []).append(key)
    return [f"{what} {before} -> {after}: {_listed(keys)}" for (what, before, after), keys in ways.items()]


def _device_facts(device: Device) -> Facts:
    return {
        "kind": device.kind,
        "NUMA node": _shown(device.numa),
        "CPUs": _shown(device.cpu_affinity),
        "bus id": _shown(device.bus_id),
        "name": _shown(device.name),
        "reduces by itself": _shown(device.in_network),
    }


def _pair_facts(pair: Pair) -> Facts:
    return {"code": _shown(pair.code)}


def _link_facts(links: Sequence[Link]) -> Facts:
    there = [link for link in links if link.src == links[0].src]
    back = [link for link in links if link.src != links[0].src]
    return {
        "lanes": _both(_sum([link.lanes for link in there]), _sum([link.lanes for link in back])),
        "GB/s": _both(_sum([link.gb_per_s for link in there]), _sum([link.gb_per_s for link in back])),
        "latency us": _both(there[0].latency_us, back[0].latency_us if back else None),
    }


def _sum(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known and len(known) == len(figures) else None


def _both(there: float | None, back: float | None) -> str:
    """One figure, or one for each direction where they differ."""
    words = ["not known" if figure is None else f"{figure:.6g}" for figure in (there, back)]
    return words[0] if words[0] == words[1] else "/".join(words)


def _shown(value: object) -> str:
    return "not known" if value is None else str(value)


def _listed(keys: Sequence[str]) -> str:
    """Some of the names, and how many more."""
    drawn = ranges(keys)
    if len(drawn) <= MOST_LETTERS and not any(c in key for key in keys for c in "- "):
        return drawn
    shown = ", ".join(keys[:MOST_NAMES])
    return shown + (f" and {len(keys) - MOST_NAMES} more" if len(keys) > MOST_NAMES else "")


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sorts GPU2 before GPU10."""
    parts = re.findall(r"\d{1,9}|\D+", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
