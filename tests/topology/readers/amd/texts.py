"""Invented machines in the formats of AMD's tools: square tables, as lines of text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

Cell = Callable[[int, int], str]


def bus(i: int) -> str:
    return f"{i // 14:04x}:{0x0B + 0x11 * (i % 14):02x}:00.0"


def square(labels: Sequence[str], cell: Cell, own: str, gap: str = "") -> str:
    """One table: header and rows, cells 13 wide, with the gap behind a cell even if it is wider."""
    width = 13 - len(gap)
    lines = [" " * 13 + "".join(label.ljust(13) for label in labels)]
    for i, label in enumerate(labels):
        cells = [own if i == j else cell(i, j) for j in range(len(labels))]
        lines.append(label.ljust(13) + "".join(text.ljust(width) + gap for text in cells))
    return "\n".join(lines) + "\n"


def amd_tables(count: int, tables: dict[str, tuple[Cell, str]], legend: bool = False) -> str:
    """`amd-smi topology`: each title with its cells and the cell of a GPU itself."""
    text = "\n".join(
        f"{title} TABLE:\n{square([bus(i) for i in range(count)], cell, own)}" for title, (cell, own) in tables.items()
    )
    return text + ("\n\nLegend:\n  SELF = Current GPU\n  64,32 = 64 bit and 32 bit atomic support\n" if legend else "")


def rocm_tables(count: int, tables: dict[str, Cell], numa: Sequence[tuple[int, int]] = (), wide: int = 90) -> str:
    """`rocm-smi --showtopo` of ROCm 6, also with fewer sections."""
    text = "ROCm System Management Interface".center(wide, "=").replace("=R", "= R", 1) + "\n"
    for title, cell in tables.items():
        labels = [f"GPU{i}" for i in range(count)]
        text += f" {title} ".center(wide, "=") + "\n" + square(labels, cell, "0", " ") + "\n"
    if numa:
        text += " Numa Nodes ".center(wide, "=") + "\n"
        for i, (node, affinity) in enumerate(numa):
            text += f"GPU[{i}]\t\t: (Topology) Numa Node: {node}\n"
            text += f"GPU[{i}]\t\t: (Topology) Numa Affinity: {affinity}\n"
    return text + " End of ROCm SMI Log ".center(wide, "=") + "\n"


def rocm_numa_old(numa: Sequence[tuple[int, int]]) -> str:
    """The NUMA section of ROCm 5."""
    lines = ["=" * 34 + " Numa Nodes " + "=" * 34]
    for i, (node, affinity) in enumerate(numa):
        lines += [f"GPU {i}          : (Topology) Numa Node: {node}"]
        lines += [f"GPU {i}          : (Topology) Numa Affinity: {affinity}"]
    return "\n".join(lines) + "\n"


def xgmi_table(count: int, rate: str, most: str, kind: str, cell: Cell, *, by_bus_id: bool = True) -> str:
    """The link metric table, up to ROCm 6.3 with bus ids above the columns, then with GPU numbers."""
    labels = [bus(i) if by_bus_id else f"GPU{i}" for i in range(count)]
    lines = ["LINK METRIC TABLE:", "       bdf          bit_rate max_bandwidth link_type " + " ".join(labels)]
    for i in range(count):
        lines.append(f"GPU{i}".ljust(7) + bus(i).ljust(13) + rate.ljust(9) + most.ljust(14) + kind)
        cells = "".join(("N/A" if i == j else cell(i, j)).ljust(13) for j in range(count))
        lines += [" Read".ljust(53) + cells, " Write".ljust(53) + cells]
    return "\n".join(lines) + "\n"


def status_table(count: int, cell: Cell) -> str:
    """The link status table of ROCm 6.4 and later."""
    lines = ["XGMI LINK STATUS:", "       bdf           " + "".join(f"GPU{i}".ljust(14) for i in range(count))]
    for i in range(count):
        cells = "".join(("SELF" if i == j else cell(i, j)).ljust(14) for j in range(count))
        lines.append(f"GPU{i}\t{bus(i)}   {cells}")
    return "\n".join(lines) + "\n"


def json_links(count: int, keys: dict[str, Callable[[int, int], object]]) -> str:
    """`amd-smi topology --json` since ROCm 6.3."""

    def end(i: int, j: int) -> dict[str, object]:
        return {"gpu": j, "bdf": bus(j), **{key: cell(i, j) for key, cell in keys.items()}}

    items = [{"gpu": i, "bdf": bus(i), "links": [end(i, j) for j in range(count)]} for i in range(count)]
    return json.dumps(items, indent=4)


def json_maps(count: int, keys: dict[str, Callable[[int, int], object]]) -> str:
    """The same before ROCm 6.3."""
    items = [
        {"gpu": i, **{key: {f"gpu_{j}": cell(i, j) for j in range(count)} for key, cell in keys.items()}}
        for i in range(count)
    ]
    return json.dumps(items, indent=4)


def codes_of(topology) -> dict[str, str | None]:
    return {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs}


def all_pairs(count: int, value: object) -> dict[str, object]:
    return {f"GPU{i}-GPU{j}": value for i in range(count) for j in range(i + 1, count)}
