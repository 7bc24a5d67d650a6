"""The matrix of `nvidia-smi topo -m`, in its layout and words, from any topology."""

from __future__ import annotations

from itertools import combinations
from textwrap import wrap

from topocomm.errors import TopologyError
from topocomm.topology.draw.device_tree import Host, derived_codes, local, split_hosts
from topocomm.topology.draw.folded_table import folded_table
from topocomm.topology.model import Topology

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
_FURTHER = {
    "SOC": "Connection traversing PCIe as well as the link between sockets (before 2017; today SYS)",
    "XGMI": "Connection traversing xGMI (as AMD's tools say)",
    "PCIE": "Connection traversing PCIe (as AMD's tools say)",
    "NVL": "Connection traversing NVLinks, their number not known",
}
"""Codes of other tools, which nvidia-smi's legend lacks."""
NOT_AVAILABLE = "N/A"


def render(topology: Topology, columns: int | None = None) -> str:
    """Return one matrix for each host, ending in a newline; with several hosts each below a line with its name.

    With `columns`, those of a terminal, matrices and legends are folded to fit; without, they are nvidia-smi's.
    Codes are those of the source. Pairs without one get the code that the links give (`nccl_paths`), or `N/A`.

    Raises:
        TopologyError: There is no GPU, so that there would be no row.
    """
    hosts = [host for host in split_hosts(topology) if any(d.kind == "gpu" for d in host.devices)]
    if not hosts:
        raise TopologyError(
            f"{topology.name}: no GPU, and nvidia-smi's matrix has GPUs and NICs only; use --format text"
        )
    matrices: dict[object, str] = {}
    texts = []
    for host in hosts:
        devices = tuple((local(d.id, host.name), d.kind, *d[3:6]) for d in host.devices)
        links = tuple((local(x.src, host.name), local(x.dst, host.name), *x[2:6]) for x in host.links)
        pairs = tuple((local(p.a, host.name), local(p.b, host.name), p.code) for p in host.pairs)
        key = devices, links, pairs  # equal for hosts whose matrices are equal
        if key not in matrices:
            matrices[key] = _matrix(host, columns)
        texts.append(f"Host {host.name}\n\n{matrices[key]}" if len(hosts) > 1 else matrices[key])
    return "\n".join(texts)


def _matrix(host: Host, columns: int | None) -> str:
    devices = [d for kind in ("gpu", "nic") for d in host.devices if d.kind == kind]
    stated = {frozenset((pair.a, pair.b)) for pair in host.pairs}
    given = {(pair.a, pair.b): pair.code for pair in host.pairs if pair.code}
    if host.links and any(frozenset((a.id, b.id)) not in stated for a, b in combinations(devices, 2)):
        derived = derived_codes(host, nics=True)
        given |= {pair: code for pair, code in derived.items() if frozenset(pair) not in stated}
    codes = {**given, **{(b, a): code for (a, b), code in given.items()}}
    names = {d.id: local(d.id, host.name) for d in devices}
    rows = [["", *names.values(), "CPU Affinity", "NUMA Affinity"]]
    for device in devices:
        cells = [" X " if other == device.id else codes.get((device.id, other), NOT_AVAILABLE) for other in names]
        affinity = ["", ""]
        if device.kind == "gpu":
            numa = f"\t{NOT_AVAILABLE}" if device.numa is None else str(device.numa)
            affinity = [device.cpu_affinity or "", numa]
        rows.append([names[device.id], *cells, *affinity])
    used = {code.rstrip("0123456789") for code in codes.values()}
    legend = _LEGEND + "".join(f"  {short:<4} = {words}\n" for short, words in _FURTHER.items() if short in used)
    renamed = [f"  {names[d.id]}: {d.name}" for d in devices if d.kind == "nic" and d.name and d.name != names[d.id]]
    if renamed:
        legend += "\n".join(["\nNIC Legend:\n", *renamed, ""])
    if columns is None:
        return "\n".join("\t".join(row) for row in rows) + "\n" + legend
    matrix = folded_table([[cell.strip() for cell in row] for row in rows], columns, gap=2)
    words = [part for line in legend.split("\n") for part in wrap(line, columns, subsequent_indent=" " * 9) or [""]]
    return "\n".join([*matrix, *words])
