"""`rocm-smi --showtopo`, its single tables and its JSON.

The single tables are `--showtopoweight`, `--showtopohops`, `--showtopotype`, `--showtoponuma`, `--showtopoaccess` and
`--shownodesbw`. The keys of `--json` are those of the tool's source: no output of a machine was at hand to check them.

`Numa Affinity` is the kernel's NUMA node of the PCI device and becomes `Device.numa`; `Numa Node` is the driver's own
search for the nearest CPU, which differs from it in partitioned modes, and is a fact only.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import PurePath
from typing import Any

from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.amd.amd_smi_json import document_in
from topocomm.topology.readers.amd.amd_tables import MAX_GPUS, NOT_AVAILABLE, Table, fail, find_tables, host_of_tables
from topocomm.topology.readers.plain.paste import plain_lines

SOURCE = "rocm-smi --showtopo"

_GPU = re.compile(r"GPU[0-9]{1,4}")
_KEYS = {
    "weight between two gpus": "weight",
    "hops between two gpus": "hops",
    "link type between two gpus": "link_type",
    "link accessibility between two gpus": "access",
    "bandwidth": "numa_bw",
    "numa nodes": "numa",
}
_END = ("end of rocm smi log", "rocm system management interface")
_NUMA = re.compile(
    r"\s*GPU\s?\[?([0-9]{1,4})\]?\s*:\s*\(Topology\)\s*Numa (Node|Affinity)\s*:\s*(-?[0-9]{1,9})\s*", re.IGNORECASE
)
_NUMA_FACTS = {"node": "numa_node", "affinity": "numa_affinity"}
_PROBLEM = re.compile(r"\s*+(?:(?:ERROR|WARNING)\b.*|.{0,200}\bNot supported on the given system.*)", re.IGNORECASE)
_MARK = re.compile(
    r"(?:Weight|Hops|Link Type|Link accessibility) between (?:two GPUs|DRM devices)|\(Topology\) Numa|"
    r"(?m:^[ \t]*={3,} *Bandwidth *={3,}[ \t\r]*$)",
    re.IGNORECASE,
)
_MARK_WORDS = ("between two gpus", "between drm devices", "(topology) numa", "bandwidth")
"""Every mark has one of them, in small letters; a long text without them is refused at once."""
_JSON_KEY = re.compile(
    r"\(Topology\) (Weight|Hops|Link type|Link accessibility) between DRM devices ([0-9]+) and ([0-9]+)"
)
_OTHER_LINKS = "Non-xGMI links detected"
"""Below the bandwidth table: some of its cells are of PCIe pairs."""
_CARD = re.compile(r"card([0-9]{1,4})")
_REMEDY = (
    "rocm-smi mixes up its tables when it cannot read one: "
    "try `rocm-smi --showtopotype` and `rocm-smi --showtoponuma` one by one"
)

Numa = dict[str, dict[int, int]]


def matches(text: str) -> bool:
    """Return whether the text has a title, a line or a key of the tool's topology."""
    lowered = text.lower()
    return any(word in lowered for word in _MARK_WORDS) and _MARK.search(text) is not None


def read(text: str, name: str) -> Topology:
    """Return the host that the tables describe."""
    if '"(Topology)' in text:
        return _read_json(text, name)
    lines = plain_lines(text)
    tables, warnings = find_tables(lines, name, _title, _GPU)
    numa = _numa_lines(lines, name, warnings)
    base = PurePath(name).name
    problems = [(i, line.strip()) for i, line in enumerate(lines, 1) if _PROBLEM.fullmatch(line)]
    warnings += [f"{base}:{i}: the tool said {problem[:100]!r}" for i, problem in problems[:4]]
    sections = list(dict.fromkeys(title[0] for line in lines if (title := _title(line)) and title[0] != "end"))
    if any(numa.values()) and "numa" not in sections:
        sections.append("numa")
    if not tables and not any(numa.values()):
        fail(f"{name}:1", f"no table of GPUs and no line of a NUMA node; {_REMEDY}")
    xgmi_only = not any(_OTHER_LINKS in line for line in lines)
    return _topology(name, tables, numa, warnings, sections, xgmi_only=xgmi_only)


def _title(line: str) -> tuple[str, str] | None:
    """Return the section that a line starts, between rulers of `=` or, in forks of the tool, of other signs."""
    text = line.strip(" \t=-*#")
    key = _KEYS.get(text.lower())
    if key is not None and (key != "numa_bw" or "=" in line):
        return key, text
    return ("end", text) if text.lower() in _END and "=" in line else None


def _numa_lines(lines: list[str], name: str, warnings: list[str]) -> Numa:
    numa: Numa = {"numa_node": {}, "numa_affinity": {}}
    for index, line in enumerate(lines):
        match = _NUMA.fullmatch(line)
        if match is None:
            continue
        gpu, value = int(match.group(1)), int(match.group(3))
        above = [number for values in numa.values() for number in values.values()]
        if index == len(lines) - 1 and max(above, default=0) > 9:  # no line end: the number may go on
            warnings.append(f"{PurePath(name).name}:{index + 1}: the text ends inside this line; it is not used")
            continue
        if numa[_NUMA_FACTS[match.group(2).lower()]].setdefault(gpu, value) != value:
            what = f"another {match.group(2)} of GPU{gpu} stands above"
            fail(f"{name}:{index + 1}", f"{what}; give the output of one run")
    return numa


def _topology(
    name: str, tables: list[Table], numa: Numa, warnings: list[str], sections: list[str], *, xgmi_only: bool = False
) -> Topology:
    axis = tables[0].axis if tables else ()
    if len(set(axis)) < len(axis):
        fail(tables[0].places[0], "a GPU is named twice in the header; give the whole output of the tool")
    numbers = {gpu for values in numa.values() for gpu in values}
    others = [f"GPU{i}" for i in sorted(numbers) if f"GPU{i}" not in axis]
    ids = (*axis, *others)
    if len(ids) > MAX_GPUS:
        fail(f"{name}:1", f"{len(ids)} GPUs; a host has at most {MAX_GPUS}")
    base = PurePath(name).name
    if axis and others:
        warnings.append(f"{base}: {group_words(others)}: in no table, only in the NUMA lines")
    affinity = numa["numa_affinity"]
    lost = [gpu for gpu in ids if int(gpu[3:]) not in affinity]
    if lost and numbers:
        warnings.append(f"{base}: no Numa Affinity for {group_words(lost)}; the text may be cut")
    nodes = [affinity.get(int(gpu[3:]), -1) for gpu in ids]
    gpus = [Device(gpu, "gpu", numa=node if node >= 0 else None) for gpu, node in zip(ids, nodes, strict=True)]
    all_facts: dict[str, Any] = {"sections": sections, "gpu_dev": {gpu: int(gpu[3:]) for gpu in ids}}
    for key, values in numa.items():
        if values:
            all_facts[key] = {gpu: values.get(int(gpu[3:])) for gpu in ids}
    if affinity and not lost:
        all_facts["numa_nodes"] = len({node for node in nodes if node >= 0}) or None
    return host_of_tables(name, SOURCE, gpus, tables, (all_facts, warnings, _REMEDY), xgmi_only=xgmi_only)


def _read_json(text: str, name: str) -> Topology:
    """Return the host of `{"system": {"(Topology) Hops between DRM devices 0 and 1": "1"}, "card0": {...}}`."""
    document = document_in(text, name, "{")
    cells: dict[str, dict[tuple[int, int], str]] = {}
    numa: Numa = {"numa_node": {}, "numa_affinity": {}}
    for section, values in document.items() if isinstance(document, dict) else ():
        if not isinstance(values, dict):
            continue
        card = _CARD.fullmatch(section)
        for key, value in values.items():
            place = f"{name}: {section}.{key}"[:200]
            if match := _JSON_KEY.fullmatch(key):
                if not isinstance(value, str) or len(match[2] + match[3]) > 8:
                    fail(place, f"expected a text, got {json.dumps(value)[:40]}")
                value = NOT_AVAILABLE if value == "None" else value
                table = cells.setdefault(_KEYS[f"{match[1].lower()} between two gpus"], {})
                table[int(match[2]), int(match[3])] = value
            elif card and key.startswith("(Topology) Numa "):
                if not isinstance(value, str) or not re.fullmatch(r"-?[0-9]{1,9}", value):
                    fail(place, f"expected a NUMA number, got {json.dumps(value)[:40]}")
                fact = _NUMA_FACTS.get(key.split()[-1].lower())
                if fact:
                    numa[fact][int(card[1])] = int(value)
    numbers = {i for values in cells.values() for pair in values for i in pair}
    numbers |= {i for values in numa.values() for i in values}
    if not numbers:
        fail(f"{name}:1", "no pair of GPUs and no NUMA node; give the output of `rocm-smi --showtopo --json`")
    if len(numbers) > MAX_GPUS:
        fail(f"{name}:1", f"{len(numbers)} GPUs; a host has at most {MAX_GPUS}")
    order = sorted(numbers)
    tables = [_json_table(key, values, order, name) for key, values in cells.items()]
    return _topology(name, tables, numa, [], [*cells, *(["numa"] if any(numa.values()) else [])])


def _json_table(key: str, cells: dict[tuple[int, int], str], order: list[int], name: str) -> Table:
    """Return the square table of pairs that are named once each."""
    place = f"{name}: system"
    both = {(b, a): text for (a, b), text in cells.items()} | cells | {(i, i): "0" for i in order}
    if lost := [pair for pair in combinations(order, 2) if pair not in both]:
        fail(place, f"no {key} between devices {lost[0][0]} and {lost[0][1]}; give the whole output of the tool")
    rows = [tuple(both[a, b] for b in order) for a in order]
    return Table(key, key, tuple(f"GPU{i}" for i in order), rows, [place] * len(order))
