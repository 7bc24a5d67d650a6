"""The Topology of a host of AMD GPUs, from what its tools print of pairs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import PurePath
from typing import Any

from topocomm.topology.inference.host_tree import HostTree, PairKey, host_tree
from topocomm.topology.inference.xgmi import XgmiLinks, joined_by_tables, xgmi_links
from topocomm.topology.links import PATH_LATENCY_US
from topocomm.topology.model import Device, Pair, Topology
from topocomm.topology.readers.amd.amd_tables import Cell, Table, pair_cells

SAME_CPU_WEIGHT = 40
"""The driver's weight of a PCIe way through one CPU: 20 from each GPU. Every greater one crosses NUMA nodes."""


def machine(
    name: str,
    source: str,
    gpus: Sequence[Device],
    tables: Sequence[Table],
    notes: tuple[Mapping[str, Any], Sequence[str], str],
    *,
    xgmi_only: bool = False,
) -> Topology:
    """The host that the tables describe.

    Args:
        name: The file's name.
        source: The tool.
        gpus: The GPUs; where there are tables, the first ones are those of their axis.
        tables: All tables, with one axis.
        notes: More facts, warnings so far, and what to do about a cell that cannot stand in its table.
        xgmi_only: The bandwidth table has no figures of PCIe pairs, so that it names the xGMI links by itself.

    Raises:
        TopologyError: A cell that cannot stand in its table, or two cells of a pair that contradict each other.
    """
    facts, warnings, hint = dict(notes[0]), list(notes[1]), notes[2]
    base = PurePath(name).name
    cells: dict[str, dict[PairKey, Cell]] = {}
    found: list[str] = []
    for table in tables:
        cells[table.key] = pair_cells(table, [gpu.id for gpu in gpus][: len(table.axis)], found, hint)
    facts |= {
        key: {f"{a}-{b}": cell for (a, b), cell in values.items()}
        for key, values in cells.items()
        if key != "link_type"
    }
    codes = {pair: str(code) if code is not None else None for pair, code in cells.get("link_type", {}).items()}
    weights = {pair: weight if isinstance(weight, int) else None for pair, weight in cells.get("weight", {}).items()}
    bandwidths = {pair: _range(cell) for pair, cell in cells.get("numa_bw", {}).items()}
    xgmi = [pair for pair, code in codes.items() if code == "XGMI"]
    if xgmi_only and not codes:
        xgmi = [pair for pair, bandwidth in bandwidths.items() if bandwidth and bandwidth[1]]
    fabric = xgmi_links(*joined_by_tables(xgmi, weights, bandwidths))
    warnings += [f"{base}: {text}" for text in (*found, *fabric.warnings)]
    return assemble(base, source, gpus, (codes, weights), fabric, (facts, warnings))


def assemble(
    base: str,
    source: str,
    gpus: Sequence[Device],
    pairs: tuple[Mapping[PairKey, str | None], Mapping[PairKey, int | None]],
    fabric: XgmiLinks,
    notes: tuple[Mapping[str, Any], Sequence[str]],
) -> Topology:
    """The Topology of GPUs with codes and weights by pair, and their xGMI links.

    Args:
        base: The file's name without folders.
        source: The tool.
        gpus: The GPUs.
        pairs: Codes and weights; a pair that is in the codes is one that the source speaks of.
        fabric: The xGMI links.
        notes: Facts and warnings.
    """
    codes, weights = pairs
    levels = {
        pair: "NODE" if weight <= SAME_CPU_WEIGHT else "SYS"
        for pair, code in codes.items()
        if code == "PCIE" and (weight := weights.get(pair))
    }
    tree = HostTree(tuple(gpus), (), ())
    if "PCIE" in codes.values():
        tree = host_tree(gpus, levels)
    found = []
    for a, b in combinations([gpu.id for gpu in gpus], 2):
        if (a, b) in codes:
            latency_us = PATH_LATENCY_US.get(levels.get((a, b), ""))
            plain = Pair(a, b, codes[a, b], None, latency_us, None, None if latency_us is None else "assumed")
            found.append(fabric.pairs.get((a, b), plain))
    return Topology(
        name=PurePath(base).stem,
        source=source,
        devices=tree.devices,
        links=(*fabric.links, *tree.links),
        pairs=tuple(found),
        warnings=(*notes[1], *(f"{base}: {text}" for text in tree.warnings)),
        facts=notes[0],
    )


def _range(cell: Cell) -> tuple[int, int] | None:
    """`50000-100000`, in MB/s."""
    if not isinstance(cell, str):
        return None
    least, _, most = cell.partition("-")
    return int(least), int(most)
