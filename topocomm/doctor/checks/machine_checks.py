"""All checks of a machine by its topology alone."""

from __future__ import annotations

from collections.abc import Callable

from topocomm.doctor.checks.fabric_checks import check_channels, check_fabric
from topocomm.doctor.checks.gpu_checks import check_hidden_gpus, check_p2p
from topocomm.doctor.checks.job_checks import check_hosts, check_rank_order
from topocomm.doctor.checks.nic_checks import check_nic_places, check_pairs
from topocomm.doctor.checks.pcie_checks import check_flat_tree, check_pcie
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


def check_parts(topology: Topology) -> list[Finding]:
    """Run every check of `CHECKS` on a topology; equal findings of several hosts are one, at the place of the first."""
    findings = [finding for check in CHECKS for finding in check(topology)]
    hosts = set(topology.hosts)
    if len(hosts) < 2:
        return findings
    holders: dict[Finding, list[str]] = {}
    for finding in findings:
        host, mark, text = finding.text.partition(": ")
        own = bool(mark) and host in hosts
        holders.setdefault(finding._replace(text=text) if own else finding, []).extend([host] * own)
    merged = []
    for finding, owners in holders.items():
        who = f"all {len(hosts)} hosts" if len(owners) == len(hosts) else ranges(owners)
        merged.append(finding._replace(text=f"{who}: {finding.text}") if owners else finding)
    return merged
