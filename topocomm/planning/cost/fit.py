"""Figures measured between endpoints, put onto the links of their routes.

A route's latency is the sum over its links and its bandwidth that of its narrowest link, so pairs say little of single
links: many figures of links give the same figures of pairs. Latencies keep the proportions that the links had, as far
as the pairs allow (the multiplicative algebraic reconstruction SMART, Byrne, IEEE Trans. Image Processing 2 (1993)
96-103: of all latencies that fit best, those nearest to the ones before in Kullback-Leibler distance). A link gets the
most that any pair got over it; that is all that is known of links that are never the narrowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Edge, Floats, Ints
from topocomm.topology.model import Link, Pair, Topology

STEPS = 2000
SMALL_US = 1e-3
"""Where a link of no latency begins: what is multiplied must not be 0."""
SAME = 1e-9
FAR = 1.25
"""How much more or less than measured what links say may be before a warning says so."""


class PairFigures(NamedTuple):
    """What was measured between two endpoints, either way."""

    a: str
    b: str
    latency_us: float
    gb_per_s: float


@dataclass(frozen=True, eq=False)
class _Rows:
    """The routes of measured pairs, both directions: row i crosses `links[of == i]`."""

    latency_us: Floats
    gb_per_s: Floats
    of: Ints
    links: Ints


def with_measured(topology: Topology, measured: Sequence[PairFigures], codes: Sequence[str | None]) -> Topology:
    """The topology with what was measured on its pairs and on the links that their routes cross.

    Links that no route crosses keep their figures. A warning names pairs whose links, put together, differ by more
    than a quarter from what was measured: then pairs over the same links do not behave alike.

    Args:
        topology: The machine.
        measured: One entry for each pair of endpoints.
        codes: Pair code of each, for those that the topology has no pair for.

    Raises:
        PlanError: A link has an impossible figure.
    """
    finder = PathFinder(topology)
    routed, rows = _rows(finder, measured)
    fitted = _links(topology, finder, rows)
    found = replace(topology, links=fitted, pairs=_pairs(topology, measured, codes))
    warnings = [*topology.warnings, *_without_route(measured, routed), *_far(found, [measured[i] for i in routed])]
    return replace(found, warnings=tuple(dict.fromkeys(warnings)))


def _rows(finder: PathFinder, measured: Sequence[PairFigures]) -> tuple[list[int], _Rows]:
    """(the pairs that links join, the routes of these)."""
    ends = tuple(dict.fromkeys(end for pair in measured for end in pair[:2]))
    number = {end: place for place, end in enumerate(ends)}
    a = np.array([number[pair.a] for pair in measured], dtype=np.int64)
    b = np.array([number[pair.b] for pair in measured], dtype=np.int64)
    there = finder.routes(ends, a, b)
    back = finder.routes(ends, b, a)
    routed = np.flatnonzero(np.isfinite(there.latency_us) & np.isfinite(back.latency_us))
    ways = [way.take(routed) for way in (there, back)]
    figures = [np.array([pair[column] for pair in measured], dtype=float)[routed] for column in (2, 3)]
    of = [np.repeat(np.arange(len(routed)) + len(routed) * which, way.hops) for which, way in enumerate(ways)]
    latency, rate = (np.concatenate([column, column]) for column in figures)
    return routed.tolist(), _Rows(latency, rate, np.concatenate(of), np.concatenate([way.links for way in ways]))


def _links(topology: Topology, finder: PathFinder, rows: _Rows) -> tuple[Link, ...]:
    """All links, those that are crossed with their new figures; parallel ones share as they did."""
    before = list(finder.links.values())
    latency = _latencies_us(np.array([figures.latency_us for figures in before]), rows)
    rate = np.zeros(len(before))
    np.maximum.at(rate, rows.links, rows.gb_per_s[rows.of])
    number: dict[Edge, int] = {edge: place for place, edge in enumerate(finder.links)}
    parallel: dict[Edge, int] = {}
    for link in topology.links:
        parallel[link[:2]] = parallel.get(link[:2], 0) + 1
    made = []
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
        made.append(link)
    return tuple(made)


def _latencies_us(start_us: Floats, rows: _Rows) -> Floats:
    """float64 [links]: latencies whose sums over the rows come nearest to those measured."""
    latency = np.maximum(start_us, SMALL_US)
    if not len(rows.of):
        return latency
    crossings = np.maximum(np.bincount(rows.links, minlength=len(latency)), 1)
    for _ in range(STEPS):
        sums = np.bincount(rows.of, latency[rows.links], minlength=len(rows.latency_us))
        missing = np.log(rows.latency_us / sums)
        step = np.bincount(rows.links, missing[rows.of], minlength=len(latency)) / crossings
        latency = latency * np.exp(step)
        if np.abs(step).max() < SAME:
            break
    return latency


def _pairs(topology: Topology, measured: Sequence[PairFigures], codes: Sequence[str | None]) -> tuple[Pair, ...]:
    """The pairs of the topology, those that were measured with these figures; new ones at the end."""
    known = {frozenset((pair.a, pair.b)): pair for pair in topology.pairs}
    for one, code in zip(measured, codes, strict=True):
        key = frozenset(one[:2])
        pair = known.get(key, Pair(one.a, one.b, code))
        known[key] = pair._replace(
            gb_per_s=one.gb_per_s,
            latency_us=one.latency_us,
            gb_per_s_source="measured",
            latency_us_source="measured",
        )
    return tuple(known.values())


def _without_route(measured: Sequence[PairFigures], routed: Sequence[int]) -> list[str]:
    joined = set(routed)
    alone = [f"{pair.a}-{pair.b}" for place, pair in enumerate(measured) if place not in joined]
    if not alone:
        return []
    return [f"no links lead between {', '.join(alone[:8])}: what was measured there stands in the pairs only"]


def _far(found: Topology, measured: Sequence[PairFigures]) -> list[str]:
    """Says which pair's links come farthest from what was measured, where that is far."""
    finder = PathFinder(found)
    routes = [finder.cheapest(pair.a, pair.b) for pair in measured]
    latencies = [(pair.latency_us, route.latency_us) for pair, route in zip(measured, routes, strict=True)]
    rates = [(pair.gb_per_s, route.gb_per_s) for pair, route in zip(measured, routes, strict=True)]
    lines = []
    for what, figures in (("us", latencies), ("GB/s", rates)):
        times = [max(own / fitted, fitted / own) for own, fitted in figures]
        far = sum(one > FAR for one in times)
        if far:
            most = times.index(max(times))
            (own, fitted), pair = figures[most], measured[most]
            lines.append(
                f"{far} of {len(measured)} pairs measured more than a quarter off what their links say together, most "
                f"of all {pair.a}-{pair.b} {own:.4g} {what}, by its links {fitted:.4g} {what}: pairs over the same "
                "links are not alike"
            )
    return lines
