"""`amd-smi topology` (ROCm 6.0 and later), as text.

Any of its nine tables may be missing (`-a -w -o -t -b -c -n -d -z` choose). Rows and columns are named by bus id; GPU
numbers are the order of the rows.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.amd.amd_tables import fail, find_tables, host_of_tables
from topocomm.topology.readers.plain.paste import plain_lines

SOURCE = "amd-smi topology"

BUS_ID = re.compile(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")

_KEYS = {
    "ACCESS": "access",
    "WEIGHT": "weight",
    "HOPS": "hops",
    "LINK TYPE": "link_type",
    "NUMA BW": "numa_bw",
    "CACHE COHERANCY": "coherency",  # the tool's own spelling
    "CACHE COHERENCY": "coherency",
    "ATOMICS": "atomics",
    "DMA": "dma",
    "BI-DIRECTIONAL": "bidirectional",
}
_MARK = re.compile(rf"\b(?:{'|'.join(_KEYS)}) TABLE\b")
_TITLE = re.compile(r"\s*([A-Z][A-Z -]{1,40}) TABLE\s*(:?)\s*")
_LEGEND = re.compile(r"\s*Legend\b", re.IGNORECASE)
_REMEDY = "give the whole output of `amd-smi topology`"


def matches(text: str) -> bool:
    """Return whether the text has the title of one of the tables, and a bus id."""
    return _MARK.search(text) is not None and BUS_ID.search(text) is not None


def read(text: str, name: str) -> Topology:
    """Return the host that the tables describe."""
    lines = plain_lines(text)
    tables, warnings = find_tables(lines, name, _title, BUS_ID)
    if not tables:
        fail(f"{name}:1", f"no table of `amd-smi topology` with rows of bus ids; {_REMEDY}")
    axis = tables[0].axis
    if len(set(axis)) < len(axis):
        warnings.append(f"{PurePath(name).name}: some GPUs have the same bus id; they are told apart by their order")
    facts: dict[str, object] = {"tables": [table.title for table in tables]}
    if any(_LEGEND.match(line) for line in lines):
        facts["legend"] = True
    gpus = [Device(f"GPU{i}", "gpu", bus_id=bus_id) for i, bus_id in enumerate(axis)]
    return host_of_tables(name, SOURCE, gpus, tables, (facts, warnings, _REMEDY), xgmi_only=True)


def _title(line: str) -> tuple[str, str] | None:
    if title := _TITLE.fullmatch(line):
        words, colon = title.groups()
        if words in _KEYS or colon:
            return _KEYS.get(words, f"other {words}"), words
    return ("legend", "Legend") if _LEGEND.match(line) else None
