"""A lab's topology with the figures that its ranks measured, one for all links that are alike."""

from __future__ import annotations

from dataclasses import replace
from statistics import median, quantiles
from typing import Any

from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Link, Topology

WIRE_SHARE = 1448 / 1514
"""Payload of a full Ethernet frame over its bytes, of TCP with timestamps: tc counts frames, programs payload."""


def as_measured(nominal: Topology, measured: Topology) -> Topology:
    """Return the nominal topology with measured latencies and rates.

    Links of a kind are alike, so that they get one figure, and plans the symmetry that the machine has: a rate between
    hosts is the nominal one by the median ratio of measured to nominal over all pairs. Of latencies the lower quartile
    over the pairs counts: with more ranks than cores the others have waited for a core.

    Args:
        nominal: What the lab was made of.
        measured: The same with `facts["ping_pong"]`, as `topocomm.execute.measure.ping_pong.measure` returns it.
    """
    pairs = measured.facts["ping_pong"]["pairs"]
    host = {device.id: device.host for device in nominal.devices}
    inside = [pair for pair in pairs if host[pair["a"]] == host[pair["b"]]]
    between = [pair for pair in pairs if host[pair["a"]] != host[pair["b"]]]
    ratios = [pair["gb_per_s"] / pair["nominal_gb_per_s"] for pair in between if pair["nominal_gb_per_s"]]
    share = min(median(ratios), 1.0) if ratios else WIRE_SHARE
    latency = {"network": _low(between) / 2, "pcie": 0.0, "shared-memory": _low(inside) / 2}
    rate = max((pair["gb_per_s"] for pair in inside), default=None)
    links = []
    for link in nominal.links:
        between_switches = {host[link.src], host[link.dst]} == {
            NETWORK.host
        }  # a bridge to the next costs next to nothing
        links.append(_with_figures(link, 0.0 if between_switches else latency.get(link.kind), rate, share))
    return replace(nominal, links=tuple(links), source=f"{nominal.source}, measured")


def _with_figures(link: Link, latency_us: float | None, memory_gb_per_s: float | None, share: float) -> Link:
    if latency_us is not None:
        link = link._replace(latency_us=round(latency_us, 3), latency_us_source="measured")
    if link.kind == "network" and link.gb_per_s is not None:
        return link._replace(gb_per_s=link.gb_per_s * share, gb_per_s_source="measured")
    if link.kind == "shared-memory" and memory_gb_per_s is not None:
        return link._replace(gb_per_s=memory_gb_per_s, gb_per_s_source="measured")
    return link


def _low(pairs: list[dict[str, Any]]) -> float:
    latencies = [pair["latency_us"] for pair in pairs]
    return float(quantiles(latencies, n=4)[0]) if len(latencies) > 1 else float(sum(latencies))
