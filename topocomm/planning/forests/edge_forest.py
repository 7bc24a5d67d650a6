"""Trees for values that are not long, on one host whose pairs are unlike: each chunk by the edges that complete first.

Packed trees (`forest.py`, `port_forest.py`) have the most bytes a second; here what counts is when the last chunk is
there, latency and bytes together. A reduce goes the way of the broadcast back, last message first.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.collectives import Collective
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.forests.linear_program.packing import Pair
from topocomm.planning.forests.tree import Edge, Tree
from topocomm.planning.forests.tree_schedule import schedule_of, whole_rows
from topocomm.planning.routing.earliest_edges import earliest_edges
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule

CHUNKS = 8
"""Most chunks: more take as long to plan, and what is long enough for them goes by packed trees."""


def edge_forest(
    collective: Collective, paths: PathFinder, endpoints: Sequence[str], rows: int, row_bytes: int
) -> Schedule | None:
    """Return the schedule of a broadcast, or of a reduce for a commutative operator; None where there are no edges."""
    count = min(CHUNKS, rows)
    order = earliest_edges(endpoints, paths, [collective.root] * count, rows * row_bytes / count) if count else None
    if order is None:
        return None
    network, reduces = network_of(paths, endpoints), collective.name == "reduce"
    number = {device: index for index, device in enumerate(network.devices)}
    edges: list[list[Edge]] = [[] for _ in range(count)]
    turns = {}
    for round_, chunk, src, dst in order.messages.tolist():
        route = paths.cheapest(endpoints[src], endpoints[dst]).devices
        edges[chunk].append(Edge(src, dst, tuple(number[device] for device in route)))
        message = (chunk, dst, src) if reduces else (chunk, src, dst)
        turns[message] = (order.rounds - 1 - round_ if reduces else round_, 0)
    trees = [Tree(collective.root, own) for own in edges]
    pairs = [Pair(tree, None) if reduces else Pair(None, tree) for tree in trees]
    return schedule_of(list(zip(whole_rows(rows, [1] * count), pairs, strict=True)), collective, network, paths, turns)
