"""What the planner reckons with for every directed link: the topology's figures, or the table's for unknown ones."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from topocomm.errors import PlanError
from topocomm.topology import links as link_table
from topocomm.topology.model import Link, Topology

Edge = tuple[str, str]
"""(source device, destination device) of a directed link."""


class Figures(NamedTuple):
    """What the planner reckons with for one directed link."""

    latency_us: float
    gb_per_s: float
    gap_us: float


def link_figures(topology: Topology) -> tuple[dict[Edge, Figures], dict[str, str]]:
    """(figures of every directed link, what had to be assumed for them by link kind, in words).

    Parallel links of one direction are one: their bandwidths add up. An unknown gap is none.

    Raises:
        PlanError: A link has a bandwidth that is not positive, or another impossible figure; names the link.
    """
    found: dict[Edge, Figures] = {}
    assumed: dict[str, str] = {}
    known: dict[tuple[object, ...], Figures] = {}  # clusters have thousands of links and a few figures
    for link in topology.links:
        alike = link[2:7]
        figures = known.get(alike)
        if figures is None:
            figures = known[alike] = _checked(topology, link, _filled(link, assumed))
        edge = link[0], link[1]
        found[edge] = figures if edge not in found else _added(found[edge], figures)
    return found, assumed


def _filled(link: Link, assumed: dict[str, str]) -> Figures:
    """The figures of a link, unknown ones from the table; notes those."""
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
    return Figures(latency, bandwidth, 0.0 if link.gap_us is None else link.gap_us)


def _checked(topology: Topology, link: Link, figures: Figures) -> Figures:
    if all(map(isfinite, figures)) and figures.latency_us >= 0 and figures.gb_per_s > 0 and figures.gap_us >= 0:
        return figures
    gap = f" and a gap of {figures.gap_us} us" if figures.gap_us != 0 else ""
    raise PlanError(
        f"topology {topology.name!r}: link {link.src} -> {link.dst} has {figures.gb_per_s} GB/s and "
        f"{figures.latency_us} us{gap}; expected a positive bandwidth and times of at least 0, all finite: correct "
        "the link, or remove it"
    )


def _added(one: Figures, other: Figures) -> Figures:
    return Figures(min(one.latency_us, other.latency_us), one.gb_per_s + other.gb_per_s, max(one.gap_us, other.gap_us))
