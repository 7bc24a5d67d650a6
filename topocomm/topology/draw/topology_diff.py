"""Differences between two topologies in words: devices, pairs, links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topocomm.topology.draw.device_tree import local
from topocomm.topology.draw.names import counts, plural, ranges, some
from topocomm.topology.inference.pci_tree import natural
from topocomm.topology.model import Link, Topology

Facts = dict[str, str]
"""The compared facts of a device, pair or connection, in words."""
MOST_NAMES = 8
"""Names in one line; more are counted."""
MOST_LETTERS = 120
"""Longest list of names that are drawn together."""
MOST_LINES = 40
"""Lines of one part; more are counted."""
_DEVICE_FACTS = {
    "kind": "kind",
    "NUMA node": "numa",
    "CPUs": "cpu_affinity",
    "bus id": "bus_id",
    "name": "name",
    "reduces by itself": "in_network",
}
"""Compared fields of a device, by their words."""


def render(first: Topology, second: Topology, *, names: tuple[str, str]) -> str:
    """Return the differences, ending in a newline; all that differs in the same facts is one line.

    Devices are the same if their ids are. Two single hosts are compared whatever they are called.
    """
    is_single = all(len({d.host for d in topology.devices}) == 1 for topology in (first, second))
    before, after = (_parts(topology, is_single=is_single) for topology in (first, second))
    facts: dict[str, Callable[[Any], Facts]] = {
        "Devices": lambda device: {words: _shown(getattr(device, name)) for words, name in _DEVICE_FACTS.items()},
        "Pairs": lambda pair: {"code": _shown(pair.code)},
        "Links": _link_facts,
    }
    parts = [(title, _differences(before[title], after[title], names, words)) for title, words in facts.items()]
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


def _parts(topology: Topology, *, is_single: bool) -> dict[str, Mapping[str, Any]]:
    """Devices, pairs and links of one topology by names; those of a single host do not depend on what it is called."""
    names = {d.id: local(d.id, d.host) if is_single else d.id for d in topology.devices}
    pairs = {"-".join(_in_order(names[pair.a], names[pair.b])): pair for pair in topology.pairs}
    links: dict[str, list[Link]] = {}  # both directions, those out of the first name first
    for link in topology.links:
        a, b = _in_order(names[link.src], names[link.dst])
        both = links.setdefault(f"{link.kind} {a}-{b}", [])
        both.insert(len(both) if names[link.src] == b else 0, link)
    return {"Devices": {names[d.id]: d for d in topology.devices}, "Pairs": pairs, "Links": links}


def _in_order(*names: str) -> list[str]:
    return sorted(names, key=lambda name: (natural(name), name))


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


def _link_facts(links: Sequence[Link]) -> Facts:
    forth, back = ([link for link in links if (link.src == links[0].src) == is_forth] for is_forth in (True, False))
    lanes, rates = ([_sum([getattr(x, key) for x in own]) for own in (forth, back)] for key in ("lanes", "gb_per_s"))
    latencies = [forth[0].latency_us, back[0].latency_us if back else None]
    return {"lanes": _both(*lanes), "GB/s": _both(*rates), "latency us": _both(*latencies)}


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
    drawn = ranges(keys)
    if len(drawn) <= MOST_LETTERS and not any(c in key for key in keys for c in "- "):
        return drawn
    return some(keys, MOST_NAMES)
