"""Logs of NCCL and RCCL (NCCL_DEBUG=INFO or TRACE), of one or many ranks, interleaved or not.

GPU names follow the rank: GPU3 is the GPU of rank 3, on any host. Rings, trees and the system tree
(`GPU/0-26000 (0)`) have ranks; `[1]` before `NCCL INFO` is the CUDA device of one process, and the number in
`Setting affinity for GPU 2` a device of the driver, so both may differ from the rank and name no GPU here. Lines that
name bus ids are joined with ranks by them. NET/0-a becomes NET10: these numbers are hexadecimal.

A log with INIT lines alone gives ranks, rings and trees; with GRAPH also the machine. Where a log holds several
communicators, the one with the most ranks is read.

Facts, as far as the log has them: `library`, `ranks`, `nodes`, `rank_busid` {rank: bus id as printed}, `nchannels`,
`rings`, `trees` (see `nccl_log_channels`), `graphs` (as `nccl_graph_xml`, by rank), `numa_nodes`, `max_bw`, `total_bw`,
and in GB/s as NCCL reckons them `pattern_bw` (per channel of the ring), `pci_bw`, `sys_bw`, `nvlink_bw`, `xgmi_bw` (one
number, or by device where they differ) and `path_bw` by pair; `p2p`, `transport`, `transports`, `nvls`,
`gpu_affinity_mask`.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from topocomm.errors import TopologyError
from topocomm.topology.inference.pci_tree import address
from topocomm.topology.links import both_ways
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, Link, RankPlace, Topology
from topocomm.topology.readers.nccl.log import nccl_log_facts as facts_of
from topocomm.topology.readers.nccl.log.nccl_log_channels import Channels
from topocomm.topology.readers.nccl.log.nccl_log_comms import communicator
from topocomm.topology.readers.nccl.log.nccl_log_fabric import MAX_PAIRED, Fabric
from topocomm.topology.readers.nccl.log.nccl_log_lines import matches, parts
from topocomm.topology.readers.nccl.log.nccl_log_machines import machines

__all__ = ["matches", "read"]

SOURCE = "NCCL_DEBUG log"

MAX_DEVICES = 1024
"""Ranks, GPUs or network devices in one log."""

_MAX_WARNINGS = 40
_AT_LINE = re.compile(r"line (\d+): ")
_REMEDY = "log with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH and give the whole log"


def read(text: str, name: str) -> Topology:
    """Return the machines and the ranks of a log."""
    return _Reader(text, name).topology()


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.file = PurePath(name).name
        self.messages: dict[str, None] = {}
        self.parts = parts(text)
        torn = next((a.line for a, b in pairwise(self.parts) if a.line == b.line and a.thread and b.thread), None)
        if torn is not None:
            self.warn(f"line {torn}: several writers cut each other's lines here and below; what is cut is not used")
        self.comm = communicator(self.parts)
        if (self.comm.ranks or 0) > MAX_DEVICES:
            raise TopologyError(f"{name}: {self.comm.ranks} ranks; more than {MAX_DEVICES} are not read")
        self.bus_ids = facts_of.bus_ids(self.comm, self.warn)
        self.channels = Channels(self.comm, self.warn)
        self.hosts = machines(self.comm, self.bus_ids, self.warn)
        if self.comm.others:
            words = f"{self.comm.others + 1} communicators in this log"
            self.warn(f"{words}; the one with {self.comm.ranks} ranks was read")
        if self.comm.mixed:
            self.warn("several communicators that nothing tells apart; which rank is which GPU is not certain")
        self._place_rest()
        self.fabrics = self._fabrics()

    def warn(self, message: str) -> None:
        line = _AT_LINE.match(message)
        where = f"{self.file}:{line.group(1)}: {message[line.end() :]}" if line else f"{self.file}: {message}"
        self.messages[where] = None

    def topology(self) -> Topology:
        devices, links = self._devices()
        if not devices:
            raise TopologyError(f"{self.name}: nothing here names a rank or a GPU; {_REMEDY}")
        guessed = any(machine.guessed for machine in self.hosts)
        places = [RankPlace(int(d.id[3:]), d.host, d.id) for d in devices if d.kind == "gpu" and not guessed]
        facts = self._facts()
        warnings = list(self.messages)
        if len(warnings) > _MAX_WARNINGS:
            warnings[_MAX_WARNINGS:] = [f"{self.file}: {len(warnings) - _MAX_WARNINGS} more such warnings"]
        return Topology(
            name=PurePath(self.name).stem,
            source=SOURCE,
            devices=tuple(devices),
            links=tuple(links),
            pairs=tuple(pair for part in self.fabrics for pair in part.pairs),
            ranks=tuple(sorted(places)),
            warnings=tuple(warnings),
            facts=facts,
        )

    def _place_rest(self) -> None:
        """Place ranks that wrote nothing: on the one machine, or on machines without lines in this log."""
        hosts = self.hosts
        spoken = {rank for ring in self.channels.rings.values() for rank in ring} | set(self.bus_ids)
        spoken |= {rank for nodes in self.channels.trees.values() for rank in nodes}
        spoken |= set(range(self.comm.ranks or 0))
        lost = spoken - {rank for machine in hosts for rank in machine.members}
        if not lost or not hosts:
            return
        nodes = {s.nodes for s in self.comm.sessions if s.nodes is not None}
        local = any(s.local_ranks is not None and s.local_ranks != self.comm.ranks for s in self.comm.sessions)
        whole = any(machine.system is not None and machine.system.whole for machine in hosts)
        net = any(word.startswith("NET") for word in facts_of.transports(self.comm).get("transports", ()))
        if nodes == {1} or (not nodes and len(hosts) == 1 and not (local or whole or net)):
            hosts[0].members |= lost
        else:
            self.warn(f"{len(lost)} of {len(spoken)} ranks are on hosts whose lines are not in this log: no devices")

    def _fabrics(self) -> list[Fabric]:
        labels: dict[str, None] = {}
        for i, machine in enumerate(self.hosts):
            tree = machine.system
            nets = len({b.node for b in tree.branches if b.node.type == "NET"}) if tree else 0
            if max(nets, len(machine.members)) > MAX_DEVICES:
                raise TopologyError(f"{self.name}: more than {MAX_DEVICES} GPUs or network devices; this is no machine")
            if len(machine.ranks) + nets > MAX_PAIRED:
                self.warn(f"more than {MAX_PAIRED} devices on one machine: no pairs")
            label = machine.host if machine.host and machine.host not in labels else f"host{i}"
            labels[label if label not in labels else f"host{i}-{i}"] = None
        fabrics = []
        for machine, label in zip(self.hosts, labels, strict=True):
            tree = machine.system
            if tree is not None and not tree.placed:
                why = "its indentation does not say what hangs on what" if tree.whole else "lines of it are lost or cut"
                self.warn(f"line {tree.line}: no links are made from the system tree: {why}")
            host, prefix = ("host0", "") if len(self.hosts) == 1 else (label, f"{label}/")
            names = facts_of.nic_names(self.comm, machine.host)
            fabrics.append(Fabric(machine, host, prefix, names, facts_of.nvls(self.comm) is True))
        return fabrics

    def _devices(self) -> tuple[list[Device], list[Link]]:
        """Return GPUs by rank, NICs, and what joins them; a network joins the NICs of several hosts."""
        lists, _ = facts_of.affinities(self.comm)
        gpus: dict[int, Device] = {}
        for part in self.fabrics:
            local = {int(gpu.id[3:]): gpu for gpu in part.gpus}
            for rank in sorted(part.machine.members):
                bus_id = address(self.bus_ids[rank]) if rank in self.bus_ids else None
                gpu = local.get(rank, Device(f"GPU{rank}", "gpu", part.host, bus_id=bus_id))
                if rank in gpus:
                    self.warn(f"rank {rank} is on two hosts, {gpus[rank].host} and {part.host}; the first is used")
                gpus.setdefault(rank, gpu._replace(cpu_affinity=lists.get(rank)))
        nics = [nic for part in self.fabrics for nic in part.nics]
        links = [link for part in self.fabrics for link in part.links.values()]
        devices = [*(gpus[rank] for rank in sorted(gpus)), *nics, *(d for part in self.fabrics for d in part.others)]
        if len(self.hosts) > 1 and nics:
            devices.append(NETWORK)
            for part in self.fabrics:
                for nic in part.nics:
                    links += both_ways(nic.id, NETWORK.id, "network", gb_per_s=part.nic_gb_per_s.get(nic.id))
        return devices, links

    def _facts(self) -> dict[str, Any]:
        hosts, channels = self.hosts, self.channels
        nodes = {s.nodes for s in self.comm.sessions if s.nodes is not None}
        bus_ids = {
            rank: machine.system.printed.get(node, node.id) if machine.system else node.id
            for machine in hosts
            for node, rank in machine.ranks.items()
            if not machine.guessed
        } | self.bus_ids
        _, masks = facts_of.affinities(self.comm)
        stated = {
            "library": facts_of.library(self.parts),
            "ranks": channels.ranks,
            "nodes": nodes.pop() if len(nodes) == 1 else None,
            "rank_busid": {str(rank): bus_ids[rank] for rank in sorted(bus_ids)},
            "numa_nodes": sum(len(set(m.system.roots)) for m in hosts if m.system and m.system.whole),
            **facts_of.figures(hosts),
            **facts_of.hardware(self.comm, hosts, self.parts),
            "net_speed_mbps": {nic: round(rate * 8000) for f in self.fabrics for nic, rate in f.nic_gb_per_s.items()},
            "p2p": facts_of.refused(self.comm, hosts, self.bus_ids),
            "nvls": facts_of.nvls(self.comm),
            "gpu_affinity_mask": {f"GPU{rank}": masks[rank] for rank in sorted(masks)},
        }
        facts = {key: value for key, value in stated.items() if value or value is False}
        facts |= {**channels.facts(), **facts_of.transports(self.comm)}
        graphs: list[dict[str, Any]] = []
        for part in self.fabrics:
            where = {"host": part.host} if len(hosts) > 1 else {}
            graphs += [{**where, **graph} for graph in facts_of.graphs(self.comm, part.machine, self.warn)]
        rings = {graph["speedintra"] for graph in graphs if graph["pattern"] == 4}
        facts |= {"graphs": graphs} if graphs else {}
        return facts | ({"pattern_bw": rings.pop()} if len(rings) == 1 else {})
