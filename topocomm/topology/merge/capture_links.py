"""Links of several captures of one machine: one capture's PCIe tree, one's fabric, and the figures of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from topocomm.topology.inference.host_tree import PairKey, group_words
from topocomm.topology.merge.capture_fabric import FabricJoiner
from topocomm.topology.merge.capture_numa import with_numa_nodes
from topocomm.topology.merge.capture_sources import Clashes, LinkSource, better_figures
from topocomm.topology.merge.device_matching import label
from topocomm.topology.model import Device, Link, Pair


class JoinedLinks(NamedTuple):
    """Forwarding devices, links and pairs of the machine; what contradicts; whether link rates were read."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    pairs: dict[PairKey, Pair]
    warnings: list[str]
    rates_read: bool


def join_links(sources: Sequence[LinkSource], devices: Sequence[Device], pairs: Mapping[PairKey, Pair]) -> JoinedLinks:
    """The links of a machine from those of its captures.

    Args:
        sources: The captures.
        devices: The machine's GPUs and NICs.
        pairs: Its pairs, which get the rates that a capture read.
    """
    tree = _Tree(sources, devices)
    fabric = FabricJoiner(sources, devices, dict(pairs))
    switches, links = fabric.build({device.id for device in (*devices, *tree.devices)})
    links = fabric.rated(links)
    return JoinedLinks(
        devices=(*tree.devices, *switches),
        links=(*links, *tree.links),
        pairs=fabric.rated_pairs(),
        warnings=[*tree.warnings, *fabric.warnings],
        rates_read=fabric.rates_read(links),
    )


class _Tree:
    """The tree of one capture, with others' figures of slots.

    One that joins all GPUs and NICs with their addresses goes before one made of codes, which knows no bridges; then
    the one that joins most devices, and of those the one with most figures.
    """

    def __init__(self, sources: Sequence[LinkSource], devices: Sequence[Device]) -> None:
        self.sources = sources
        self.clashes = Clashes()
        gpus = {device.id for device in devices if device.kind == "gpu"}
        nics = {device.id for device in devices if device.kind == "nic"}
        without_nics = not any(nics & source.covered for source in sources)
        self.base = max(
            sources,
            key=lambda s: (
                gpus <= (known := s.covered & s.addressed) and (without_nics or bool(nics & known)),
                len(s.covered),
                sum(link.gb_per_s is not None for link in s.tree),
            ),
        )
        links = [self._slot(link, self.base) for link in self.base.tree]
        ends = {device.id: device for device in devices if device.id in self.base.covered}
        self.devices, self.links = with_numa_nodes(self.base.tree_devices, links, ends)
        lost = [device.id for device in devices if device.id not in self.base.covered]
        self.warnings = self.clashes.texts()
        if self.base.covered and lost:
            words = f"{group_words(lost)}: not in the tree of {label(self.base.topology)}"
            self.warnings.append(f"{words}; no PCIe links")

    def _slot(self, link: Link, base: LinkSource) -> Link:
        """The link of a GPU or NIC to its slot, with the figures of other captures."""
        ends = [end for end in link[:2] if end in base.covered]
        if len(ends) != 1 or link.kind != "pcie":
            return link
        for source in self.sources:
            found = source.slots.get(ends[0], ())
            if source is not base and len(found) == 1:
                link, words = better_figures(link, found[0]._replace(latency_us=None))
                self.clashes.add(base.topology, source.topology, (f"PCIe link of {ends[0]} {w}" for w in words))
        return link
