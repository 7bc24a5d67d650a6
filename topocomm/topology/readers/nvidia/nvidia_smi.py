"""`nvidia-smi topo -m` (also `topo -mp` and `topo --matrix`).

NVLink codes become direct links or links into an NVSwitch, PCIe codes a tree of switches, host bridges and NUMA nodes.
The tool names no GPU model and no PCIe generation: GB/s is None where the codes do not imply it.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import PurePath

from topocomm.topology.inference.host_tree import LEVELS, HostTree, host_tree
from topocomm.topology.inference.nvlink import nvlinks
from topocomm.topology.inference.pci_tree import coded_pair
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.nvidia.code_matrix import NOT_AVAILABLE, MatrixParser, Row
from topocomm.topology.readers.nvidia.matrix_header import (
    CPU,
    NUMA,
    cpu_list,
    find_header,
    first_row_of_a_gpu,
    numa_node,
)
from topocomm.topology.readers.nvidia.nvlink_listing import listing_kind
from topocomm.topology.readers.plain.paste import MATRIX_ROW, markup_line, plain_lines

SOURCE = "nvidia-smi topo -m"


def matches(text: str) -> bool:
    """Return whether the text holds a matrix of GPU names, be it damaged."""
    if "GPU" not in text:
        return False
    lines = plain_lines(text, MATRIX_ROW)
    return find_header(lines) is not None or first_row_of_a_gpu(lines) is not None


def read(text: str, name: str) -> Topology:
    """Return the host that a matrix describes."""
    lines = plain_lines(text, MATRIX_ROW)
    matrix = MatrixParser(lines, name)
    name = PurePath(name).name  # warnings travel with the topology: no paths of this machine in them
    warnings = list(matrix.warnings)
    if (kind := listing_kind(lines)) is not None:
        option = "-s" if kind == "status" else "-R"
        warnings.append(f"{name}: the output of `nvidia-smi nvlink {option}` in this text was not read")
    if (line := markup_line(text)) is not None:
        warnings.append(f"{name}:{line}: a copy from a web page or mail; it was read through the HTML in it")
    gpus = _gpus(matrix, name, warnings)
    # The NIC legend has the device's own name; old drivers name columns by it.
    names = [matrix.nic_names.get(nic) or (None if nic.startswith("NIC") else nic) for nic in matrix.nics]
    nics = [Device(nic, "nic", name=name) for nic, name in zip(matrix.nics, names, strict=True)]
    counts = {
        pair: int(code[2:])
        for pair, code in matrix.codes.items()
        if code.startswith("NV") and int(code[2:]) and set(pair) <= set(matrix.gpus)
    }
    fabric = nvlinks(gpus, counts)
    tree = HostTree((*gpus, *nics), (), ())
    if set(LEVELS) & set(matrix.codes.values()):
        tree = host_tree([*gpus, *nics], matrix.codes)
    warnings += [f"{name}: {text}" for text in (*tree.warnings, *fabric.warnings)]
    if "NODE" in matrix.legend and "NV#" not in matrix.legend and not counts:
        warnings.append(f"{name}: the legend has no NV#, as in `nvidia-smi topo -mp`, which does not show NVLink")
    return Topology(
        name=PurePath(name).stem,
        source=SOURCE,
        devices=(*tree.devices, *fabric.devices),
        links=(*fabric.links, *tree.links),
        pairs=tuple(
            fabric.pairs.get((a, b)) or coded_pair((a, b), matrix.codes.get((a, b)))
            for a, b in combinations((*matrix.gpus, *matrix.nics), 2)
            if a in matrix.gpus
        ),
        warnings=tuple(warnings),
        facts={"gpu_dev": {gpu: int(gpu[3:]) for gpu in matrix.gpus}},
    )


def _gpus(matrix: MatrixParser, name: str, warnings: list[str]) -> list[Device]:
    gpus = []
    damaged = matrix.damaged
    for gpu in matrix.gpus:
        row = matrix.rows[gpu]
        affinity = _sure_cells(row, matrix)
        if unsure := [cell for column, cell in row.affinity.items() if column not in affinity]:
            damaged = True
            got = f"{len(row.affinity)} of {len(matrix.header.affinity)} affinity cells"
            words = f"{got}; {', '.join(unsure)} may be of another column: not used"
            warnings.append(f"{name}:{row.line + 1}: {gpu}: {words}")
        cpus, numa = affinity.get(CPU), affinity.get(NUMA)
        device = Device(gpu, "gpu", cpu_affinity=cpu_list(cpus or ""), numa=numa_node(numa or ""))
        for text, value, column in ((cpus, device.cpu_affinity, CPU), (numa, device.numa, NUMA)):
            if value is None and text not in (None, NOT_AVAILABLE):
                damaged = True
                warnings.append(f"{name}:{row.line + 1}: {gpu}: {column} {text!r} is damaged and not used")
        gpus.append(device)
    return _without_odd_lists(gpus, name, warnings) if damaged else gpus


def _sure_cells(row: Row, matrix: MatrixParser) -> dict[str, str]:
    """Return the affinity cells of a row that are certain.

    A row with a CPU list and fewer cells than columns keeps those that another row has, too: the tool leaves no cell
    but the CPU list blank, so one is lost or has run into its neighbour (`0-31` and `0`), unless no row has more.
    """
    cells, columns = row.affinity, len(matrix.header.affinity)
    others = [matrix.rows[gpu].affinity for gpu in matrix.gpus if gpu != row.label]
    most = max(map(len, others), default=columns)
    alike = len(cells) == most and any(len(other) == most and CPU in other for other in others)
    if CPU not in cells or len(cells) >= columns or alike:
        return cells
    return {column: cell for column, cell in cells.items() if any(other.get(column) == cell for other in others)}


def _without_odd_lists(gpus: list[Device], name: str, warnings: list[str]) -> list[Device]:
    """Return the GPUs of a damaged text without CPU lists that differ from those of most GPUs of their NUMA node."""
    lists: Counter[tuple[object, str | None]] = Counter(
        (gpu.numa, gpu.cpu_affinity) for gpu in gpus if gpu.cpu_affinity and gpu.numa is not None
    )
    kept = []
    for gpu in gpus:
        others = [n for (numa, cpus), n in lists.items() if numa == gpu.numa and cpus != gpu.cpu_affinity]
        if gpu.cpu_affinity and others and lists[gpu.numa, gpu.cpu_affinity] <= max(others):
            warnings.append(f"{name}: {gpu.id}: {CPU} {gpu.cpu_affinity!r} differs within its NUMA node; not used")
            gpu = gpu._replace(cpu_affinity=None)
        kept.append(gpu)
    return kept
