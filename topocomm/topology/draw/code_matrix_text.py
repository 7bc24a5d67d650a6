"""The matrix of `nvidia-smi topo -m`, in its layout and with its words, whatever source the topology is from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import combinations

from topocomm.errors import TopologyError
from topocomm.topology.draw.device_tree import Host, local, split_hosts
from topocomm.topology.model import Device, DeviceKind, Pair, Topology

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
"""Codes of other tools, which nvidia-smi has no line for."""
NOT_AVAILABLE = "N/A"


def render(topology: Topology) -> str:
    """One matrix for each host, ending in a newline.

    Codes are those of the source; pairs that it does not speak of get theirs from the links (`nccl_paths`), or `N/A`
    where no way joins the two. With several hosts a line with the name is above each matrix.

    Raises:
        TopologyError: There is no GPU, so that there would be no row.
    """
    hosts = [host for host in split_hosts(topology) if any(d.kind == "gpu" for d in host.devices)]
    if not hosts:
        raise TopologyError(
            f"{topology.name}: no GPU, and nvidia-smi's matrix has GPUs and NICs only; use --format text"
        )
    stated: dict[str, list[Pair]] = {host.name: [] for host in hosts}
    for pair in topology.pairs:
        home = topology.by_id[pair.a].host
        if home in stated and home == topology.by_id[pair.b].host:
            stated[home].append(pair)
    known: dict[object, str] = {}
    texts = []
    for host in hosts:
        key = _key(host, stated[host.name])
        if key not in known:
            known[key] = _matrix(host, stated[host.name])
        texts.append(f"Host {host.name}\n\n{known[key]}" if len(hosts) > 1 else known[key])
    return "\n".join(texts)


def _key(host: Host, pairs: Sequence[Pair]) -> object:
    """Equal for hosts whose matrices are."""
    devices = tuple((local(d.id, host.name), *d[1:2], *d[3:6]) for d in host.devices)
    links = tuple((local(x.src, host.name), local(x.dst, host.name), *x[2:6]) for x in host.links)
    return devices, links, tuple((local(p.a, host.name), local(p.b, host.name), p.code) for p in pairs)


def _matrix(host: Host, pairs: Sequence[Pair]) -> str:
    gpus = [d for d in host.devices if d.kind == "gpu"]
    nics = [d for d in host.devices if d.kind == "nic"]
    codes = _codes(host, pairs, [*gpus, *nics])
    names = {d.id: local(d.id, host.name) for d in (*gpus, *nics)}
    lines = ["\t".join(["", *names.values(), "CPU Affinity", "NUMA Affinity"])]
    for device in (*gpus, *nics):
        cells = [" X " if other == device.id else codes.get((device.id, other), NOT_AVAILABLE) for other in names]
        affinity = ["", ""]
        if device.kind == "gpu":
            numa = f"\t{NOT_AVAILABLE}" if device.numa is None else str(device.numa)
            affinity = [device.cpu_affinity or "", numa]
        lines.append("\t".join([names[device.id], *cells, *affinity]))
    legend = _LEGEND + "".join(
        f"  {short:<4} = {words}\n" for short, words in _FURTHER.items() if _is_used(short, codes.values())
    )
    renamed = [f"  {names[d.id]}: {d.name}" for d in nics if d.name and d.name != names[d.id]]
    if renamed:
        legend += "\n".join(["\nNIC Legend:\n", *renamed, ""])
    return "\n".join(lines) + "\n" + legend


def _is_used(short: str, codes: Iterable[str]) -> bool:
    return any(re.fullmatch(rf"{short}\d*", code) for code in codes)


def _codes(host: Host, pairs: Sequence[Pair], devices: Sequence[Device]) -> dict[tuple[str, str], str]:
    """Codes by both orders of a pair; those of pairs that the source does not speak of are derived."""
    stated = {frozenset((pair.a, pair.b)) for pair in pairs}
    codes = {(pair.a, pair.b): pair.code for pair in pairs if pair.code}
    if host.links and any(frozenset((a.id, b.id)) not in stated for a, b in combinations(devices, 2)):
        codes.update({key: code for key, code in _derived(host).items() if frozenset(key) not in stated})
    return {**codes, **{(b, a): code for (a, b), code in codes.items()}}


def _derived(host: Host) -> dict[tuple[str, str], str]:
    from topocomm.topology.inference import nccl_paths

    swapped: dict[str, DeviceKind] = {"gpu": "nic", "nic": "gpu"}
    found: dict[tuple[str, str], str] = {}
    # The second graph is the same with GPUs and NICs swapped: the codes between NICs, which NCCL does not need.
    for devices in (host.devices, [d._replace(kind=swapped.get(d.kind, d.kind)) for d in host.devices]):
        part = Topology(host.name, "", tuple(devices), host.links)
        for pair in nccl_paths.pairs(part, wording="nvidia-smi"):
            if pair.code:
                found.setdefault((pair.a, pair.b), pair.code)
    return found
