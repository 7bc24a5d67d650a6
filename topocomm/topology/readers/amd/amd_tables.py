"""Titled square tables of AMD's tools, one row and one column per GPU, and the host that they describe.

`rocm-smi --showtopo` and `amd-smi topology` print several such tables one after the other; their JSON holds the same
cells. A table is taken whole or refused: which cell belongs to which pair is certain only if none is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import PurePath
from typing import Any, NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.inference.host_tree import HostTree, PairKey, group_words, host_tree
from topocomm.topology.inference.nvlink import GpuFabric
from topocomm.topology.inference.pci_tree import coded_pair
from topocomm.topology.inference.xgmi import joined_by_tables, xgmi_links
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.plain.paste import LineReader

MAX_GPUS = 128
"""Twice what the largest partitioned host shows (8 GPUs in 8 parts each)."""

NOT_AVAILABLE = "N/A"

_UNKNOWN = {NOT_AVAILABLE, "XXXX", "UNKNOWN"}
_WHOLE_NUMBER = re.compile(r"[0-9]{1,20}|N/A")
_UNSET = 2**32 - 1
"""Numbers from here on were never written by the driver."""
_SAME_CPU_WEIGHT = 40
"""The driver's weight of a PCIe path through one CPU: 20 from each GPU. Every greater one crosses NUMA nodes."""
_TRUTH = re.compile(r"T|F|N/A")
CELLS = {
    "access": re.compile(r"ENABLED|DISABLED|True|False|N/A"),
    "weight": _WHOLE_NUMBER,
    "hops": _WHOLE_NUMBER,
    "link_type": re.compile(r"XGMI|PCIE|XXXX|UNKNOWN|N/A"),
    "numa_bw": re.compile(r"[0-9]{1,9}-[0-9]{1,9}|N/A"),
    "coherency": re.compile(r"C|NC|N/A"),
    "atomics": re.compile(r"64,32|64|32|N/A"),
    "dma": _TRUTH,
    "bidirectional": _TRUTH,
}
"""Cells of each table, beside its diagonal. The keys are those of `Topology.facts`."""

_OWN_CELL = re.compile(r"SELF|0|N/A|ENABLED|DISABLED|True|False")
_MUST_AGREE = {"weight", "hops", "link_type"}
_NULL_IF_UNAVAILABLE = {"weight", "hops", "link_type", "numa_bw"}
_ELISION = re.compile(r"[\[(<]?(?:\.{2,}|…|⋮)[\])>]?|\[(?:output|truncated).*", re.IGNORECASE)
_ERROR_CELL = re.compile(r"AMDSMI_STATUS_\w+[^\n]*?(?=AMDSMI_STATUS_|[0-9]+-[0-9]+\s|N/A|$)")
"""`amd-smi` prints the error in the cell of a bandwidth that it cannot read."""

Cell = str | int | None


@dataclass
class Table:
    """One table: cells as printed, by row and column; `places` says where each row stands, for messages."""

    key: str
    title: str
    axis: tuple[str, ...] = ()
    cells: list[tuple[str, ...]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)


def fail(place: str, message: str) -> NoReturn:
    """Raise the TopologyError of a place (`file:line`, or a file and a JSON path)."""
    raise TopologyError(f"{place}: {message}")


def find_tables(
    lines: Sequence[str], file: str, title_of: Callable[[str], tuple[str, str] | None], label: re.Pattern[str]
) -> tuple[list[Table], list[str]]:
    """Return all tables in the lines of a pasted text (`paste.plain_lines`), and warnings.

    `title_of` gives key (a row of `CELLS`, or another one for a section without a table) and title of a line, None for
    a line that is no title; `label` matches the name of a row or column.

    Raises:
        TopologyError: A table is cut short, has lost cells, or has more than MAX_GPUS rows; names the line.
    """
    reader = LineReader(lines, file)
    tables: list[Table] = []
    keys: set[str] = set()
    table, start = Table("", ""), 0
    for index, line in enumerate(lines):
        title = title_of(line)
        if title is None:
            if table.key in CELLS:
                _take(reader, index, table, label)
            continue
        tables += _closed(reader, start, table)
        if title[0] in keys and title[0] in CELLS:
            reader.warn(index, "a second listing starts here; it was not read")
            break
        keys.add(title[0])
        table, start = Table(*title), index
    else:
        tables += _closed(reader, start, table)
    for table in tables[1:]:
        if table.axis != tables[0].axis:
            fail(table.places[0], f"{table.title} names other GPUs than {tables[0].title}; give the output of one run")
    return tables, reader.warnings


def _take(reader: LineReader, index: int, table: Table, label: re.Pattern[str]) -> None:
    """Take the header or a row; messages of the tool are passed over."""
    line = reader.lines[index].strip()
    if table.key == "numa_bw" and "AMDSMI_STATUS_" in line:
        line = _ERROR_CELL.sub(f" {NOT_AVAILABLE} ", line)
    tokens = line.split()
    are_labels = [label.fullmatch(token) is not None for token in tokens]
    count = len(table.axis)
    if not tokens or (count and len(table.cells) == count):
        return
    if not count:
        if all(are_labels):
            table.axis = tuple(tokens)
            if len(tokens) > MAX_GPUS:
                reader.fail(index, f"{len(tokens)} GPUs; a host has at most {MAX_GPUS}")
        elif are_labels[0] and not are_labels[-1]:
            reader.fail(index, f"{table.title}: a row without a header above it; give the whole output of the tool")
    elif are_labels[0]:
        expected = table.axis[len(table.cells)]
        if tokens[0] != expected:
            words = f"row {tokens[0]} where the header has {expected}"
            reader.fail(index, f"{table.title}: {words}; give the whole output")
        if len(tokens) - 1 != count:
            words = f"row {tokens[0]} has {len(tokens) - 1} cells, the header {count} columns"
            reader.fail(index, f"{table.title}: {words}; give the whole output of the tool")
        table.cells.append(tuple(tokens[1:]))
        table.places.append(f"{reader.file}:{index + 1}")
    elif _ELISION.fullmatch(line):
        reader.fail(index, f"rows were left out ({line[:20]!r}); give the whole output of the tool")


def _closed(reader: LineReader, start: int, table: Table) -> list[Table]:
    if not table.axis:
        if table.key in CELLS:
            reader.warn(start, f"no table under {table.title!r}")
        return []
    if missing := table.axis[len(table.cells) :]:
        place = table.places[-1] if table.places else f"{reader.file}:{start + 1}"
        fail(place, f"{table.title}: no row for {group_words(missing)}; give the whole output of the tool")
    return [table]


def _pair_cells(table: Table, gpus: Sequence[str], warnings: list[str], hint: str) -> dict[PairKey, Cell]:
    """Return the cells by pair of GPUs: numbers where the table has numbers, else as printed; None is unknown.

    `hint` is the remedy for a cell that cannot stand in this table.
    """
    pattern = CELLS[table.key]
    for i, row in enumerate(table.cells):
        for j, cell in enumerate(row):
            if not (_OWN_CELL if i == j else pattern).fullmatch(cell):
                other = [key for key, cells in CELLS.items() if i != j and cells.fullmatch(cell)]
                known = f"; that is a cell of {other[0]!r}" if other else ""
                fail(table.places[i], f"{table.title}: {gpus[i]}-{gpus[j]} is {cell[:40]!r}{known}; {hint}")
    by_pair: dict[PairKey, Cell] = {}
    differ: list[str] = []
    for i, j in combinations(range(len(gpus)), 2):
        forward, back = table.cells[i][j], table.cells[j][i]
        text: str | None = forward
        if forward != back:
            differ.append(f"{gpus[i]}-{gpus[j]}")
            text = back if forward in _UNKNOWN else forward if back in _UNKNOWN else None
            if text is None and table.key in _MUST_AGREE:
                both = f"{gpus[i]}-{gpus[j]} is {forward!r}, {gpus[j]}-{gpus[i]} is {back!r}"
                fail(table.places[j], f"{table.title}: not symmetric: {both}; give the whole output of the tool")
        is_number = pattern is _WHOLE_NUMBER and text not in (None, NOT_AVAILABLE)
        if (text == NOT_AVAILABLE and table.key in _NULL_IF_UNAVAILABLE) or (is_number and int(text or 0) >= _UNSET):
            text = None
        by_pair[gpus[i], gpus[j]] = int(text) if text is not None and is_number else text
    if differ:
        warnings.append(f"{table.title}: the two cells of {group_words(differ)} differ")
    return by_pair


def host_of_tables(
    name: str,
    source: str,
    gpus: Sequence[Device],
    tables: Sequence[Table],
    notes: tuple[Mapping[str, Any], Sequence[str], str],
    *,
    xgmi_only: bool = False,
) -> Topology:
    """Return the host that the tables describe.

    The first GPUs are those of the axis, which all tables have. `notes` are more facts, warnings so far, and the remedy
    for a cell that cannot stand in its table. `xgmi_only`: the bandwidth table has no figures of PCIe pairs, so that it
    names the xGMI links by itself.

    Raises:
        TopologyError: A cell that cannot stand in its table, or two cells of a pair that contradict each other.
    """
    facts, warnings, hint = dict(notes[0]), list(notes[1]), notes[2]
    base = PurePath(name).name
    uneven: list[str] = []
    cells = {
        table.key: _pair_cells(table, [gpu.id for gpu in gpus][: len(table.axis)], uneven, hint) for table in tables
    }
    for key, values in cells.items():
        if key != "link_type":
            facts[key] = {f"{a}-{b}": cell for (a, b), cell in values.items()}
    codes = {pair: str(code) if code is not None else None for pair, code in cells.get("link_type", {}).items()}
    weights = {pair: weight if isinstance(weight, int) else None for pair, weight in cells.get("weight", {}).items()}
    bandwidths = {pair: _range(cell) for pair, cell in cells.get("numa_bw", {}).items()}
    xgmi = [pair for pair, code in codes.items() if code == "XGMI"]
    if xgmi_only and not codes:
        xgmi = [pair for pair, bandwidth in bandwidths.items() if bandwidth and bandwidth[1]]
    fabric = xgmi_links(*joined_by_tables(xgmi, weights, bandwidths))
    warnings += [f"{base}: {text}" for text in (*uneven, *fabric.warnings)]
    return host_of_pairs(base, source, gpus, (codes, weights), fabric, (facts, warnings))


def host_of_pairs(
    base: str,
    source: str,
    gpus: Sequence[Device],
    pairs: tuple[Mapping[PairKey, str | None], Mapping[PairKey, int | None]],
    fabric: GpuFabric,
    notes: tuple[Mapping[str, Any], Sequence[str]],
) -> Topology:
    """Return the host of GPUs with codes and weights by pair, and their xGMI links.

    A pair that is in the codes is one that the source speaks of. `notes` are facts and warnings.
    """
    codes, weights = pairs
    levels = {
        pair: "NODE" if weight <= _SAME_CPU_WEIGHT else "SYS"
        for pair, code in codes.items()
        if code == "PCIE" and (weight := weights.get(pair))
    }
    tree = host_tree(gpus, levels) if "PCIE" in codes.values() else HostTree(tuple(gpus), (), ())
    listed = []
    for pair in combinations([gpu.id for gpu in gpus], 2):
        if pair in codes:
            plain = coded_pair(pair, levels.get(pair))._replace(code=codes[pair])
            listed.append(fabric.pairs.get(pair, plain))
    return Topology(
        name=PurePath(base).stem,
        source=source,
        devices=tree.devices,
        links=(*fabric.links, *tree.links),
        pairs=tuple(listed),
        warnings=(*notes[1], *(f"{base}: {text}" for text in tree.warnings)),
        facts=notes[0],
    )


def _range(cell: Cell) -> tuple[int, int] | None:
    """Return the two figures of `50000-100000`, in MB/s."""
    if not isinstance(cell, str):
        return None
    least, _, most = cell.partition("-")
    return int(least), int(most)
