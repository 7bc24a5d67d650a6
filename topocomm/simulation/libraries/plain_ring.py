"""A ring in rank order, one message a round: what every library has in some form, without protocol or channels."""

from __future__ import annotations

import numpy as np

from topocomm.planning.cost.simulated_work import Work, WorkBuilder
from topocomm.planning.schedule.schedule import split_rows
from topocomm.simulation.libraries.library_algorithm import LibraryAlgorithm
from topocomm.topology.model import Topology


def ring_work(topology: Topology, collective: str, payload_bytes: int, ranks: tuple[str, ...]) -> Work:
    """Return the messages of a ring: P - 1 rounds to fold each of P chunks, P - 1 to spread them."""
    count = len(ranks)
    chunk_bytes = np.array([size for _, size in split_rows(payload_bytes, count)], dtype=np.int64)
    rank = np.arange(count)
    builder = WorkBuilder(ranks)
    sent = None
    for round_ in range(2 * (count - 1) if collective == "allreduce" else count - 1):
        sent = builder.send(
            rank,
            (rank + 1) % count,
            chunk_bytes[(rank - round_) % count],
            after=None if sent is None else np.roll(sent, 1),
            round_=round_,
            label=f"{collective} ring",
        )
    return builder.build()


ALGORITHMS = (
    LibraryAlgorithm(
        "ring", "a ring in rank order, one message a round", ("allreduce", "allgather", "reduce_scatter"), ring_work
    ),
)
