"""Cheapest routes by the rules of the certificates, independent of the planner: for expected latencies."""

from __future__ import annotations

import heapq

from topocomm.topology.model import ENDPOINT_KINDS, Topology


def latency_us(topology: Topology, src: str, dst: str) -> float:
    """Least sum of link latencies from one endpoint to another through devices that are no endpoints."""
    best = {src: 0.0}
    heap = [(0.0, src)]
    while heap:
        latency, device = heapq.heappop(heap)
        if device == dst:
            return round(latency, 9)
        if device != src and topology.by_id[device].kind in ENDPOINT_KINDS:
            continue
        for link in topology.links:
            if link.src == device and latency + link.latency_us < best.get(link.dst, float("inf")):
                best[link.dst] = latency + link.latency_us
                heapq.heappush(heap, (best[link.dst], link.dst))
    raise AssertionError(f"no path from {src} to {dst}")
