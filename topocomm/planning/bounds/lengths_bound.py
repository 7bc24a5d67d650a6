"""Bounds of values that are only moved, by lengths of links: no way of a pair is shorter than the shortest.

Links have lengths and ports weights. What every pair exchanges, by the length of its shortest way, is at most what
links and ports carry in the time, by length. Why it holds: docs/concepts/cost-models.md, section Bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topocomm.planning.bounds.demand import Demand
from topocomm.planning.bounds.machine_columns import Floats, Machine
from topocomm.planning.bounds.matchings_bound import MOST_MATCHED_ENDS, PricedMatchings, priced_matchings
from topocomm.planning.bounds.rounds_bound import Bound, witness_of
from topocomm.planning.bounds.slow_sides import SlowSide, slow_sides
from topocomm.planning.bounds.time.fastest_links import ids_of
from topocomm.planning.bounds.time.time_bound import Crossing
from topocomm.planning.collectives import PARTS_GIVEN
from topocomm.planning.forests.linear_program.integer_network import Network, network_of
from topocomm.planning.forests.linear_program.pair_flow import Lengths, least_lengths
from topocomm.planning.forests.linear_program.symmetry import symmetry_for
from topocomm.planning.routing.paths import PathFinder

MOST_ENDS, MOST_ORBITS = 256, 1 << 12
"""Most endpoints whose lengths are a linear program, and most pairs of them that no symmetry maps onto each other."""
BETTER = 1 - 1e-6
"""Ratio to the bound of a cut, which has the shorter witness, from which one by lengths is kept."""


class LengthsBounds(NamedTuple):
    """Bound of the throughput, and of the time with ports."""

    throughput: Bound | None
    time: Crossing | None


def lengths_bounds(demand: Demand, machine: Machine, paths: PathFinder, ports: int, most: Bound) -> LengthsBounds:
    """Return the bounds of a gather, scatter or alltoall; None where there is none, or `most` is no greater."""
    wanted = _between(demand, machine)
    if wanted is None or not wanted.any() or not 1 < len(machine.ends) <= MOST_ENDS:
        return LengthsBounds(None, None)
    network = network_of(paths, [machine.ids[end] for end in machine.ends.tolist()])
    symmetry = symmetry_for(network, [paths.topology.by_id[device].host for device in network.devices], wanted)
    if symmetry is None or len(machine.ends) ** 2 > MOST_ORBITS * len(symmetry.elements):
        return LengthsBounds(None, None)
    throughput = None
    sides, borders = slow_sides(machine)
    of_links = least_lengths(network, wanted, 0, symmetry)
    of_ports = least_lengths(network, wanted, ports, symmetry, borders)
    if of_links is not None and most.value and of_links.gb_per_s < most.value * BETTER:
        throughput = Bound(
            of_links.gb_per_s,
            f"what every pair exchanges passes links of a length, which carry {of_links.gb_per_s:g} GB/s of payload",
            witness_of("throughput", "lengths", links=_links(network, of_links)),
        )
    if of_ports is None:
        return LengthsBounds(throughput, None)
    cheapest_us = machine.cheapest_us()
    if ports == 1 and network.ends <= MOST_MATCHED_ENDS:
        found = priced_matchings(network, paths, wanted)
        if found is not None and found.gb_per_s < of_ports.gb_per_s * BETTER:
            return LengthsBounds(throughput, _by_matchings(network, cheapest_us, found))
    named = {"links": _links(network, of_ports), "ports": _ports(network, of_ports)}
    if of_ports.prices.any():
        named["borders"] = _borders(machine, sides, of_ports)
    return LengthsBounds(
        throughput,
        Crossing(
            cheapest_us,
            of_ports.gb_per_s,
            f"what every pair exchanges passes {_in_words(named)}, which carry {of_ports.gb_per_s:g} GB/s of payload",
            witness_of("time", "lengths", cheapest_us=cheapest_us, **named),
        ),
    )


def _by_matchings(network: Network, cheapest_us: float, found: PricedMatchings) -> Crossing:
    ids = network.devices
    links = [(ids[src], ids[dst]) for src, dst in network.links]
    prices = [[ids[src], ids[dst], price] for (src, dst), price in found.prices.items()]
    matchings = [
        [[[ids[src], ids[dst]] for src, dst in sends], [[*links[at], float(own[at])] for at in np.flatnonzero(own)]]
        for sends, own in found.lengths.items()
    ]
    return Crossing(
        cheapest_us,
        found.gb_per_s,
        f"messages of {len(prices)} pairs have prices of which one port a rank carries no more at once than by "
        f"{found.gb_per_s:g} GB/s of payload",
        witness_of("time", "matchings", cheapest_us=cheapest_us, prices=prices, matchings=matchings),
    )


def _in_words(named: dict[str, list[list[Any]]]) -> str:
    words = {
        "links": "links of a length",
        "ports": "ports of a weight",
        "borders": "borders that are not full while no member on their side sends",
    }
    return " and ".join(f"{len(own)} {words[name]}" for name, own in named.items() if own)


def _between(demand: Demand, machine: Machine) -> Floats | None:
    """Return the payloads from each endpoint to each, float64 [ends, ends]; None where values are copied or folded."""
    pairs = demand.pairs
    if demand.name in ("gather", "scatter"):
        shares = demand.shares
        to_root = demand.name in PARTS_GIVEN
        alone = demand.gets if to_root else demand.gives
        pairs = np.outer(shares, alone) if to_root else np.outer(alone, shares)
    if pairs is None:
        return None
    at, ends = np.searchsorted(machine.ends, machine.place), len(machine.ends)
    keys = (at[:, None] * ends + at[None, :]).ravel()
    between = np.bincount(keys, pairs.ravel(), ends * ends).reshape(ends, ends)
    np.fill_diagonal(between, 0.0)
    return np.asarray(between, float)


def _links(network: Network, found: Lengths) -> list[list[Any]]:
    """Return [source, destination, length] of every link that has a length."""
    names = network.devices
    lengths = zip(network.links, found.lengths.tolist(), strict=True)
    return [[names[a], names[b], length] for (a, b), length in lengths if length]


def _ports(network: Network, found: Lengths) -> list[list[Any]]:
    """Return [endpoint, "out" or "in", weight] of every port that has a weight."""
    return [
        [network.devices[end], way, weight]
        for way, weights in zip(("out", "in"), found.weights.tolist(), strict=True)
        for end, weight in enumerate(weights)
        if weight
    ]


def _borders(machine: Machine, sides: Sequence[SlowSide], found: Lengths) -> list[list[Any]]:
    """Return [devices of a host, those of its part, "out" or "in", price] of every border that has a price."""
    return [
        [*(ids_of(machine, np.flatnonzero(own)) for own in side[:2]), "out" if side.out else "in", price]
        for side, price in zip(sides, found.prices.tolist(), strict=True)
        if price
    ]
