"""The checks of a machine in order. They use the topology alone, of this machine or of a dump."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topocomm.doctor.checks.fabric_checks import check_channels, check_fabric
from topocomm.doctor.checks.gpu_checks import check_hidden_gpus, check_p2p, check_pci_gpus
from topocomm.doctor.checks.job_checks import check_hosts, check_rank_order
from topocomm.doctor.checks.nic_checks import check_nic_places, check_pairs
from topocomm.doctor.checks.pcie_checks import check_flat_tree, check_pcie, check_slots
from topocomm.doctor.checks.system_checks import check_topology
from topocomm.doctor.finding import Finding
from topocomm.topology.draw.names import ranges
from topocomm.topology.model import Topology

CHECKS: tuple[Callable[[Topology], list[Finding]], ...] = (
    check_hidden_gpus,
    check_fabric,
    check_p2p,
    check_pcie,
    check_flat_tree,
    check_pairs,
    check_nic_places,
    check_channels,
    check_hosts,
    check_rank_order,
)


def check_machine(topology: Topology) -> list[Finding]:
    """Check a given topology: a dump, a catalogue system, or a whole job."""
    return [*check_topology(topology), *check_parts(topology)]


def check_parts(topology: Topology) -> list[Finding]:
    """Run every check of `CHECKS` on a topology."""
    findings = [finding for check in CHECKS for finding in check(topology)]
    return findings if len(topology.hosts) < 2 else _folded(findings, topology.hosts)


def _folded(findings: Sequence[Finding], hosts: Sequence[str]) -> list[Finding]:
    """Merge equal findings of several hosts at the place of the first."""
    names = set(hosts)
    holders: dict[Finding, list[str]] = {}
    for finding in findings:
        host, mark, text = finding.text.partition(": ")
        own = bool(mark) and host in names
        holders.setdefault(finding._replace(text=text) if own else finding, []).extend([host] * own)
    return [
        finding._replace(text=f"{_named(owners, hosts)}: {finding.text}") if owners else finding
        for finding, owners in holders.items()
    ]


def _named(owners: Sequence[str], hosts: Sequence[str]) -> str:
    return f"all {len(hosts)} hosts" if len(owners) == len(hosts) else ranges(owners)


def check_here(topology: Topology) -> list[Finding]:
    """Check this machine's own files beyond its topology."""
    return [*check_pci_gpus(topology), *check_slots(topology)]
