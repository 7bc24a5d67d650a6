"""The messages of a Schedule, and their routes on a machine.

Entries with the same round, source, destination and path are one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints, Routes, joined
from topocomm.planning.schedule.schedule import NO_PATH, Schedule, row_keys


@dataclass(frozen=True, eq=False)
class Messages:
    """All messages of a schedule as columns of int64, in the order in which ports serve them.

    Attributes:
        path: Index into the schedule's paths, or NO_PATH.
        of_transfer: [transfers]: the message of each transfer.
    """

    round: Ints
    src: Ints
    dst: Ints
    path: Ints
    payload_bytes: Ints
    of_transfer: Ints

    def __len__(self) -> int:
        return len(self.round)


def messages_of(schedule: Schedule, chunk_bytes: Ints) -> Messages:
    """Return the messages of a schedule, of a pipeline those of one slice; `chunk_bytes` has each chunk's size."""
    table = schedule.transfers.astype(np.int64)
    columns = table[:, 0], table[:, 1], table[:, 3], table[:, 6]
    _, first, inverse = np.unique(row_keys(*columns), return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    of_transfer = number[inverse]
    payload_bytes = np.zeros(len(order), dtype=np.int64)
    np.add.at(payload_bytes, of_transfer, chunk_bytes[table[:, 5]])
    round_, src, dst, path = (column[first[order]] for column in columns)
    return Messages(round_, src, dst, path, payload_bytes, of_transfer)


def routes_of(messages: Messages, schedule: Schedule, endpoints: Sequence[str], paths: PathFinder) -> Routes:
    """Return the route of every message: along its path, or the cheapest.

    Raises:
        NoRouteError: No route joins the ends of a message.
        PlanError: A path does not lead from one to the other.
    """
    named = messages.path != NO_PATH
    cheapest = paths.routes(endpoints, messages.src[~named], messages.dst[~named])
    missing = np.flatnonzero(np.isinf(cheapest.latency_us))
    if len(missing):
        src, dst = messages.src[~named][missing[0]], messages.dst[~named][missing[0]]
        paths.cheapest(endpoints[src], endpoints[dst])  # raises with the reason
    if not named.any():
        return cheapest
    columns = messages.src[named], messages.dst[named], messages.path[named]
    _, first, inverse = np.unique(row_keys(*columns), return_index=True, return_inverse=True)
    explicit = [
        paths.explicit(schedule.paths[path], endpoints[src], endpoints[dst])
        for src, dst, path in zip(*(column[first].tolist() for column in columns), strict=True)
    ]
    which = np.empty(len(messages), dtype=np.int64)
    which[~named] = np.arange(len(cheapest))
    which[named] = len(cheapest) + inverse
    return joined([cheapest, paths.columns(explicit)]).take(which)


def chunk_bytes(schedule: Schedule, row_bytes: int) -> Ints:
    """Return int64 [chunks]: bytes of each chunk."""
    return np.array([rows * row_bytes for _, rows in schedule.chunks], dtype=np.int64)
