"""Differences between two topologies in words: devices, pairs, links."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topocomm.topology.draw.device_tree import local
from topocomm.topology.draw.names import counts, plural, ranges
from topocomm.topology.model import Device, Link, Pair, Topology

Facts = dict[str, str]
"""The compared facts of a device, pair or connection, in words."""
MOST_NAMES = 8
"""Names in one line; more are counted."""
MOST_LETTERS = 120
"""Longest list of names that are drawn together."""
MOST_LINES = 40
"""Lines of one part; more are counted."""


def render(first: Topology, second: Topology, *, names: tuple[str, str]) -> str:
    """Return the differences, ending in a newline; all that differs in the same facts is one line.

    Devices are the same if their ids are. Two single hosts are compared whatever they are called.
    """
    sides = _Side(first, second), _Side(second, first)
    parts = [
        ("Devices", _differences(sides[0].devices, sides[1].devices, names, _device_facts)),
        ("Pairs", _differences(sides[0].pairs, sides[1].pairs, names, lambda pair: {"code": _shown(pair.code)})),
        ("Links", _differences(sides[0].links, sides[1].links, names, _link_facts)),
    ]
    lines = [f"{name}: {t.name} ({t.source}): {counts(t)}" for name, t in zip(names, (first, second), strict=True)]
    lines.append("")
    for title, differences in parts:
        if differences:
            lines += [title, *(f"  {line}" for line in differences[:MOST_LINES])]
            if len(differences) > MOST_LINES:
                lines.append(f"  and {plural(len(differences) - MOST_LINES, 'more difference')}")
    same = [title.lower() for title, differences in parts if not differences]
    if same:
        words = " and ".join(filter(None, (", ".join(same[:-1]), same[-1])))
        lines.append(f"No difference in {words}.")
    return "\n".join(lines) + "\n"


class _Side:
    """One topology by names that do not depend on what a single host is called."""

    def __init__(self, own: Topology, other: Topology) -> None:
        single = all(len({d.host for d in t.devices}) == 1 for t in (own, other))
        names = {d.id: local(d.id, d.host) if single else d.id for d in own.devices}
        self.devices: dict[str, Device] = {names[d.id]: d for d in own.devices}
        self.pairs: dict[str, Pair] = {}
        for pair in own.pairs:
            self.pairs["-".join(sorted((names[pair.a], names[pair.b]), key=_natural))] = pair
        self.links: dict[str, list[Link]] = {}
        """Both directions, those out of the first name first."""
        for link in own.links:
            a, b = names[link.src], names[link.dst]
            is_forth = _natural(a) < _natural(b)
            both = self.links.setdefault(f"{link.kind} {a}-{b}" if is_forth else f"{link.kind} {b}-{a}", [])
            both.insert(0 if is_forth else len(both), link)


def _differences(
    first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str], facts: Callable[[Any], Facts]
) -> list[str]:
    """A line for what only one side has, and one for each change of a fact, with all that changed so."""
    lines = []
    for name, own, others in ((names[0], first, second), (names[1], second, first)):
        only = [key for key in own if key not in others]
        if only:
            lines.append(f"only in {name}: {_listed(only)}")
    changes: dict[str, list[str]] = {}
    for key, value in first.items():
        if key in second and value != second[key]:
            after = facts(second[key])
            for what, text in facts(value).items():
                if text != after[what]:
                    changes.setdefault(f"{what} {text} -> {after[what]}", []).append(key)
    return lines + [f"{change}: {_listed(keys)}" for change, keys in changes.items()]


def _device_facts(device: Device) -> Facts:
    return {
        "kind": device.kind,
        "NUMA node": _shown(device.numa),
        "CPUs": _shown(device.cpu_affinity),
        "bus id": _shown(device.bus_id),
        "name": _shown(device.name),
        "reduces by itself": _shown(device.in_network),
    }


def _link_facts(links: Sequence[Link]) -> Facts:
    forth = [link for link in links if link.src == links[0].src]
    back = [link for link in links if link.src != links[0].src]
    sums = [[_sum([getattr(x, key) for x in own]) for own in (forth, back)] for key in ("lanes", "gb_per_s")]
    latencies = [forth[0].latency_us, back[0].latency_us if back else None]
    return {"lanes": _both(*sums[0]), "GB/s": _both(*sums[1]), "latency us": _both(*latencies)}


def _sum(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known and len(known) == len(figures) else None


def _both(forth: float | None, back: float | None) -> str:
    """One figure, or one for each direction where they differ."""
    words = ["not known" if figure is None else f"{figure:.6g}" for figure in (forth, back)]
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
