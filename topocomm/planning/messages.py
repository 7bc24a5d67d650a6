"""The messages of a Schedule on a machine: who needs what, over which route, and what it makes ready.

Entries with the same round, source, destination and path are one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topocomm.planning.paths import PathFinder, Route
from topocomm.planning.schedule import NO_PATH, Combine, Schedule

Place = tuple[int, int, int]
"""(rank, slot, chunk)."""


@dataclass(frozen=True)
class Message:
    """One message: places read at the source and written at the destination."""

    src_port: str
    dst_port: str
    route: Route
    payload_bytes: int
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]


@dataclass(frozen=True)
class Step:
    """One round: its messages in port order, then its combines."""

    messages: tuple[Message, ...]
    combines: tuple[Combine, ...]


def steps_of(schedule: Schedule, endpoints: Sequence[str], paths: PathFinder, row_bytes: int) -> list[Step]:
    """The rounds of a schedule with routes and sizes filled in.

    Args:
        schedule: The schedule; of a pipelined one, the rounds of one slice.
        endpoints: Endpoint id of each rank.
        paths: Routes on the machine.
        row_bytes: Bytes of one row of the payload.
    """
    chunk_bytes = [rows * row_bytes for _, rows in schedule.chunks]
    groups: list[dict[tuple[int, int, int], tuple[list[Place], list[Place]]]] = [{} for _ in range(schedule.rounds)]
    for round_, src, src_slot, dst, dst_slot, chunk, path in schedule.transfers.tolist():
        reads, writes = groups[round_].setdefault((src, dst, path), ([], []))
        reads.append((src, src_slot, chunk))
        writes.append((dst, dst_slot, chunk))
    combines: list[list[Combine]] = [[] for _ in range(schedule.rounds)]
    for fold in schedule.combine_list():
        combines[fold.round].append(fold)
    steps = []
    for group, folds in zip(groups, combines, strict=True):
        messages = []
        for (src, dst, path), (reads, writes) in group.items():
            a, b = endpoints[src], endpoints[dst]
            route = paths.cheapest(a, b) if path == NO_PATH else paths.explicit(schedule.paths[path], a, b)
            size = sum([chunk_bytes[place[2]] for place in reads])
            messages.append(Message(a, b, route, size, tuple(reads), tuple(writes)))
        steps.append(Step(tuple(messages), tuple(folds)))
    return steps
