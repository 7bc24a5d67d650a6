"""Machines with one fault each, made from machines of the catalogue."""

from dataclasses import replace

from tests.doctor.findings import found as found_one
from topocomm import catalog
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Pair, Topology


def recoded(topology, codes):
    """The topology with other codes for some pairs."""
    pairs = []
    for pair in topology.pairs:
        code = codes.get((pair.a, pair.b), codes.get((pair.b, pair.a)))
        pairs.append(pair if code is None else pair._replace(code=code))
    return replace(topology, pairs=tuple(pairs))


def without_devices(topology, names):
    """The topology without devices, their links and pairs."""
    return replace(
        topology,
        devices=tuple(d for d in topology.devices if d.id not in names),
        links=tuple(link for link in topology.links if not {link.src, link.dst} & set(names)),
        pairs=tuple(pair for pair in topology.pairs if not {pair.a, pair.b} & set(names)),
    )


def changed_links(topology, change, *, ends):
    """The topology with the links between two devices, both ways, replaced by `change(link)`; None removes them."""
    links = (change(link) if {link.src, link.dst} == set(ends) else link for link in topology.links)
    return replace(topology, links=tuple(link for link in links if link is not None))


def with_facts(facts, topology=None):
    """A topology, by default DGX H100, of which a source says more."""
    return replace(topology or catalog("dgx-h100"), facts=facts)


def plain_host(gpus, nics, codes, *, numa=None, nic_numa=None, names=None, host="host0"):
    """A host without links: GPUs and NICs by number, and codes by pair of names; the rest is `NODE`."""
    numa, nic_numa, names = numa or {}, nic_numa or {}, names or {}
    gpu_ids, nic_ids = [f"GPU{i}" for i in range(gpus)], [f"NIC{i}" for i in range(nics)]
    devices = [Device(name, "gpu", host, numa=numa.get(name)) for name in gpu_ids]
    devices += [Device(name, "nic", host, names.get(name), nic_numa.get(name)) for name in nic_ids]
    pairs = [
        Pair(a, b, codes.get((a, b), "NODE")) for i, a in enumerate(gpu_ids) for b in (*gpu_ids[i + 1 :], *nic_ids)
    ]
    return Topology("plain", "test", tuple(devices), (), tuple(pairs))


def pcie_host(rates, ports=None):
    """A host whose devices have PCIe links of these GB/s to one switch, and NICs ports of these GB/s."""
    devices, links = [Device("pcie0", "switch"), Device("network", "switch", "network")], []
    for name, rate in rates.items():
        kind = "gpu" if name.startswith("GPU") else "nic"
        devices.append(Device(name, kind))
        links += both_ways(name, "pcie0", "pcie", gb_per_s=rate)
        if (ports or {}).get(name):
            links += both_ways(name, "network", "network", gb_per_s=ports[name])
    return Topology("pcie", "test", tuple(devices), tuple(links))


def found(findings, check, level, *parts):
    """The only finding of a check has this level, all these words, and a remedy if it is a complaint."""
    mine = [finding for finding in findings if finding.check == check]
    assert len(mine) == 1, findings
    found_one(mine[0], level, *parts)
