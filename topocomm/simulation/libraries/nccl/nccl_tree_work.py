"""NCCL's double binary trees over hosts as work for the simulator."""

from __future__ import annotations

import numpy as np

from topocomm.planning.cost.simulated_work import NO_TASK, Work, WorkBuilder
from topocomm.planning.libraries.job_shape import JobShape
from topocomm.planning.libraries.nccl_choice import PROTOCOLS
from topocomm.planning.libraries.nccl_times import CHUNK_BYTES
from topocomm.simulation.libraries.nccl.nccl_call import NcclCall
from topocomm.simulation.libraries.nccl.nccl_rings import ring_orders


def tree_work(call: NcclCall) -> Work:
    """Return the messages of double binary trees over hosts, with chains inside them, up and then down.

    The first chunk goes hop by hop; all others are one message an edge, a pipeline in its steady state: no edge is
    faster than the narrowest, since buffers between edges are few chunks long.
    """
    shape, rates = call.shape, call.rates(ring=False)
    first = min(call.payload_bytes / rates.count, CHUNK_BYTES[PROTOCOLS.index(call.protocol)])
    builder = WorkBuilder(shape.ranks)
    orders = ring_orders(call.topology, shape)
    trees = [edges for order in orders for edges in trees_along(shape, order)]
    chunk = first * rates.count / len(trees)
    rest = max(call.payload_bytes / len(trees) - chunk, 0.0)
    steady = rates.narrowest * call.figures["nccl.tree_share"] / 2e3 * rates.count / len(trees)
    for edges in trees:
        most = call.channel_gb_per_s() * rates.count / len(trees)
        _send_tree(builder, call, edges, chunk, rest, (most, steady))
    return builder.build()


def _send_tree(
    builder: WorkBuilder,
    call: NcclCall,
    edges: list[list[tuple[int, int]]],
    chunk: float,
    rest: float,
    most: tuple[float, float],
) -> None:
    """Add the messages of one tree, level by level up, then down; `most`: payload GB/s of first chunks, of others."""
    rates = call.rates(ring=False)
    arrived: dict[int, list[int]] = {}
    levels = [[(child, parent) for child, parent in level] for level in edges]
    levels += [[(parent, child) for child, parent in level] for level in reversed(edges)]
    for round_, level in enumerate(levels):
        src, dst = np.array(level).T
        far = call.is_far(src, dst)
        wire = call.wire(far)
        most_waits = max(1, *(len(arrived.get(rank, ())) for rank in src.tolist()))
        waits = np.full((len(level), most_waits), NO_TASK)
        for row, rank in enumerate(src.tolist()):
            waits[row, : len(arrived.get(rank, ()))] = arrived.get(rank, [])
        head = builder.send(
            src,
            dst,
            np.ceil(chunk * wire),
            after=waits,
            before_us=np.where((waits == NO_TASK).all(axis=1), call.figures[f"nccl.start_us.{call.protocol}"], 0.0),
            latency_us=np.where(far, rates.across_us, rates.inside_us),
            most_gb_per_s=most[0] * wire,
            round_=round_,
            label=f"allreduce tree {call.protocol}",
        )
        if rest:
            sizes = np.ceil(rest * wire)
            builder.send(src, dst, sizes, after=head, latency_us=0.0, most_gb_per_s=most[1] * wire, label="following")
        is_up = round_ < len(edges)
        for rank, task in zip(dst.tolist(), head.tolist(), strict=True):
            arrived[rank] = [*arrived.get(rank, []), task] if is_up else [task]


def trees_along(shape: JobShape, order: list[int]) -> list[list[list[tuple[int, int]]]]:
    """Return the trees along one ring's order: levels of (child, parent) ranks, leaves first.

    Chains lead to the first rank of each host's part of the order, binary trees over hosts from there. The second tree
    is that of the hosts shifted by one, so that leaves of one are inside the other (Sanders, Speck, Träff, Parallel
    Computing 35 (2009) 581-594).
    """
    size, hosts = shape.per_host, shape.hosts
    chains = [
        [(order[host * size + place], order[host * size + place - 1]) for host in range(hosts)]
        for place in range(size - 1, 0, -1)
    ]
    above: dict[int, list[tuple[int, int]]] = {}
    for place in range(1, hosts):
        low = place & -place
        parent = (place & ~low) | (low << 1)
        above.setdefault(low, []).append((place, parent if parent < hosts else place & ~low))
    trees = []
    for shift in range(2 if hosts > 1 else 1):
        between = [
            [(order[(a + shift) % hosts * size], order[(b + shift) % hosts * size]) for a, b in above[low]]
            for low in sorted(above)
        ]
        trees.append([*chains, *between])
    return trees
