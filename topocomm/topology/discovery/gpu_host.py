"""One host with GPUs: GPUs from a driver's library or from sysfs, NICs and the PCI tree from sysfs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from topocomm.errors import TopologyError
from topocomm.topology.discovery.pci_sysfs import PciBus
from topocomm.topology.discovery.sysfs import Nic, find_nics, nodes_of_cpus
from topocomm.topology.inference.host_tree import LEVELS, PairKey, host_tree
from topocomm.topology.inference.nvlink import GpuFabric
from topocomm.topology.inference.pci_tree import Leaf, check_size, coded_pair, pci_graph, pci_pairs
from topocomm.topology.model import Device, Link, Topology

NO_FABRIC = GpuFabric((), (), {}, ())
PORTS = "port_gb_per_s"
"""The fact that holds the rate of ports by NIC, for links to the network."""


class GpuFacts(NamedTuple):
    """The GPUs of this host, from a library or from sysfs."""

    source: str
    gpus: tuple[Device, ...]
    """With PCI addresses as sysfs writes them."""
    fabric: GpuFabric = NO_FABRIC
    """Links between GPUs, and their pairs."""
    codes: Mapping[PairKey, str] = {}
    """PCIe codes of the source by pair."""
    facts: Mapping[str, Any] = {}
    warnings: tuple[str, ...] = ()


class DriverModule:
    """A driver's Python module, and its handles of GPUs by id."""

    def __init__(self, module: Any, error: type[Exception], handles: Iterable[Any]) -> None:
        self.module, self.error = module, error
        self.handles = {f"GPU{i}": handle for i, handle in enumerate(handles)}

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the answer of a function; None where the driver or this version of the module has none."""
        function = getattr(self.module, name, None)
        try:
            return None if function is None else function(*arguments)
        except self.error:
            return None

    def ask_pairs(self, name: str, *arguments: Any) -> dict[PairKey, Any]:
        """Return the answers for all pairs of GPUs."""
        return {
            (a, b): self.ask(name, self.handles[a], self.handles[b], *arguments)
            for a, b in combinations(self.handles, 2)
        }


def gpu_host(gpu_facts: GpuFacts, bus: PciBus, sysfs: Path, host: str) -> Topology:
    """Return the topology of a host with GPUs.

    The tree is that of sysfs; where sysfs does not show the GPUs, it is derived from the source's codes.

    Raises:
        TopologyError: More GPUs or NICs than any host has.
    """
    nics = list(find_nics(sysfs))
    check_size(gpu_facts.source, len(gpu_facts.gpus), len(nics))
    nodes = set(nodes_of_cpus(sysfs).values())
    numas: dict[int, Device] = {}

    def leaf(device: Device, gb_per_s: float | None) -> Leaf:
        """Return the device in the tree; without a node of its own it is on the only one."""
        numa = min(nodes) if device.numa is None and len(nodes) == 1 else device.numa
        places = frozenset[int]()
        if isinstance(numa, int):
            numas.setdefault(numa, Device(f"numa{numa}", "numa", host, numa=numa))
            places = frozenset({list(numas).index(numa)})
        return Leaf(device._replace(numa=numa), bus.path(device.bus_id), gb_per_s, places)

    leaves = [leaf(gpu, bus.gb_per_s(gpu.bus_id)) for gpu in gpu_facts.gpus]
    nic_leaves = []
    for nic in nics:
        rate = bus.gb_per_s(nic.bus_id) if nic.pcie_gb_per_s is None else nic.pcie_gb_per_s
        nic_leaves.append(leaf(Device(nic.name, "nic", host, nic.name, nic.numa, bus_id=nic.bus_id), rate))
    known = {pair: coded_pair(pair, code) for pair, code in gpu_facts.codes.items()}
    pairs = pci_pairs(leaves, nic_leaves, known | gpu_facts.fabric.pairs)
    placed = [leaf.device for leaf in (*leaves, *nic_leaves)]
    forwarding: tuple[Device, ...]
    links: tuple[Link, ...]
    if all(leaf.path for leaf in leaves) or not gpu_facts.codes:
        forwarding, links = pci_graph([*leaves, *nic_leaves], tuple(numas.values()))
        forwarding = (*numas.values(), *forwarding)
    else:
        codes = {**gpu_facts.codes, **{(p.a, p.b): p.code for p in pairs if p.code in LEVELS}}
        tree = host_tree(placed, codes)
        forwarding, links = tree.devices[len(placed) :], tree.links
    facts = slot_facts(placed, nics, bus)
    slots = {**facts.get("pcie", {}), **gpu_facts.facts.get("pcie", {})}
    unplaced = [leaf.device.id for leaf in leaves if not leaf.places]
    missing = [leaf.device.id for leaf in leaves if not leaf.path]
    warnings = [*gpu_facts.warnings, *gpu_facts.fabric.warnings]
    if missing:
        warnings.append(f"sysfs does not show the PCI place of {', '.join(missing)}: a container or another system")
    elif unplaced:
        warnings.append(f"NUMA node of {', '.join(unplaced)} not known: a virtual machine may hide it")
    return Topology(
        name=host,
        source=gpu_facts.source,
        devices=(*placed, *forwarding, *gpu_facts.fabric.devices),
        links=(*gpu_facts.fabric.links, *links),
        pairs=pairs,
        warnings=tuple(warnings),
        facts={**facts, **gpu_facts.facts, **({"pcie": slots} if slots else {})},
    )


def slot_facts(devices: Sequence[Device], nics: Sequence[Nic], bus: PciBus) -> dict[str, Any]:
    """Return figures of the slots' links by bus id, and rates of ports by NIC."""
    slots = {d.bus_id: facts for d in devices if d.bus_id and (facts := bus.link_facts(d.bus_id))}
    ports = {nic.name: nic.port_gb_per_s for nic in nics if nic.port_gb_per_s is not None}
    return {**({"pcie": slots} if slots else {}), **({PORTS: ports} if ports else {})}


def pci_gpus(bus: PciBus, usable: Collection[str], host: str) -> tuple[Device, ...]:
    """Return the GPUs with usable addresses as sysfs shows them, in the order of their addresses.

    Raises:
        TopologyError: There is none.
    """
    shown = [gpu for gpu in bus.gpus() if gpu.bus_id in usable]
    if not shown:
        raise TopologyError("sysfs shows no GPU that this process may use")
    return tuple(
        Device(f"GPU{i}", "gpu", host, gpu.gpu_vendor, gpu.numa, gpu.cpus, gpu.bus_id) for i, gpu in enumerate(shown)
    )
