"""`nvidia-smi topo -m` (also `topo -mp` and `topo --matrix`): text in, Topology out."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import PurePath

from topocomm.topology.host_tree import LEVELS, HostTree, host_tree
from topocomm.topology.links import PATH_LATENCY_US
from topocomm.topology.model import Device, Pair, Topology
from topocomm.topology.nvlink import nvlinks
from topocomm.topology.readers.affinity import CPU, NUMA, cpu_list, numa_node
from topocomm.topology.readers.code_matrix import NOT_AVAILABLE, Matrix, is_matrix, parse_matrix
from topocomm.topology.readers.paste import markup_line, plain_lines

SOURCE = "nvidia-smi topo -m"


def matches(text: str) -> bool:
    """True if the text holds a matrix of GPU names, be it damaged."""
    return "GPU" in text and is_matrix(plain_lines(text))


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
    matrix = parse_matrix(plain_lines(text), name)
    name = PurePath(name).name  # warnings travel with the topology: no paths of this machine in them
    warnings = list(matrix.warnings)
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
    )


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
        cpus, numa = row.tail.get(CPU), row.tail.get(NUMA)
        device = Device(gpu, "gpu", cpu_affinity=cpu_list(cpus or ""), numa=numa_node(numa or ""))
        for text, value, column in ((cpus, device.cpu_affinity, CPU), (numa, device.numa, NUMA)):
            if value is None and text not in (None, NOT_AVAILABLE):
                damaged = True
                warnings.append(f"{name}:{row.line + 1}: {gpu}: {column} {text!r} is damaged and not used")
        found.append(device)
    return _without_odd_lists(found, name, warnings) if damaged else found


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
