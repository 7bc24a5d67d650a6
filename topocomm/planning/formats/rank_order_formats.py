"""An order of ranks in the forms that launchers and torch take.

A launcher places processes on hosts and cores; which GPU a process takes it decides itself, most often by its local
rank. So an order within a host that is not that of its GPUs needs `CUDA_VISIBLE_DEVICES` as well, which is said.
"""

from __future__ import annotations

from topocomm.errors import PlanError
from topocomm.planning.report.rank_order import Order
from topocomm.topology.model import Topology


def map_by(order: Order, topology: Topology) -> str:
    """The options of mpirun that give the same order.

    Raises:
        PlanError: Only a rankfile can say it.
    """
    rows: dict[str, list[str]] = {}
    for end in order.ranks:
        rows.setdefault(topology.by_id[end].host, []).append(end)
    counts = {len(own) for own in rows.values()}
    place = {end: index for index, end in enumerate(topology.endpoints)}
    straight = all(own == sorted(own, key=place.__getitem__) for own in rows.values())
    if len(counts) != 1 or not straight:
        why = "hosts have different numbers of ranks" if len(counts) != 1 else "the order within a host is another"
        raise PlanError(f"map-by: {why} than --map-by can say; only a rankfile can, use --format rankfile")
    (count,) = counts
    if order.ranks == tuple(end for own in rows.values() for end in own):
        return f"--map-by ppr:{count}:node --rank-by slot\n"
    if order.ranks == tuple(own[index] for index in range(count) for own in rows.values()):
        return f"--map-by ppr:{count}:node --rank-by node\n"
    raise PlanError(
        "map-by: hosts alternate in a way that --map-by cannot say; only a rankfile can, use --format rankfile"
    )


def devicemesh(order: Order, topology: Topology) -> str:
    """A list for torch's DeviceMesh: the present rank of every new rank."""
    present = {end: rank for rank, end in enumerate(order.given)}
    return f"{[present[end] for end in order.ranks]}\n"


def visible_gpus(ranks: tuple[str, ...], topology: Topology) -> dict[str, list[int]]:
    """The GPUs of each host by their number there, in the order of its ranks."""
    place: dict[str, int] = {}
    counts: dict[str, int] = {}
    for end in topology.endpoints:
        host = topology.by_id[end].host
        place[end] = counts.get(host, 0)
        counts[host] = place[end] + 1
    found: dict[str, list[int]] = {}
    for end in ranks:
        if topology.by_id[end].kind == "gpu":
            found.setdefault(topology.by_id[end].host, []).append(place[end])
    return found
