"""From a machine of an NCCL log to devices, links and pairs.

The figures are those that NCCL reckons with, not those of a data sheet: 12, 24, 48 GB/s for PCIe 3, 4, 5 with 16 lanes,
20 for an NVLink of A100.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from topocomm.topology.inference.host_tree import LEVELS, host_tree
from topocomm.topology.inference.nccl_paths import ADAPTER
from topocomm.topology.inference.pci_tree import address, coded_pair
from topocomm.topology.links import NVSWITCH_HOP_US, both_ways
from topocomm.topology.model import Device, DeviceKind, Link, Pair
from topocomm.topology.readers.nccl.log.nccl_log_machines import Machine
from topocomm.topology.readers.nccl.log.nccl_log_system import NO_LIMIT, Key, Tree

MAX_PAIRED = 300
"""Devices of one machine up to which every pair is worked out."""

_MAX_DERIVED = 64
"""GPUs of one machine up to which a tree is made of the codes of pairs."""

_KINDS = {"NVL": "nvlink", "C2C": "nvlink", "XGMI": "xgmi", "SYS": "smp"}
_SHAPES: dict[str, tuple[str, DeviceKind, str]] = {
    "PCI": ("pcie", "switch", "PCIe switch"),
    "NVS": ("nvswitch", "switch", "NVSwitch"),
    "NIC": ("card", "switch", "network card with several devices"),
    "DEV": ("board", "switch", "board with several GPUs"),
    "CPU": ("numa", "numa", ""),
}


def numa_of(machine: Machine, node: Key) -> int | None:
    """Return the NUMA node that a device was printed under; NCCL writes ffffffffffffffff for 'not known'."""
    root = machine.system.root_of.get(node) if machine.system else None
    number = int(root.id, 16) if root else -1
    return number if 0 <= number < 2**31 else None


class Fabric:
    """One machine: GPUs by rank, NICs, the devices between them, links and pairs.

    The prefix goes before ids of all devices but GPUs, which ranks number throughout the job. Names of network devices
    are by number, as the log lists them; `nvls` says whether NVSwitches multicast.
    """

    def __init__(self, machine: Machine, host: str, prefix: str, nic_names: dict[int, str], nvls: bool) -> None:
        self.machine, self.host, self.prefix = machine, host, prefix
        self.nic_names, self.nvls = nic_names, nvls
        self.tree = Tree(machine.system)
        nets = {node for pair in machine.paths for node in pair if node.type == "NET"}
        if machine.system:
            nets |= {branch.node for branch in machine.system.branches if branch.node.type == "NET"}
        self.nets = sorted(nets, key=lambda node: (node.system, int(node.id, 16)))
        self.ids = {node: f"GPU{rank}" for node, rank in machine.ranks.items()}
        several = len({net.system for net in self.nets}) > 1
        for net in self.nets:
            self.ids[net] = f"{prefix}NET{f'{net.system}-' if several else ''}{int(net.id, 16)}"
        self.gpus = [
            Device(f"GPU{rank}", "gpu", host, numa=numa_of(machine, node), bus_id=address(node.id))
            for node, rank in machine.ranks.items()
        ]
        self.nics = [self._nic(net) for net in self.nets]
        self.others: list[Device] = []
        self.links: dict[tuple[str, str], Link] = {}
        if self.tree.branches:
            self._connect()
        self.pairs = self._pairs()
        if not self.tree.branches and not prefix and 1 < len(self.gpus) <= _MAX_DERIVED:
            codes = {(pair.a, pair.b): pair.code for pair in self.pairs if pair.code}
            between = [code for (_, end), code in codes.items() if end.startswith("GPU")]
            if 2 * len(between) == len(self.gpus) * (len(self.gpus) - 1) and all(code in LEVELS for code in between):
                tree = host_tree([*self.gpus, *self.nics], codes)
                self.others = [d for d in tree.devices if d.kind not in ("gpu", "nic")]
                self.links = {(link.src, link.dst): link for link in tree.links}
        branches = [b for b in self.tree.branches if b.type == "NET" and b.node in self.ids]
        self.nic_gb_per_s = {self.ids[branch.node]: branch.gb_per_s for branch in branches}
        """GB/s of the network side of each NIC in the tree."""

    def _nic(self, net: Key) -> Device:
        """Return a NET. Several lines may hold one without a slot; it has a place only where they agree."""
        nic = Device(self.ids[net], "nic", self.host, self.nic_names.get(int(net.id, 16)))
        holders = set(self.tree.holders.get(net, ()))
        if len(holders) != 1 or not self._in_slot(holder := holders.pop()):
            return nic
        return nic._replace(numa=numa_of(self.machine, holder), bus_id=address(holder.id))

    def _in_slot(self, nic: Key) -> bool:
        """Return whether a NIC is a PCI device; NCCL puts the others on a processor, with a link that is no limit."""
        return nic.type == "NIC" and self.tree.up.get(nic, (nic, NO_LIMIT))[1] < NO_LIMIT

    def _pairs(self) -> list[Pair]:
        """Return every GPU-GPU and GPU-NIC pair, with the matrix's code, or the tree's where there is no matrix."""
        nodes = [*self.machine.ranks, *self.nets]
        if len(nodes) > MAX_PAIRED:
            return []
        cells = self.machine.paths
        pairs = []
        for a, b in combinations(nodes, 2):
            if a.type != "GPU":
                break
            both = [cell for cell in (cells.get((a, b)), cells.get((b, a))) if cell is not None]
            code = both[0].type if both else None if cells else self.tree.code(a, b)
            if code is None or (b.type == "GPU" and len({cell.type for cell in both}) > 1):
                continue
            gb_per_s = min((cell.gb_per_s for cell in both), default=None)
            pair = coded_pair((self.ids[a], self.ids[b]), code)
            pairs.append(pair if gb_per_s is None else pair._replace(gb_per_s=gb_per_s, gb_per_s_source="read"))
        return pairs

    def _connect(self) -> None:
        self._place()
        for branch in self.tree.branches:
            node, parent = self.ids.get(branch.node), self.ids.get(branch.parent)
            if node is None or parent is None or node == parent:  # maybe a damaged name
                continue
            if branch.type in _KINDS:  # both ends print it, each its own direction; NVSwitches print none
                ends = {branch.parent.type, branch.node.type}
                kind = "xgmi-cpu" if branch.type == "XGMI" and "CPU" in ends else _KINDS[branch.type]
                hop_us = NVSWITCH_HOP_US if "NVS" in ends else None
                forward, back = both_ways(parent, node, kind, gb_per_s=branch.gb_per_s, latency_us=hop_us)
                self.links[parent, node] = forward
                self.links.setdefault((node, parent), back)
            elif branch.type in ("PCI", "LOC", "NET"):
                limited = branch.type == "NET" or branch.gb_per_s < NO_LIMIT
                for link in both_ways(node, parent, "pcie", gb_per_s=branch.gb_per_s if limited else None):
                    self.links.setdefault((link.src, link.dst), link)

    def _place(self) -> None:
        """Name all nodes that become devices; boards and cards with one device are that device."""
        on_card: dict[Key, list[Key]] = {}
        for net, cards in self.tree.holders.items():
            for card in cards:
                on_card.setdefault(card, []).append(net)
        alone = {card: nets[0] for card, nets in on_card.items() if len(nets) == 1 == len(self.tree.holders[nets[0]])}
        self.ids |= {card: self.ids[net] for card, net in alone.items()}
        self.ids |= {board: self.ids[gpu] for board, gpu in self.tree.board_gpu.items() if gpu in self.ids}
        useful = dict.fromkeys([*self.machine.ranks, *on_card])
        for node in list(useful):
            useful.update((above, None) for above, _ in self.tree.path_up(node))
        ends = [end for b in self.tree.branches if b.type in _KINDS for end in (b.parent, b.node)]
        useful.update((end, None) for end in ends if end.type in ("CPU", "NVS"))
        printed = dict.fromkeys(end for b in self.tree.branches for end in (b.parent, b.node))
        counts: Counter[str] = Counter()
        for node in printed:
            if node not in useful or node.type not in _SHAPES or node in self.ids:
                continue
            stem, kind, name = _SHAPES[node.type]
            numa = numa_of(self.machine, node) if kind == "numa" else None
            if kind == "numa" and (numa is None or node.system != "0"):
                stem = "domain"
            number = counts[stem] if numa is None or stem == "domain" else numa
            counts[stem] += 1
            bus_id = address(node.id) if node.type == "PCI" or self._in_slot(node) else None
            if node.type == "NIC" and bus_id is not None:
                name = ADAPTER
            device = Device(f"{self.prefix}{stem}{number}", kind, self.host, name or None, numa, bus_id=bus_id)
            if node.type == "NVS" and self.nvls:
                device = device._replace(in_network="nvls")
            self.ids[node] = device.id
            self.others.append(device)
