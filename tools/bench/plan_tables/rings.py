"""One ring per GPU of a host, each with its own rails between hosts: NCCL's rings on hosts with a switch.

Inside hosts they follow the order of the ranks, or zigzags that use the links of a full mesh alike, but for those that
close the rings of a single host; the better of the two counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topocomm import Topology
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.schedule.schedule import Combine, Schedule, Transfer, make_schedule, split_rows
from topocomm.planning.schedule.transforms import relabelled

MOST_RANKS = 128


def rings_gb_per_s(topology: Topology, rows: int, row_bytes: int) -> float | None:
    """Return the throughput of an allreduce in such rings; None above the rank limit, or without a route."""
    ends = topology.endpoints
    if len(ends) > MOST_RANKS:
        return None
    try:
        found = [
            Cost(side_by_side(orders, rows), ends, PathFinder(topology), row_bytes=row_bytes).throughput_gb_per_s
            for orders in (ring_orders(topology, around), ring_orders(topology, zigzag))
        ]
    except NoRouteError:
        return None
    return max((one for one in found if one is not None), default=None)


def around(count: int) -> list[int]:
    """0, 1, 2, ..."""
    return list(range(count))


def zigzag(count: int) -> list[int]:
    """0, -1, 1, -2, 2, ... (Walecki): begun at every GPU these take every pair of GPUs once each way."""
    return [-(i + 1) // 2 if i % 2 else i // 2 for i in range(count)]


def ring_orders(topology: Topology, inside: Callable[[int], list[int]]) -> list[list[int]]:
    """Orders of the ranks: a ring goes through every other host backwards, so hosts hand over on one rail."""
    hosts: dict[str, list[int]] = {}
    for rank, end in enumerate(topology.endpoints):
        hosts.setdefault(topology.by_id[end].host, []).append(rank)
    orders = []
    for ring in range(min(map(len, hosts.values()))):
        order: list[int] = []
        for turn, ranks in enumerate(hosts.values()):
            steps = [ranks[(ring + step) % len(ranks)] for step in inside(len(ranks))]
            order += steps[::-1] if turn % 2 else steps
        orders.append(order)
    return orders


def side_by_side(orders: Sequence[Sequence[int]], rows: int) -> Schedule:
    """Build one ring per order, each with a share of the rows."""
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
