"""Checks of GPUs: all are visible, and peers can access each other's memory."""

from __future__ import annotations

from pathlib import Path

from topocomm.doctor.checks.host_views import Host, hosts_of, number_of
from topocomm.doctor.checks.pcie_checks import NVIDIA, pci_gpus
from topocomm.doctor.finding import Finding, Level
from topocomm.topology.draw.names import plural, ranges, some
from topocomm.topology.model import Topology

SHOWN_HOLES = 16
HIDDEN_REMEDY = (
    "unset CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES; in a container: docker run --gpus all; compare `nvidia-smi -L` "
    "with `lspci | grep -i nvidia`; `dmesg | grep -i xid` names GPUs that have fallen off the bus"
)
P2P_WORDS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU or its driver does not support it",
    "TNS": "the way between them does not support it",
    "NS": "not supported",
    "DR": "switched off in the driver's registry keys",
    "U": "the driver does not know",
    "False": "not used",
}
P2P_REMEDIES = {
    "CNS": "switch off ACS and the IOMMU in the BIOS (or boot with iommu=pt); "
    "GPUs under different host bridges of some CPUs never can",
    "GNS": "GeForce cards have it off in NVIDIA's driver; plan for copies through host memory (NCCL_P2P_DISABLE=1)",
    "DR": "remove RMForceP2PType and the like from /etc/modprobe.d, and load the driver again",
}
P2P_REMEDY = (
    "move the cards under one PCIe switch or root complex, and switch ACS off in the BIOS; until then copies go "
    "through host memory"
)
CAPABILITIES = {"r": "reads", "w": "writes", "n": "NVLink", "a": "atomics", "p": "PCIe"}
"""Capabilities that `nvidia-smi topo -p2p` reports, by option letter."""


def check_hidden_gpus(topology: Topology) -> list[Finding]:
    """Find missing GPU numbers, and ranks of a log or file that differ from the GPUs' numbers."""
    findings = []
    for host in hosts_of(topology):
        names = [host.local(gpu.id) for gpu in host.gpus]
        numbers = [number for name in names if (number := number_of(name)) is not None]
        if not names or len(numbers) < len(names):
            continue
        last, present = max(numbers), set(numbers)
        missing = last + 1 - len(present)
        own = _renumbered(host)
        if missing:
            holes = [f"GPU{number}" for number in range(min(last, 4096)) if number not in present][:SHOWN_HOLES]
            count = f"{missing} GPUs " if missing > SHOWN_HOLES else ""
            text = f"{count}{ranges(holes)} not seen, though GPU{last} is: hidden, lost, or left out of the dump"
            own = [host.finding("warn", "hidden GPUs", text, HIDDEN_REMEDY), *own]
        findings += own or [host.finding("ok", "hidden GPUs", f"{ranges(names)}: no number is missing")]
    return findings


def check_pci_gpus(topology: Topology, sysfs: Path = Path("/sys")) -> list[Finding]:
    """Find GPUs on this machine's PCI bus that the driver does not list."""
    seen = list(pci_gpus(sysfs).values()).count(NVIDIA)
    driven = sum(device.kind == "gpu" for device in topology.devices)
    if not driven or seen <= driven:  # without any, the topology's own warning says what was looked at
        return []
    text = f"the PCI bus shows {plural(seen, 'NVIDIA device')}, the driver {plural(driven, 'GPU')}"
    return [Finding("warn", "hidden GPUs", text, HIDDEN_REMEDY)]


def check_p2p(topology: Topology) -> list[Finding]:
    """Find pairs of GPUs without peer access to memory, if a source reports it."""
    findings: list[Finding] = []
    for host in hosts_of(topology):
        reported = host.facts.get("p2p")
        if not isinstance(reported, dict) or not reported:
            continue
        by_word: dict[str, list[str]] = {}
        for pair, word in reported.items():
            by_word.setdefault(str(word), []).append(str(pair))
        asked = host.facts.get("capability")
        what = CAPABILITIES.get(asked, str(asked)) if isinstance(asked, str) else ""
        bad = {word: pairs for word, pairs in by_word.items() if word not in ("OK", "True")}
        for word, pairs in bad.items():
            reason = P2P_WORDS.get(word, "not OK")
            label = "" if word == "False" else f" {word},"
            text = f"{plural(len(pairs), 'pair')} without P2P{' ' * bool(what)}{what}:{label} {reason}: {some(pairs)}"
            # Many machines have no NVLink between two GPUs, or no atomics, by design.
            level: Level = "info" if asked in ("n", "a") else "warn"
            findings.append(host.finding(level, "P2P", text, P2P_REMEDIES.get(word, P2P_REMEDY)))
        if not bad:
            text = f"all {plural(len(reported), 'pair')} OK" + (f" ({what})" if what else "")
            findings.append(host.finding("ok", "P2P", text))
    return findings


def _renumbered(host: Host) -> list[Finding]:
    reported = host.facts.get("gpu_rank")
    if not isinstance(reported, dict):
        return []
    ranks = {name: rank for name, rank in reported.items() if isinstance(rank, int) and number_of(name) is not None}
    apart = [f"{name} is rank {rank}" for name, rank in ranks.items() if rank - min(ranks.values()) != number_of(name)]
    if not apart:
        return []
    text = f"ranks are not device numbers: {some(apart)}"
    remedy = "bind by PCI bus id or UUID, not by rank: CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA_VISIBLE_DEVICES=GPU-..."
    return [host.finding("warn", "hidden GPUs", text, remedy)]
