"""`nvidia-smi topo -m` (also `topo -mp` and `topo --matrix`): text in, Topology out."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import PurePath

from topocomm.topology.inference.host_tree import LEVELS, HostTree, host_tree
from topocomm.topology.inference.nvlink import nvlinks
from topocomm.topology.links import PATH_LATENCY_US
from topocomm.topology.model import Device, Pair, Topology
from topocomm.topology.readers.nvidia.affinity import CPU, NUMA, cpu_list, numa_node
from topocomm.topology.readers.nvidia.code_matrix import NOT_AVAILABLE, Matrix, Row, is_matrix, parse_matrix
from topocomm.topology.readers.nvidia.nvlink_listing import listing_kind
from topocomm.topology.readers.plain.log_prefix import MATRIX_ROW, without_prefix
from topocomm.topology.readers.plain.paste import markup_line, plain_lines

SOURCE = "nvidia-smi topo -m"


def matches(text: str) -> bool:
    """True if the text holds a matrix of GPU names, be it damaged."""
    return "GPU" in text and is_matrix(_lines(text))


def read(text: str, name: str) -> Topology:
    """The host that a matrix describes.

    NVLink codes become direct links or links into an NVSwitch, PCIe codes a tree of switches, host bridges and
    NUMA nodes. The tool names no GPU model and no PCIe generation: GB/s is None where the codes do not imply it.

    Args:
        text: What the tool printed, or a copy of it.
        name: Its file name, for messages; its stem names the topology.

    Raises:
        TopologyError: The text is cut short, damaged beyond repair or contradicts itself; names file and line.
    """
    lines = _lines(text)
    matrix = parse_matrix(lines, name)
    name = PurePath(name).name  # warnings travel with the topology: no paths of this machine in them
    warnings = list(matrix.warnings)
    if (kind := listing_kind(lines)) is not None:
        option = "-s" if kind == "status" else "-R"
        warnings.append(f"{name}: the output of `nvidia-smi nvlink {option}` in this text was not read")
    if (line := markup_line(text)) is not None:
        warnings.append(f"{name}:{line}: a copy from a web page or mail; it was read through the HTML in it")
    gpus = _gpus(matrix, name, warnings)
    nics = [Device(nic, "nic", name=_nic_name(nic, matrix)) for nic in matrix.nics]
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
        pairs=tuple(_pairs(matrix, fabric.pairs)),
        warnings=tuple(warnings),
        facts={"gpu_dev": {gpu: int(gpu[3:]) for gpu in matrix.gpus}},
    )


def _lines(text: str) -> list[str]:
    return without_prefix(plain_lines(text), MATRIX_ROW)


def _pairs(matrix: Matrix, fabric: dict[tuple[str, str], Pair]) -> list[Pair]:
    """Every GPU-GPU and GPU-NIC pair with its code as printed."""
    found = []
    for a, b in combinations((*matrix.gpus, *matrix.nics), 2):
        if a in matrix.gpus:
            code = matrix.codes.get((a, b))
            latency_us = PATH_LATENCY_US.get(code or "")
            plain = Pair(a, b, code, None, latency_us, None, "assumed" if latency_us is not None else None)
            found.append(fabric.get((a, b), plain))
    return found


def _nic_name(nic: str, matrix: Matrix) -> str | None:
    """The device's own name: from the NIC legend, or the column, which old drivers call by it."""
    return matrix.nic_names.get(nic) or (None if nic.startswith("NIC") else nic)


def _gpus(matrix: Matrix, name: str, warnings: list[str]) -> list[Device]:
    found = []
    damaged = matrix.damaged
    for gpu in matrix.gpus:
        row = matrix.rows[gpu]
        tail = _sure_cells(row, matrix)
        if unsure := [cell for column, cell in row.tail.items() if column not in tail]:
            damaged = True
            got = f"{len(row.tail)} of {matrix.tails} affinity cells; {', '.join(unsure)} may be of another column"
            warnings.append(f"{name}:{row.line + 1}: {gpu}: {got}: not used")
        cpus, numa = tail.get(CPU), tail.get(NUMA)
        device = Device(gpu, "gpu", cpu_affinity=cpu_list(cpus or ""), numa=numa_node(numa or ""))
        for text, value, column in ((cpus, device.cpu_affinity, CPU), (numa, device.numa, NUMA)):
            if value is None and text not in (None, NOT_AVAILABLE):
                damaged = True
                warnings.append(f"{name}:{row.line + 1}: {gpu}: {column} {text!r} is damaged and not used")
        found.append(device)
    return _without_odd_lists(found, name, warnings) if damaged else found


def _sure_cells(row: Row, matrix: Matrix) -> dict[str, str]:
    """The affinity cells of a row: of one with a CPU list and fewer cells than columns, those of another row, too.

    The tool leaves no cell but the CPU list blank: one is lost, or has run into its neighbour (`0-31` and `0`),
    unless no row has more.
    """
    others = [matrix.rows[gpu].tail for gpu in matrix.gpus if gpu != row.label]
    most = max((len(tail) for tail in others), default=matrix.tails)
    alike = len(row.tail) == most and any(len(tail) == most and CPU in tail for tail in others)
    if CPU not in row.tail or len(row.tail) >= matrix.tails or alike:
        return row.tail
    return {column: cell for column, cell in row.tail.items() if any(tail.get(column) == cell for tail in others)}


def _without_odd_lists(gpus: list[Device], name: str, warnings: list[str]) -> list[Device]:
    """In a damaged text, CPU lists that differ from those of most GPUs of their NUMA node are not used."""
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
