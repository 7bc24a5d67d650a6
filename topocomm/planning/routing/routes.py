"""Figures of directed links, and routes of many messages as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.planning.schedule.schedule import spans
from topocomm.topology import links as link_table
from topocomm.topology.model import Link, Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Edge = tuple[str, str]
"""(source device, destination device) of a directed link."""


class Figures(NamedTuple):
    """Figures of one directed link, or of a route."""

    latency_us: float
    gb_per_s: float
    gap_us: float


def link_figures(topology: Topology) -> tuple[dict[Edge, Figures], dict[str, str]]:
    """Return (figures of every directed link, assumptions in words by link kind).

    Figures that the topology does not know are taken from the table of link kinds; an unknown gap is 0. Parallel links
    of one direction count as one: their bandwidths add up.

    Raises:
        PlanError: A link has a bandwidth that is not positive, or another impossible figure; names the link.
    """
    by_edge: dict[Edge, Figures] = {}
    assumed: dict[str, str] = {}
    known: dict[tuple[object, ...], Figures] = {}  # clusters have thousands of links and a few figures
    for link in topology.links:
        alike = link[2:7]
        figures = known.get(alike)
        if figures is None:
            figures = known[alike] = _figures_of(topology, link, assumed)
        edge = link[0], link[1]
        if edge in by_edge:
            other = by_edge[edge]
            gb_per_s, gap_us = other.gb_per_s + figures.gb_per_s, max(other.gap_us, figures.gap_us)
            figures = Figures(min(other.latency_us, figures.latency_us), gb_per_s, gap_us)
        by_edge[edge] = figures
    return by_edge, assumed


def _figures_of(topology: Topology, link: Link, assumed: dict[str, str]) -> Figures:
    """The figures of a link, unknown ones from the table and noted in `assumed`."""
    latency, bandwidth = link.latency_us, link.gb_per_s
    kind = link_table.assume(link.kind)
    if latency is None:
        latency = kind.latency_us
        assumed.setdefault(
            f"{link.kind} latency",
            f"{link.kind} latency {latency} us ({kind.latency_source.removeprefix('assumed: ')})",
        )
    if bandwidth is None:
        bandwidth = kind.gb_per_s * (link.lanes or 1)
        assumed.setdefault(f"{link.kind} GB/s", f"{link.kind} {kind.gb_per_s} GB/s a lane ({kind.source})")
    figures = Figures(latency, bandwidth, 0.0 if link.gap_us is None else link.gap_us)
    if all(map(isfinite, figures)) and figures.latency_us >= 0 and figures.gb_per_s > 0 and figures.gap_us >= 0:
        return figures
    gap = f" and a gap of {figures.gap_us} us" if figures.gap_us != 0 else ""
    raise PlanError(
        f"topology {topology.name!r}: link {link.src} -> {link.dst} has {figures.gb_per_s} GB/s and "
        f"{figures.latency_us} us{gap}; expected a positive bandwidth and times of at least 0, all finite: correct "
        "the link, or remove it"
    )


@dataclass(frozen=True, eq=False)
class Routes:
    """The routes of n messages.

    Attributes:
        latency_us: float64 [n]: latency of the route; infinite where there is none.
        gb_per_s: float64 [n]: bandwidth of its narrowest link; infinite where it crosses none.
        gap_us: float64 [n]: the largest gap of its links.
        starts: int64 [n + 1]: route i crosses links[starts[i]:starts[i + 1]], in this order.
        links: int64: numbers of directed links, indices into `PathFinder.edges`.
    """

    latency_us: Floats
    gb_per_s: Floats
    gap_us: Floats
    starts: Ints
    links: Ints

    def __len__(self) -> int:
        return len(self.latency_us)

    @property
    def hops(self) -> Ints:
        """int64 [n]: number of links of each route."""
        return np.diff(self.starts)

    def take(self, which: Ints) -> Routes:
        """Return the routes at these indices, in this order."""
        starts, places = spans(self.starts[which], self.hops[which])
        return Routes(self.latency_us[which], self.gb_per_s[which], self.gap_us[which], starts, self.links[places])


def joined(parts: Sequence[Routes]) -> Routes:
    """Return the routes of the parts, one after the other."""
    hops = np.concatenate([part.hops for part in parts])
    return Routes(
        np.concatenate([part.latency_us for part in parts]),
        np.concatenate([part.gb_per_s for part in parts]),
        np.concatenate([part.gap_us for part in parts]),
        np.concatenate([[0], np.cumsum(hops)]),
        np.concatenate([part.links for part in parts]),
    )
