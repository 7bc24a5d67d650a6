"""Checks of NICs: distance to GPUs, sharing, and NUMA nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from topocomm.doctor.checks.host_views import Host, hosts_of
from topocomm.doctor.checks.pcie_checks import family
from topocomm.doctor.finding import Finding, Level
from topocomm.topology.draw.names import plural, ranges, some
from topocomm.topology.inference.host_tree import LEVELS, NODE
from topocomm.topology.inference.pci_tree import natural
from topocomm.topology.model import Device, Topology

PAIRS, PLACE = "GPU-NIC pairs", "NIC NUMA nodes"
SHARED_REMEDY = (
    "move a card, or see the BIOS or the switch's firmware (compare with another host of the same model); until then "
    "pair by hand"
)
PLACE_REMEDY = (
    "move NICs to slots of the other socket; until then bind the ranks of those GPUs to NICs by rate, not by distance, "
    "and expect the way between sockets"
)
WRONG_REMEDY = "see numa_node in /sys/bus/pci/devices/BUS: BIOS or hypervisor give it; NCCL_TOPO_FILE corrects it"

Nearest = Mapping[str, tuple[str, ...]]
_NUMBERED = re.compile(r"[A-Za-z]\w*?\d{1,6}")
"""Pattern of NIC names with a number that scripts use, such as mlx5_3; a bus id is none."""


def nearest(host: Host) -> dict[str, tuple[str, ...]]:
    """Return the nearest NICs of each GPU, by id, by the source's codes; GPUs without a code to a NIC are absent."""
    near: dict[str, tuple[str, ...]] = {}
    for gpu in host.gpus:
        far = {nic.id: LEVELS[code] for nic in host.nics if (code := host.codes.get((gpu.id, nic.id), "")) in LEVELS}
        least = min(far.values(), default=None)
        if least is not None:
            near[gpu.id] = tuple(nic for nic, level in far.items() if level == least)
    return near


def check_pairs(topology: Topology) -> list[Finding]:
    """Find NICs that several GPUs share while another idles, and numbers that do not pair neighbours."""
    findings: list[Finding] = []
    for host in hosts_of(topology):
        near = nearest(host)
        used = {nic for nics in near.values() for nic in nics}
        text = f"{plural(len(near), 'GPU')} near {plural(len(used), 'NIC')}, used evenly"
        if near:
            findings += _shared(host, near) or _crossed(host, near) or [host.finding("ok", PAIRS, text)]
    return findings


def check_nic_places(topology: Topology) -> list[Finding]:
    """Find NICs on another NUMA node than the GPUs beside them, and GPUs whose NUMA node has no NIC."""
    findings: list[Finding] = []
    for host in hosts_of(topology):
        nodes = {gpu.numa for gpu in host.gpus if isinstance(gpu.numa, int)}
        placed = [nic for nic in host.nics if isinstance(nic.numa, int)]
        text = f"{plural(len(placed), 'NIC')} on NUMA nodes {_numbers(placed)}"
        if len(nodes) > 1 and placed:
            findings += _contradicted(host) or _uneven(host, nodes, placed) or [host.finding("ok", PLACE, text)]
    return findings


def paired(host: Host, near: Nearest) -> dict[str, str]:
    """Assign each GPU one of its nearest NICs, preferring its own number, and no NIC twice while one is free.

    Distances nest, so GPUs with fewer choices choose first and no choice is taken back.
    """
    taken: dict[str, int] = {}
    own = dict(zip((gpu.id for gpu in host.gpus), (nic.id for nic in _by_number(host)), strict=False))
    chosen: dict[str, str] = {}
    for gpu in sorted(near, key=lambda name: len(near[name])):
        nic = min(near[gpu], key=lambda name: (taken.get(name, 0), name != own.get(gpu)))
        taken[nic] = taken.get(nic, 0) + 1
        chosen[gpu] = nic
    return {gpu.id: chosen[gpu.id] for gpu in host.gpus if gpu.id in chosen}


def _shared(host: Host, near: Nearest) -> list[Finding]:
    """Find a NIC that more than its share of GPUs are nearest to, while another of its kind serves none."""
    users: dict[str, list[str]] = {}
    for gpu, nearby in paired(host, near).items():
        users.setdefault(nearby, []).append(gpu)
    used = {name for names in near.values() for name in names}
    findings = []
    for nic in host.nics:
        gpus = users.get(nic.id, [])
        alike = [other for other in host.nics if family(other, host) == family(nic, host)]
        idle = [_name(other, host) for other in alike if other.id not in used]
        share = -(-len(near) // len(alike))  # rounded up
        if not idle or len(gpus) <= share:
            continue
        names = ranges(host.local(gpu) for gpu in gpus)
        text = f"{_name(nic, host)} is the nearest of {names}, while {some(idle)} is the nearest of no GPU"
        # With fewer NICs than GPUs, an idle one may serve storage or management.
        level: Level = "warn" if len(alike) >= len(near) else "info"
        findings.append(host.finding(level, PAIRS, text, SHARED_REMEDY))
    return findings


def _crossed(host: Host, near: Nearest) -> list[Finding]:
    """Find GPUs whose near NIC has another number, if every GPU has one of its own."""
    nics = _by_number(host)
    best = paired(host, near)
    numbered = all(_NUMBERED.fullmatch(host.local(nic.id)) for nic in nics)
    if not numbered or len(nics) != len(host.gpus) or len(set(best.values())) != len(host.gpus):
        return []
    by_id = {nic.id: nic for nic in nics}
    words = [
        f"{host.local(gpu.id)}'s nearest is {_name(by_id[best[gpu.id]], host)}, not {_name(nic, host)}"
        for gpu, nic in zip(host.gpus, nics, strict=True)
        if nic.id not in near[gpu.id]
    ]
    if not words:
        return []
    text = f"pairing by number crosses the machine: {some(words)}"
    pairs = ", ".join(f"{host.local(gpu)} {_name(by_id[nic], host)}" for gpu, nic in best.items())
    remedy = f"pair by distance: {pairs} (NCCL does; give UCX_NET_DEVICES or VLLM_GPU_NIC_PCIE_MAPPING by this list)"
    return [host.finding("warn", PAIRS, text, remedy)]


def _contradicted(host: Host) -> list[Finding]:
    """Find NICs whose code puts them on a GPU's NUMA node and whose number does not."""
    wrong = []
    for nic in host.nics:
        beside = [
            gpu
            for gpu in host.gpus
            if LEVELS.get(host.codes.get((gpu.id, nic.id), ""), NODE + 1) < NODE and isinstance(gpu.numa, int)
        ]
        numbers = {gpu.numa for gpu in beside}
        if isinstance(nic.numa, int) and numbers and nic.numa not in numbers:
            names = ranges(host.local(gpu.id) for gpu in beside)
            wrong.append(f"{_name(nic, host)} is on node {nic.numa}, and {names} beside it on {_numbers(beside)}")
    return [host.finding("warn", PLACE, some(wrong), WRONG_REMEDY)] if wrong else []


def _uneven(host: Host, nodes: set[int], placed: list[Device]) -> list[Finding]:
    """Find NUMA nodes with GPUs and no NIC, if there are enough cards for each node."""
    empty = sorted(nodes - {nic.numa for nic in placed if isinstance(nic.numa, int)})
    cards = {(nic.bus_id or nic.id).partition(".")[0] for nic in placed}  # ports of a card differ in the function only
    if not empty or len(cards) < len(nodes) or len(placed) < len(host.nics):
        return []
    gpus = [gpu for gpu in host.gpus if gpu.numa in empty]
    names = ranges(host.local(gpu.id) for gpu in gpus)
    text = f"{names} (NUMA node {_numbers(gpus)}) has no NIC on its node: all {len(placed)} are on {_numbers(placed)}"
    return [host.finding("warn", PLACE, text, PLACE_REMEDY)]


def _by_number(host: Host) -> list[Device]:
    """Sort NICs by number, as scripts count them; old drivers list them in bus order."""
    return sorted(host.nics, key=lambda nic: natural(host.local(nic.id)))


def _name(nic: Device, host: Host) -> str:
    return nic.name or host.local(nic.id)


def _numbers(devices: list[Device]) -> str:
    return ", ".join(str(number) for number in sorted({d.numa for d in devices if isinstance(d.numa, int)}))
