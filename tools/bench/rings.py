"""As many rings as a host has GPUs, each over hosts on rails of its own: what NCCL runs where hosts have a switch.

Inside a host ring i follows the i-th of Walecki's zigzags, which together take every pair of GPUs once each way: so
links of a full mesh carry alike too, but for those that close the rings of a single host.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm import Topology
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.cost import cost_of
from topocomm.planning.paths import NoRouteError, PathFinder
from topocomm.planning.schedule import Combine, Schedule, Transfer, make_schedule, split_rows
from topocomm.planning.transforms import relabelled

MOST_RANKS = 128


def rings_gb_per_s(topology: Topology, rows: int, row_bytes: int) -> float | None:
    """Throughput of an allreduce in such rings; None on more ranks than are tried, or where no message has a route."""
    ends = topology.endpoints
    if len(ends) > MOST_RANKS:
        return None
    schedule = side_by_side(ring_orders(topology), rows)
    try:
        return cost_of(schedule, ends, PathFinder(topology), row_bytes=row_bytes).throughput_gb_per_s
    except NoRouteError:
        return None


def ring_orders(topology: Topology) -> list[list[int]]:
    """Orders of the ranks: a ring goes through every other host backwards, so hosts hand over on one rail."""
    hosts: dict[str, list[int]] = {}
    for rank, end in enumerate(topology.endpoints):
        hosts.setdefault(topology.by_id[end].host, []).append(rank)
    orders = []
    for ring in range(min(map(len, hosts.values()))):
        order: list[int] = []
        for turn, ranks in enumerate(hosts.values()):
            steps = [-(i + 1) // 2 if i % 2 else i // 2 for i in range(len(ranks))]  # 0, -1, 1, -2, 2, ...
            inside = [ranks[(ring + step) % len(ranks)] for step in steps]
            order += inside[::-1] if turn % 2 else inside
        orders.append(order)
    return orders


def side_by_side(orders: Sequence[Sequence[int]], rows: int) -> Schedule:
    """One ring for every order, each with its share of the rows."""
    chunks: list[tuple[int, int]] = []
    outputs: list[list[int]] = []
    transfers: list[Transfer] = []
    combines: list[Combine] = []
    for order, (low, size) in zip(orders, split_rows(rows, len(orders)), strict=True):
        ring, first = relabelled(ring_allreduce(len(order), size), order), len(chunks)
        chunks += [(low + start, length) for start, length in ring.chunks]
        outputs += [[rank, slot, first + chunk] for rank, slot, chunk in ring.outputs.tolist()]
        transfers += [move._replace(chunk=first + move.chunk) for move in ring.transfer_list()]
        combines += [fold._replace(chunk=first + fold.chunk) for fold in ring.combine_list()]
    inputs = [(rank, 0, rank) for rank in range(len(orders[0]))]
    return make_schedule(
        len(inputs), chunks, inputs=inputs, outputs=sorted(outputs), transfers=transfers, combines=combines
    )
