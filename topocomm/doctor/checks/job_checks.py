"""Checks of a job's hosts and ranks: hosts that differ, and rank orders with distant neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import chain, combinations, pairwise, product
from typing import NamedTuple

from topocomm.doctor.checks.host_views import Host, hosts_of
from topocomm.doctor.checks.nic_checks import nearest
from topocomm.doctor.finding import Finding
from topocomm.topology.draw.names import plural, ranges, some
from topocomm.topology.inference.pci_tree import natural
from topocomm.topology.model import RankPlace, Topology

HOSTS, ORDER, LOCAL = "hosts alike", "rank order", "local ranks"
ORDER_REMEDY = (
    "give ranks in blocks of a host: mpirun --map-by ppr:N:node --rank-by slot; `topocomm order --format rankfile` "
    "writes the best order"
)
SORTED_REMEDY = (
    "torchrun sorts host names as strings: number with leading zeros (node02, node10), or start it with --node-rank K "
    "and --rdzv-backend static; `topocomm order` prints the best order"
)
LOCAL_REMEDY = (
    "mpirun --map-by slot:OVERSUBSCRIBE --bind-to none instead of --oversubscribe; take the GPU by the rank within the "
    "host (comm.Split_type), not by a variable"
)
SHARE_REMEDY = "choose the GPU by the local rank: torch.cuda.set_device(LOCAL_RANK), or CUDA_VISIBLE_DEVICES per rank"


class Started(NamedTuple):
    """Host and local rank of one rank by its launcher."""

    host: str
    local_rank: int | None
    """Local rank in the launcher's variable; None without one."""


def check_hosts(topology: Topology) -> list[Finding]:
    """Find hosts that differ from most hosts of the job."""
    hosts = hosts_of(topology)
    if len(hosts) < 2:
        return []
    found: list[Finding] = []
    for name, trait, remedy in TRAITS:
        by_value: dict[Hashable, list[str]] = {}
        for host in hosts:
            if (value := trait(host)) is not None:
                by_value.setdefault(value, []).append(host.name)
        if len(by_value) < 2:
            continue
        groups = sorted(by_value.items(), key=lambda group: -len(group[1]))
        words = "; ".join(f"{value} on {ranges(names)}" for value, names in groups[:4])
        more = f"; and {len(groups) - 4} other kinds" if len(groups) > 4 else ""
        found.append(Finding("warn", HOSTS, f"{name} differ: {words}{more}", remedy))
    return found or [Finding("ok", HOSTS, f"{len(hosts)} hosts have the same devices and links")]


def check_rank_order(topology: Topology) -> list[Finding]:
    """Check that ranks fill hosts in blocks and in order, GPUs in order, and share no GPU while another idles.

    Without ranks the order of the hosts is checked, in which a launcher places ranks.
    """
    if not topology.ranks:
        hosts = topology.hosts
        return [f._replace(level="info") for f in order_of_hosts(hosts) if f.level == "warn"] if len(hosts) > 1 else []
    ranks = sorted(topology.ranks)
    own = [*order_of_hosts([place.host for place in ranks]), *_places(topology, ranks), *_rank_nics(topology, ranks)]
    return own or [Finding("ok", ORDER, f"{plural(len(ranks), 'rank')} in the order of hosts and devices")]


def order_of_hosts(hosts: Sequence[str]) -> list[Finding]:
    """Check the order of hosts, given the host of every rank; empty if it is fine."""
    findings = []
    first = list(dict.fromkeys(hosts))
    seen = set(hosts[:1])
    again = []
    for rank, (before, host) in enumerate(pairwise(hosts), 1):
        if host != before and host in seen:
            again.append(f"rank {rank} is on {host} again")
        seen.add(host)
    if again:
        text = f"ranks of one host are apart: {some(again)}"
        findings.append(Finding("warn", ORDER, text, ORDER_REMEDY))
    if first == sorted(first) and first != sorted(first, key=natural):
        a, b = next((a, b) for a, b in pairwise(first) if natural(a) > natural(b))
        text = f"hosts are sorted as strings: {a} comes before {b}"
        findings.append(Finding("warn", ORDER, text, SORTED_REMEDY))
    return findings


def check_local_ranks(started: Sequence[Started]) -> list[Finding]:
    """Check that the launcher's local ranks of each host rise with the ranks."""
    reported: dict[str, list[tuple[int, int]]] = {}
    for rank, one in enumerate(started):
        if one.local_rank is not None:
            reported.setdefault(one.host, []).append((one.local_rank, rank))
    findings = []
    for host, pairs in reported.items():
        odd = [f"rank {rank} has {local}" for place, (local, rank) in enumerate(pairs) if local != place]
        if odd:
            where = f"{host}: " if len(reported) > 1 else ""
            text = f"{where}local ranks are not in rank order: {some(odd)}"
            findings.append(Finding("warn", LOCAL, text, LOCAL_REMEDY))
    if reported and not findings:
        findings.append(Finding("ok", LOCAL, "in rank order on every host"))
    return findings


def _places(topology: Topology, ranks: Sequence[RankPlace]) -> list[Finding]:
    findings = []
    place = {end: index for index, end in enumerate(topology.endpoints)}
    for host in hosts_of(topology):
        gpus = {gpu.id for gpu in host.gpus}
        own = [one for one in ranks if one.device in gpus]
        if not own:
            continue
        back = [
            f"ranks {a.rank}, {b.rank} on {host.local(a.device)}, {host.local(b.device)}"
            for a, b in pairwise(own)
            if place[a.device] > place[b.device]
        ]
        if back:
            text = f"ranks are not in the order of the GPUs: {some(back)}"
            findings.append(host.finding("warn", LOCAL, text, LOCAL_REMEDY))
        users = Counter(one.device for one in own)
        crowded = [f"{host.local(gpu)} has {count} ranks" for gpu, count in users.items() if count > 1]
        if crowded and len(users) < min(len(gpus), len(own)):
            idle = ranges(host.local(gpu.id) for gpu in host.gpus if gpu.id not in users)
            text = f"{some(crowded)}, while {idle} has none"
            findings.append(host.finding("warn", LOCAL, text, SHARE_REMEDY))
    return findings


def _rank_nics(topology: Topology, ranks: Sequence[RankPlace]) -> list[Finding]:
    """Find ranks whose NIC is not among the nearest of their GPU."""
    findings = []
    for host in hosts_of(topology):
        near = nearest(host)
        by_name = {word: nic.id for nic in host.nics for word in (nic.id, host.local(nic.id), nic.name) if word}
        far = [
            f"rank {one.rank} on {host.local(one.device)} uses {one.nic}, near is {host.local(near[one.device][0])}"
            for one in ranks
            if one.device in near and one.nic in by_name and by_name[one.nic] not in near[one.device]
        ]
        if far:
            remedy = "UCX_NET_DEVICES per rank, by the pairs of the `GPU-NIC pairs` check; NCCL_IB_HCA alike everywhere"
            findings.append(host.finding("warn", ORDER, f"far NICs: {some(far)}", remedy))
    return findings


def _counted(values: Sequence[str]) -> str | None:
    """Return `8 x NV18, 2 x SYS`, equal for equal hosts; None without codes."""
    counts = Counter(values)
    return ", ".join(f"{counts[word]} x {word}" for word in sorted(counts)) or None


def _lane_counts(host: Host) -> str | None:
    own = [f"{count} links" for count in host.lanes().values()]
    return (_counted(own) or "none") if host.gpus and host.links else None


def _rates(host: Host, kind: str, ends: Sequence[str]) -> str | None:
    own = [link for link in host.links if link.kind == kind and link.src in ends]
    return _counted([f"{link.gb_per_s:g}" for link in own if link.gb_per_s is not None])


def _codes(host: Host) -> str | None:
    gpus, nics = [gpu.id for gpu in host.gpus], [nic.id for nic in host.nics]
    pairs = chain(combinations(gpus, 2), product(gpus, nics))
    return _counted([host.codes[pair] for pair in pairs if pair in host.codes])


def _near(host: Host) -> str | None:
    pairs = nearest(host).items()
    return ", ".join(f"{host.local(gpu)} {'/'.join(map(host.local, nics))}" for gpu, nics in pairs) or None


TRAITS: tuple[tuple[str, Callable[[Host], Hashable | None], str], ...] = (
    (
        "numbers of cores",
        lambda host: list(host.kinds.values()).count("cpu") or None,
        "see `lscpu`, and the cores that the job was given",
    ),
    ("numbers of GPUs", lambda host: len(host.gpus), "see `hidden GPUs`, and `nvidia-smi -L` on those hosts"),
    ("numbers of NICs", lambda host: len(host.nics), "see `ibstat` and `ip link` on those hosts"),
    ("GPU links", _lane_counts, "see `nvidia-smi nvlink -s` on those hosts, and their fabric manager"),
    (
        "rates of network ports (GB/s)",
        lambda host: _rates(host, "network", [nic.id for nic in host.nics]),
        "see `ibstat` or `ethtool` on those hosts: cable, port of the switch, width",
    ),
    (
        "rates of PCIe links (GB/s)",
        lambda host: _rates(host, "pcie", [device.id for device in (*host.gpus, *host.nics)]),
        "see `lspci -vv` on those hosts: LnkCap against LnkSta",
    ),
    ("codes of pairs", _codes, "compare `nvidia-smi topo -m` of those hosts: BIOS settings, slots, firmware"),
    ("nearest NICs", _near, "compare `nvidia-smi topo -m` of those hosts: slots, BIOS, firmware of the switches"),
)
"""(name, value of a host, remedy) of each property that hosts of one job should share."""
