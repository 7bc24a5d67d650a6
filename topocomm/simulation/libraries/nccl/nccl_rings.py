"""The rings that NCCL finds: cycles over all ranks that use the links of hosts evenly, and leave by each port."""

from __future__ import annotations

from itertools import combinations

from topocomm.planning.libraries.job_shape import JobShape
from topocomm.topology.model import Topology

MOST_RINGS = 16
"""Most different rings; more channels run over the same ones."""
_MOST_PLACES = 12
"""Largest host whose exits are searched; larger ones have theirs evenly."""
_MOST_TRIES = 4000
"""Steps of the search for one cycle; up to 16 ranks it rarely needs a hundred."""


def ring_orders(topology: Topology, shape: JobShape) -> list[list[int]]:
    """Return rings as orders of rank numbers; all carry equal shares of the payload.

    Where hosts have direct links, a ring crosses a host on a cycle that shares no lane with another's. Over several
    hosts each ring leaves a host from another rank, so that all ports are used.
    """
    size = shape.per_host
    inside = [list(range(size))]
    if shape.peers and size > 2:
        inside = _cycles(topology, shape) or inside
    if shape.hosts == 1:
        return inside
    own = inside[0]
    return [
        [host * size + rank for host in range(shape.hosts) for rank in (*own[at:], *own[:at])]
        for at in _exits(own, min(max(shape.nics, 1), size, MOST_RINGS), shape.nics)
    ]


def _exits(own: list[int], rings: int, nics: int) -> tuple[int, ...]:
    """Places of a host's cycle at which rings enter it, such that they enter and leave by as many ports as there are.

    Rank r of a host is next to its port r * nics // ranks.
    """
    size = len(own)
    evenly = tuple(size * ring // rings for ring in range(rings))
    if rings in (1, size) or size > _MOST_PLACES:
        return evenly

    def ports(places: tuple[int, ...]) -> int:
        into = {own[at] * nics // size for at in places}
        out = {own[at - 1] * nics // size for at in places}
        return len(into) + len(out)

    return max((evenly, *combinations(range(size), rings)), key=ports)


def _cycles(topology: Topology, shape: JobShape) -> list[list[int]]:
    """Hamiltonian cycles of the direct links of the first host, each taking a lane of every link it crosses."""
    number = {end: rank for rank, end in enumerate(shape.ranks[: shape.per_host])}
    lanes: dict[tuple[int, int], int] = {}
    for link in topology.links:
        if link.kind == shape.inner and link.src in number and link.dst in number:
            edge = number[link.src], number[link.dst]
            lanes[edge] = lanes.get(edge, 0) + (link.lanes or 1)
    cycles: list[list[int]] = []
    while len(cycles) < MOST_RINGS:
        cycle = _cycle(lanes, shape.per_host)
        if cycle is None:
            break
        for edge in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            lanes[edge] -= 1
        cycles.append(cycle)
    return cycles


def _cycle(lanes: dict[tuple[int, int], int], n: int) -> list[int] | None:
    """A cycle over all ranks from rank 0 that crosses links with most lanes left first, or None."""
    way, tried = [0], 0

    def options(rank: int) -> list[int]:
        free = [other for other in range(n) if other not in way and lanes.get((rank, other), 0) > 0]
        return sorted(free, key=lambda other: (lanes[rank, other], -((other - rank) % n)))

    stack = [options(0)]
    while stack and tried < _MOST_TRIES:
        tried += 1
        if not stack[-1]:
            stack.pop()
            way.pop()
            continue
        way.append(stack[-1].pop())
        if len(way) == n and lanes.get((way[-1], 0), 0) > 0:
            return way
        stack.append(options(way[-1]))
    return None
