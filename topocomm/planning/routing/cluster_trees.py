"""Who passes which member's part on to whom where a host has clusters of members, such as sockets, that share a bus.

A part crosses to one member of every other cluster, that of its owner's place, and each of these sends it to its own
cluster, as the owner does: no bus carries a part twice in one direction, no port receives more than all parts, and two
messages are in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topocomm.planning.routing.earliest_edges import EdgeOrder
from topocomm.planning.routing.hierarchy import cuts_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints, Routes

CROSS, OWN, PASSED = range(3)
"""Rounds: to other clusters; from owners to their own; what came from others."""


def cluster_trees(endpoints: Sequence[str], paths: PathFinder, chunk_bytes: float) -> EdgeOrder | None:
    """Return messages that bring the chunk of each endpoint to all others; None without clusters of equal size.

    `us` is what they take at least: the latencies, and the bytes of the busiest port or link.
    """
    cut = cuts_of(endpoints, paths)[-1]
    sizes = set(np.diff(cut).tolist())
    size = sizes.pop()
    if sizes or not 1 < size < len(endpoints):
        return None
    messages = _messages(len(endpoints), size)
    routes = paths.routes(endpoints, messages[:, 2], messages[:, 3])
    if not np.isfinite(routes.latency_us).all():
        return None
    crosses = messages[:, 0] == CROSS
    latency_us = routes.latency_us[crosses].max() + routes.latency_us[~crosses].max()
    return EdgeOrder(3, messages, float(latency_us) + chunk_bytes * _busiest_us(messages, routes, paths))


def _messages(count: int, size: int) -> Ints:
    """Columns: round, chunk, source, destination; of every endpoint in turns that no other has."""
    owner = np.arange(count)
    cluster, place = owner // size, owner % size
    aheads, steps = range(size, count, size), range(1, size)
    near = [cluster * size + (place + step) % size for step in steps]
    rows = [(CROSS, owner, (owner + ahead) % count) for ahead in aheads] + [(OWN, owner, to) for to in near]
    for ahead in aheads:
        rows += [(PASSED, (owner + ahead) % count, (to + ahead) % count) for to in near]
    columns = [np.stack([np.full(count, round_), owner, src, dst], 1) for round_, src, dst in rows]
    return np.concatenate(columns)


def _busiest_us(messages: Ints, routes: Routes, paths: PathFinder) -> float:
    """What a byte of each chunk takes at the busiest port, or link."""
    byte_us = 1 / (routes.gb_per_s * 1e3)
    loads = [np.bincount(ends, byte_us).max() for ends in messages[:, 2:].T]
    links = np.bincount(routes.links) / (paths.link_gb_per_s[: routes.links.max(initial=-1) + 1] * 1e3)
    return float(max(*loads, links.max(initial=0.0)))
