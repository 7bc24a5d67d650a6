"""Several captures of one machine as one topology.

Devices are matched first. Then every field, pair and figure is taken from a capture that has it; of two figures the one
with the better source is kept: measured, read, table, assumed. The PCIe tree is that of one capture, because two trees
would double its paths. Where captures contradict each other, a warning names both values and which was kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, count
from typing import Any

from topocomm.errors import TopologyError
from topocomm.topology.inference.host_tree import PairKey
from topocomm.topology.merge.capture_links import JoinedLinks
from topocomm.topology.merge.capture_sources import Clashes, LinkSource, better_figures, merge_facts, renamed
from topocomm.topology.merge.cluster import NETWORK, host_name
from topocomm.topology.merge.device_matching import UNNAMED_HOST, label, match_devices, same_host
from topocomm.topology.model import Device, Pair, Topology

__all__ = ["combine", "same_host"]

_FABRIC = re.compile(r"(NV|XGMI)\d*")
_SHOW_FABRIC = ("nvidia-smi topo -m", "rocm-smi", "amd-smi")
"""Tools that show NVLink and xGMI; `nvidia-smi topo -mp` and others show PCIe paths only."""
_PRINT_CODES = ("nvidia-smi", "rocm-smi", "amd-smi")
_RATE_WARNINGS = ("GB/s each assumed", "GB/s of NVLink unknown")
"""Parts of readers' warnings that do not apply once a capture has read the rates."""


def combine(topologies: Sequence[Topology]) -> Topology:
    """Combine several captures of one host.

    Ids and order of devices are those of the first capture; devices of other captures follow. Pair codes that a tool
    printed are preferred to derived ones, codes of NVLink and xGMI to those of the PCIe path beside it. A single
    capture is returned as it is.

    Raises:
        TopologyError: There is no capture, one has several hosts, or two cannot be of one machine.
    """
    if not topologies:
        raise TopologyError("combine: no topology given; expected at least one")
    if len(topologies) == 1:
        return topologies[0]
    return _Machine(topologies).topology()


class _Machine:
    """The captures with ids of the first, and the devices and pairs so far."""

    def __init__(self, topologies: Sequence[Topology]) -> None:
        names = [name for topology in topologies if (name := host_name(topology)) != UNNAMED_HOST]
        self.host = names[0] if names else UNNAMED_HOST
        self.warnings: list[str] = []
        self.captures: list[tuple[Topology, dict[str, str]]] = []
        self.devices: dict[str, Device] = {}
        self.said_by: dict[tuple[str, str], str] = {}
        self.pairs: dict[PairKey, tuple[Pair, Topology]] = {}
        for topology in topologies:
            self._add(topology)

    def topology(self) -> Topology:
        first = self.captures[0][0]
        facts, conflicts = merge_facts([(capture, renamed(capture.facts, ids)) for capture, ids in self.captures])
        self._report(conflicts)
        sources = [LinkSource(capture, ids) for capture, ids in self.captures]
        pairs = {key: pair for key, (pair, _) in self.pairs.items()}
        joined = JoinedLinks(sources, tuple(self.devices.values()), pairs)
        self._report(joined.warnings)
        warnings = [text for capture, _ in self.captures for text in capture.warnings]
        if joined.rates_read:
            warnings = [text for text in warnings if not any(words in text for words in _RATE_WARNINGS)]
        devices = [*self.devices.values(), *joined.devices]
        ranks = next(((c.ranks, ids) for c, ids in self.captures if c.ranks), ((), {}))
        host = self.host
        return Topology(
            name=first.name,
            source=" + ".join(dict.fromkeys(capture.source for capture, _ in self.captures)),
            devices=tuple(d if d.host == NETWORK.host else d._replace(host=host) for d in devices),
            links=joined.links,
            pairs=tuple(joined.pairs.values()),
            ranks=tuple(r._replace(host=host, device=ranks[1].get(r.device, r.device)) for r in ranks[0]),
            warnings=tuple(dict.fromkeys((*warnings, *self.warnings))),
            launch_us=next((c.launch_us for c, _ in self.captures if c.launch_us is not None), None),
            facts=facts,
        )

    def _report(self, texts: Sequence[str]) -> None:
        self.warnings += [text for text in texts if text not in self.warnings]

    def _add(self, topology: Topology) -> None:
        ids: dict[str, str] = {}
        if self.captures:
            uuids: dict[str, Any] = {}
            for capture, names in self.captures:
                if isinstance(own := renamed(capture.facts, names).get("uuids"), Mapping):
                    uuids |= own
            so_far = Topology(  # the machine as its captures show it, under their names
                self.captures[0][0].name,
                " + ".join(dict.fromkeys(capture.source for capture, _ in self.captures)),
                tuple(self.devices.values()),
                (),
                tuple(pair for pair, _ in self.pairs.values()),
                facts={"uuids": uuids} if uuids else {},
            )
            ids, warnings = match_devices(so_far, topology)
            self._report(warnings)
        for device in topology.devices:
            if device.kind in ("gpu", "nic"):
                if device.id not in ids:
                    free = chain([device.id], (f"{device.id}.{number}" for number in count(2)))
                    ids[device.id] = next(name for name in free if name not in self.devices)
                self._add_device(device._replace(id=ids[device.id]), topology)
        self.captures.append((topology, ids))
        self._add_pairs(topology, ids)

    def _add_device(self, device: Device, topology: Topology) -> None:
        known = self.devices.setdefault(device.id, device)
        for key in ("name", "numa", "cpu_affinity", "bus_id"):
            value, kept = getattr(device, key), getattr(known, key)
            if value is None:
                continue
            said_by = self.said_by.setdefault((device.id, key), label(topology))
            if kept is None:
                known = known._replace(**{key: value})
            elif key == "name" and device.kind == "nic" and " " in kept and " " not in value:
                known = known._replace(name=value)  # the system's name rather than the model's
            elif key == "numa" and value != kept:
                self._report([f"{device.id}: NUMA node {kept} ({said_by}), {value} ({label(topology)}); {kept} kept"])
        self.devices[device.id] = known

    def _add_pairs(self, topology: Topology, ids: Mapping[str, str]) -> None:
        clashes = Clashes()
        for pair in topology.pairs:
            if pair.a not in ids or pair.b not in ids:
                continue
            pair = pair._replace(a=ids[pair.a], b=ids[pair.b])
            key = (pair.b, pair.a) if (pair.b, pair.a) in self.pairs else (pair.a, pair.b)
            if key not in self.pairs:
                self.pairs[key] = (pair, topology)
                continue
            kept, owner = self.pairs[key]
            code, winner, clash = _code((kept, owner), (pair, topology))
            if clash:
                which = f"those of {label(winner)} kept"
                clashes.add(owner, topology, [f"{key[0]}-{key[1]} {kept.code} against {pair.code}"], which)
            if code == kept.code and code == pair.code:
                kept, words = better_figures(kept, pair)
                clashes.add(owner, topology, (f"{key[0]}-{key[1]} {w}" for w in words))
            elif winner is topology:
                kept = pair._replace(a=key[0], b=key[1])
            self.pairs[key] = (kept, winner)
        self._report(clashes.texts())


def _code(first: tuple[Pair, Topology], second: tuple[Pair, Topology]) -> tuple[str | None, Topology, bool]:
    """The code to keep of two of a pair, its capture, and whether the codes contradict each other."""
    (kept, owner), (pair, other) = first, second
    if pair.code is None or kept.code == pair.code or {kept.code, pair.code} == {"SYS", "SOC"}:
        return kept.code, owner, False
    if kept.code is None:
        return pair.code, other, False
    for (a, by_a), (b, by_b) in ((first, second), (second, first)):
        code, rest = a.code or "", b.code or ""
        if _FABRIC.fullmatch(code) and not _FABRIC.fullmatch(rest):
            shown = by_b.source.startswith(_SHOW_FABRIC) and not any("topo -mp" in text for text in by_b.warnings)
            return code, by_a, rest != "PCIE" and shown
        if rest == "XGMI" and code.startswith("XGMI"):
            return code, by_a, False
        if rest == "PCIE" and not _FABRIC.fullmatch(code):
            return code, by_a, False
    printed = [by.source.startswith(_PRINT_CODES) for by in (owner, other)]
    return (pair.code, other, True) if printed == [False, True] else (kept.code, owner, True)
