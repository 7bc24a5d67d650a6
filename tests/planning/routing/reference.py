"""Routes by the plain search of a whole machine, for tests of faster ones, and machines to search."""

import heapq
from dataclasses import replace

import numpy as np
import pytest

from topocomm import Link
from topocomm.planning.routing.paths import NoRouteError, PathFinder

ENDS = ("gpu", "cpu")


def reference(topology, src):
    """(latency, -GB/s, devices) of the least label of every device reached from src, by Dijkstra on everything."""
    kind = {device.id: device.kind for device in topology.devices}
    after = {}
    for a, b, latency_us, gb_per_s in merged(topology):
        after.setdefault(a, []).append((b, latency_us, gb_per_s))
    found, heap = {}, [(0.0, -float("inf"), (src,))]
    while heap:
        label = heapq.heappop(heap)
        here = label[2][-1]
        if here in found:
            continue
        found[here] = label
        if here == src or kind[here] not in ENDS:
            for b, latency_us, gb_per_s in after.get(here, ()):
                heapq.heappush(heap, (label[0] + latency_us, max(label[1], -gb_per_s), (*label[2], b)))
    return {name: label for name, label in found.items() if kind[name] in ENDS and name != src}


def merged(topology):
    """The directed links, parallel ones as one."""
    links = {}
    for link in topology.links:
        latency_us, gb_per_s = links.get((link.src, link.dst), (float("inf"), 0.0))
        links[link.src, link.dst] = min(latency_us, link.latency_us), gb_per_s + link.gb_per_s
    return [(*edge, *figures) for edge, figures in links.items()]


def same_as_reference(topology, sources=None):
    """Compare every pair, one by one and in columns; returns the PathFinder."""
    paths = PathFinder(topology)
    ends = [device.id for device in topology.devices if device.kind in ENDS]
    sources = ends if sources is None else sources
    src, dst = (np.array(ranks) for ranks in zip(*[(a, b) for a in sources for b in ends], strict=True))
    place = {name: rank for rank, name in enumerate(ends)}
    columns = paths.routes(ends, np.array([place[a] for a in src]), np.array([place[b] for b in dst]))
    wanted = {a: reference(topology, a) for a in sources}
    for at, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        links = [paths.edges[number] for number in columns.links[columns.starts[at] : columns.starts[at + 1]]]
        if a == b:
            assert links == list(paths.cheapest(a, b).edges)
            continue
        label = wanted[a].get(b)
        if label is None:
            assert columns.latency_us[at] == float("inf")
            assert not links
            with pytest.raises(NoRouteError):
                paths.cheapest(a, b)
            continue
        route = paths.cheapest(a, b)
        assert (route.latency_us, -route.gb_per_s, route.devices) == label
        assert (columns.latency_us[at], -columns.gb_per_s[at]) == label[:2]
        assert links == list(route.edges)
    return paths


def linked(edges):
    """Links both ways: (a, b, latency, GB/s)."""
    return [Link(x, y, "k", 1, rate, latency) for a, b, latency, rate in edges for x, y in ((a, b), (b, a))]


def without(topology, **lost):
    """The machine with devices or links dropped."""
    devices = tuple(d for d in topology.devices if d.id not in lost.get("devices", ()))
    gone = {d.id for d in topology.devices} - {d.id for d in devices}
    links = (link for link in topology.links if not {link.src, link.dst} & gone)
    return replace(
        topology, devices=devices, links=tuple(k for k in links if (k.src, k.dst) not in lost.get("links", ()))
    )
