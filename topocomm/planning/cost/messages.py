"""The messages of a Schedule, and their routes on a machine.

Entries with the same round, source, destination and path are one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints, Routes, joined
from topocomm.planning.schedule.schedule import NO_PATH, IntTable, Schedule, number_keys, row_keys


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
    table = schedule.transfers
    of_transfer, first, payload_bytes = _grouped(table, chunk_bytes)
    round_, src, dst, path = (table[first, column].astype(np.int64) for column in (0, 1, 3, 6))
    return Messages(round_, src, dst, path, payload_bytes, of_transfer)


def _grouped(table: IntTable, chunk_bytes: Ints) -> tuple[Ints, Ints, Ints]:
    """The message of each transfer; and of each message the first transfer, in rising order, and the bytes."""
    try:
        from topocomm.native._native import group_messages
    except ImportError:
        return _grouped_plainly(table, chunk_bytes)
    whole = np.ascontiguousarray(chunk_bytes, dtype=np.int64)
    of_transfer, first, payload_bytes = (np.empty(len(table), dtype=np.int64) for _ in range(3))
    count = group_messages(np.ascontiguousarray(table), whole, of_transfer, first, payload_bytes)
    return of_transfer, first[:count], payload_bytes[:count].copy()


def _grouped_plainly(table: IntTable, chunk_bytes: Ints) -> tuple[Ints, Ints, Ints]:
    """As `_grouped`, without the compiled part."""
    keys = row_keys(*(table[:, column] for column in (0, 1, 3, 6)))
    begins = np.flatnonzero(np.diff(keys, prepend=-1))  # of runs, since most transfers of a message follow each other
    first, inverse = number_keys(keys[begins])
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    of_transfer = np.repeat(number[inverse], np.diff(begins, append=len(keys)))
    payload_bytes = np.zeros(len(order), dtype=np.int64)
    np.add.at(payload_bytes, of_transfer, chunk_bytes[table[:, 5]])
    return of_transfer, begins[first[order]], payload_bytes


def routes_of(messages: Messages, schedule: Schedule, endpoints: Sequence[str], paths: PathFinder) -> Routes:
    """Return the route of every message: along its path, or the cheapest; raises as `distinct_routes`."""
    routes, which = distinct_routes((messages.src, messages.dst, messages.path), endpoints, schedule.paths, paths)
    return routes.take(which)


def distinct_routes(
    columns: Sequence[NDArray[np.integer]], devices: Sequence[str], ways: Sequence[Sequence[str]], paths: PathFinder
) -> tuple[Routes, Ints]:
    """Return the routes of messages, each once, and the index of every message's route among them.

    Args:
        columns: Source and destination of every message, indices into `devices`, and its path, an index into `ways` or
            NO_PATH for the cheapest route.
        devices: Device ids.
        ways: Device ids from source to destination.
        paths: The routes of the machine.

    Raises:
        NoRouteError: No route joins the ends of a message.
        PlanError: A path does not lead from one to the other.
    """
    first, inverse = number_keys(row_keys(*columns))
    src, dst, way = (column[first].astype(np.int64) for column in columns)
    cheapest = way == NO_PATH
    found = paths.routes(devices, src[cheapest], dst[cheapest])
    for missing in np.flatnonzero(np.isinf(found.latency_us))[:1]:
        paths.cheapest(devices[src[cheapest][missing]], devices[dst[cheapest][missing]])  # raises with the reason
    if cheapest.all():
        return found, inverse
    explicit = [
        paths.explicit(ways[number], devices[a], devices[b])
        for a, b, number in zip(*(column[~cheapest].tolist() for column in (src, dst, way)), strict=True)
    ]
    place = np.empty(len(first), dtype=np.int64)
    place[cheapest], place[~cheapest] = np.arange(len(found)), len(found) + np.arange(len(explicit))
    return joined([found, paths.columns(explicit)]), place[inverse]


def chunk_bytes(schedule: Schedule, row_bytes: int) -> Ints:
    """Return int64 [chunks]: bytes of each chunk."""
    return np.array([rows * row_bytes for _, rows in schedule.chunks], dtype=np.int64)
