"""Bandwidths that system trees and path matrices of an NCCL log print, in GB/s as NCCL reckons them."""

from __future__ import annotations

from itertools import combinations

from topocomm.topology.readers.nccl.log.nccl_log_machines import Machine
from topocomm.topology.readers.nccl.log.nccl_log_system import Key
from topocomm.topology.readers.nccl.log.nccl_log_tree import FAST, NO_LIMIT, Tree

Figure = float | dict[str, float]
"""One number where the log has all devices and they have the same, else by device."""


def figures(hosts: list[Machine]) -> dict[str, Figure]:
    """`max_bw`, `total_bw`, `pci_bw`, `sys_bw`, `nvlink_bw` or `xgmi_bw` by GPU, and `path_bw` by pair of GPUs."""
    found: dict[str, Figure] = {}
    titles = {(m.system.max_bw, m.system.total_bw) for m in hosts if m.system}
    if len(titles) == 1:
        max_bw, total_bw = titles.pop()
        found["max_bw"] = max_bw
        if total_bw is not None:
            found["total_bw"] = total_bw
    by_device: dict[str, dict[str, float]] = {"pci_bw": {}, "sys_bw": {}, "nvlink_bw": {}, "xgmi_bw": {}}
    paths: dict[str, float] = {}
    for i, machine in enumerate(hosts):
        tree = Tree(machine.system)
        by_device["pci_bw"].update(_pci(machine, tree))
        for key, value in _links(machine, tree, f"host{i}/" if len(hosts) > 1 else ""):
            by_device[key][value[0]] = value[1]
        paths.update(_paths(machine))
    whole = all(machine.system is not None and machine.system.whole for machine in hosts)
    for key, values in by_device.items():
        if values:
            found[key] = next(iter(values.values())) if whole and len(set(values.values())) == 1 else values
    if paths:
        found["path_bw"] = paths
    return found


def _pci(machine: Machine, tree: Tree) -> dict[str, float]:
    """Between each GPU and its CPU: the least on the way up the tree, else the matrix's best cell."""
    cells: dict[Key, float] = {}
    for (a, b), path in machine.paths.items():
        if b.type == "CPU":
            cells[a] = max(cells.get(a, 0.0), path.gb_per_s)
    found = {}
    for node, rank in machine.ranks.items():
        steps = [gb_per_s for _, gb_per_s in tree.way_up(node) if gb_per_s < NO_LIMIT]
        if steps or node in cells:
            found[f"GPU{rank}"] = min(steps) if steps else cells[node]
    return found


def _links(machine: Machine, tree: Tree, prefix: str) -> list[tuple[str, tuple[str, float]]]:
    """SYS links by pair of CPUs, and the sum of each GPU's NVLinks or xGMI links."""
    found: list[tuple[str, tuple[str, float]]] = []
    sums: dict[tuple[str, int], float] = {}
    for branch in tree.branches:
        gpu = tree.board_gpu.get(branch.parent, branch.parent)
        if branch.type == "SYS":
            a, b = sorted((int(branch.parent.id, 16), int(branch.node.id, 16)))
            found.append(("sys_bw", (f"{prefix}CPU{a}-CPU{b}", branch.gb_per_s)))
        elif branch.type in FAST and gpu in machine.ranks:
            key = ("nvlink_bw" if branch.type == "NVL" else "xgmi_bw", machine.ranks[gpu])
            sums[key] = round(sums.get(key, 0.0) + branch.gb_per_s, 6)
    return found + [(key, (f"GPU{rank}", total)) for (key, rank), total in sums.items()]


def _paths(machine: Machine) -> dict[str, float]:
    """Between GPUs, where both directions say the same."""
    found = {}
    for (a, i), (b, j) in combinations(machine.ranks.items(), 2):
        said = {cell.gb_per_s for cell in (machine.paths.get((a, b)), machine.paths.get((b, a))) if cell}
        if len(said) == 1:
            found[f"GPU{i}-GPU{j}"] = said.pop()
    return found
