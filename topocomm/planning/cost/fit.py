"""Figures of links fitted to measurements between endpoints.

A route's latency is the sum over its links and its bandwidth that of its narrowest link, so many figures of links give
the same figures of pairs. Latencies keep the proportions of the links as far as the pairs allow (the multiplicative
algebraic reconstruction SMART, Byrne, IEEE Trans. Image Processing 2 (1993) 96-103: of all latencies that fit best,
those nearest to the previous ones in Kullback-Leibler distance). A link gets the largest bandwidth of any pair over it;
nothing more is known of links that are never the narrowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Edge, Floats, Ints, Routes, joined
from topocomm.topology.model import Link, Pair, Topology

STEPS, SAME = 2000, 1e-9
"""Most iterations, and the relative change at which they end."""
SMALL_US = 1e-3
"""Initial latency of a link of latency 0, since the iteration multiplies."""
FAR = 1.25
"""Ratio of measured and fitted figures above which a warning names the pair."""


class PairFigures(NamedTuple):
    """Figures measured between two endpoints, the same both ways."""

    a: str
    b: str
    latency_us: float
    gb_per_s: float


def with_measured(topology: Topology, measured: Sequence[PairFigures], codes: Sequence[str | None]) -> Topology:
    """Return the topology with measured figures on its pairs and on the links that their routes cross.

    Links that no route crosses keep their figures. A warning names the pair whose links together differ most, if by
    more than a quarter, from the measurement: then pairs over the same links do not behave alike.

    There is one entry for each pair of endpoints, and its pair code for pairs that the topology does not have.

    Raises:
        PlanError: A link has an impossible figure.
    """
    finder = PathFinder(topology)
    routed, routes = _routes(finder, measured)
    both_ways = [measured[place] for place in routed] * 2
    fitted = _links(topology, finder, routes, both_ways)
    result = replace(topology, links=fitted, pairs=_pairs(topology, measured, codes))
    with_route = set(routed)
    alone = [f"{pair.a}-{pair.b}" for place, pair in enumerate(measured) if place not in with_route]
    warnings = list(topology.warnings)
    if alone:
        shown = ", ".join(alone[:8])
        warnings.append(f"no links lead between {shown}: what was measured there stands in the pairs only")
    warnings += _far(result, both_ways[: len(routed)])
    return replace(result, warnings=tuple(dict.fromkeys(warnings)))


def _routes(finder: PathFinder, measured: Sequence[PairFigures]) -> tuple[list[int], Routes]:
    """(indices of the pairs that have routes, the routes of all of these in one direction, then in the other)."""
    ends = tuple(dict.fromkeys(end for pair in measured for end in pair[:2]))
    number = {end: place for place, end in enumerate(ends)}
    a = np.array([number[pair.a] for pair in measured], dtype=np.int64)
    b = np.array([number[pair.b] for pair in measured], dtype=np.int64)
    out, back = finder.routes(ends, a, b), finder.routes(ends, b, a)
    routed = np.flatnonzero(np.isfinite(out.latency_us) & np.isfinite(back.latency_us))
    return routed.tolist(), joined([out.take(routed), back.take(routed)])


def _links(topology: Topology, finder: PathFinder, routes: Routes, measured: Sequence[PairFigures]) -> tuple[Link, ...]:
    """All links, those that the routes cross with the measured figures of these; parallel links keep their shares."""
    before = list(finder.links.values())
    crossing = np.repeat(np.arange(len(routes)), routes.hops)  # the route of each entry of its links
    pairs_us, pairs_gb_per_s = (np.array([pair[column] for pair in measured], dtype=float) for column in (2, 3))
    latency = _latencies_us(np.array([figures.latency_us for figures in before]), routes.links, crossing, pairs_us)
    rate = np.zeros(len(before))
    np.maximum.at(rate, routes.links, pairs_gb_per_s[crossing])
    number: dict[Edge, int] = {edge: place for place, edge in enumerate(finder.links)}
    parallel: dict[Edge, int] = {}
    for link in topology.links:
        parallel[link[:2]] = parallel.get(link[:2], 0) + 1
    links = []
    for link in topology.links:
        place = number[link[:2]]
        if rate[place] > 0:
            known = link.gb_per_s is not None
            share = (link.gb_per_s or 0.0) / before[place].gb_per_s if known else 1 / parallel[link[:2]]
            link = link._replace(
                gb_per_s=round(float(rate[place]) * share, 6),
                latency_us=round(float(latency[place]), 6),
                gb_per_s_source="measured",
                latency_us_source="measured",
            )
        links.append(link)
    return tuple(links)


def _latencies_us(start_us: Floats, links: Ints, route: Ints, measured_us: Floats) -> Floats:
    """float64 [links]: latencies whose sums over the links of each route are nearest to the measured ones."""
    latency = np.maximum(start_us, SMALL_US)
    if not len(links):
        return latency
    crossings = np.maximum(np.bincount(links, minlength=len(latency)), 1)
    for _ in range(STEPS):
        sums = np.bincount(route, latency[links], minlength=len(measured_us))
        missing = np.log(measured_us / sums)
        step = np.bincount(links, missing[route], minlength=len(latency)) / crossings
        latency = latency * np.exp(step)
        if np.abs(step).max() < SAME:
            break
    return latency


def _pairs(topology: Topology, measured: Sequence[PairFigures], codes: Sequence[str | None]) -> tuple[Pair, ...]:
    """The pairs of the topology with their measured figures; new pairs at the end."""
    known = {frozenset((pair.a, pair.b)): pair for pair in topology.pairs}
    for figures, code in zip(measured, codes, strict=True):
        key = frozenset(figures[:2])
        pair = known.get(key, Pair(figures.a, figures.b, code))
        known[key] = pair._replace(
            gb_per_s=figures.gb_per_s,
            latency_us=figures.latency_us,
            gb_per_s_source="measured",
            latency_us_source="measured",
        )
    return tuple(known.values())


def _far(fitted: Topology, measured: Sequence[PairFigures]) -> list[str]:
    """A warning on the pair whose links differ most from the measurement, where they differ much."""
    finder = PathFinder(fitted)
    routes = [finder.cheapest(pair.a, pair.b) for pair in measured]
    lines = []
    for unit, column in (("us", "latency_us"), ("GB/s", "gb_per_s")):
        figures = [(getattr(a, column), getattr(b, column)) for a, b in zip(measured, routes, strict=True)]
        ratios = [max(own / by_links, by_links / own) for own, by_links in figures]
        far = sum(ratio > FAR for ratio in ratios)
        if far:
            most = ratios.index(max(ratios))
            (own, by_links), pair = figures[most], measured[most]
            lines.append(
                f"{far} of {len(measured)} pairs measured more than a quarter off what their links say together, most "
                f"of all {pair.a}-{pair.b} {own:.4g} {unit}, by its links {by_links:.4g} {unit}: pairs over the same "
                "links are not alike"
            )
    return lines
