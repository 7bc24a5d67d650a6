"""Memory of a schedule when the ranks of a host map one memory: nothing is copied between them.

Every rank owns a range of its host's memory for its contribution, the results of its combines and messages from other
hosts, each written once per call. Transfers within the host are read where they were written: a rank publishes the
number of its stages that are done, and readers wait for that count. Transfers between hosts stay messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topocomm.planning.program.slot_memory import Stage, output_pieces, stages_of
from topocomm.planning.schedule.schedule import Piece, Place, Schedule, input_pieces


@dataclass(frozen=True)
class SharedProgram:
    """The program of one rank.

    Attributes:
        stages: Receives from ranks of its host are waits.
        waits: For every stage, (rank of the host, stages of that rank that must be done).
        readers: Other ranks of the host that read from this rank's range.
        offsets: Byte offset in the host's memory of every piece that the rank touches.
    """

    stages: tuple[Stage, ...]
    waits: tuple[tuple[tuple[int, int], ...], ...]
    readers: tuple[int, ...]
    offsets: dict[Piece, int]
    input_pieces: tuple[Piece, ...]
    output_pieces: tuple[Piece, ...]
    total_bytes: int


def shared_program(
    schedule: Schedule, rank: int, chunk_bytes: Callable[[int], int], align: int, hosts: Sequence[int] = ()
) -> SharedProgram:
    """Return the program of one rank of a verified schedule; every rank of its host computes the same places.

    `chunk_bytes` returns the packed bytes of a chunk by its index; offsets are multiples of `align` bytes; `hosts` has
    the host of every rank by number, and is empty where all are on one.
    """
    hosts = tuple(hosts) or (0,) * schedule.ranks
    sizes = {c: -(-chunk_bytes(c) // align) * align for c in range(len(schedule.chunks))}
    places, owners, total = _places(schedule, sizes, hosts, hosts[rank])
    stages = stages_of(schedule, rank)
    sent_in = [  # (round, destination, path) -> index of the stage that sends it
        {key: index for index, stage in enumerate(stages_of(schedule, source)) for key in stage.sends}
        for source in range(schedule.ranks)
    ]
    waits = []
    for stage in stages:
        needed: dict[int, int] = {}
        for round_, peer, path in stage.receives:
            if hosts[peer] == hosts[rank]:
                done = sent_in[peer][round_, rank, path] + 1
                needed[peer] = max(needed.get(peer, 0), done)
        waits.append(tuple(sorted(needed.items())))
    readers = {reader for (reader, _, _), owner in owners.items() if owner == rank} - {rank}
    return SharedProgram(
        stages=tuple(stages),
        waits=tuple(waits),
        readers=tuple(sorted(readers)),
        offsets={(slot, chunk): at for (owner, slot, chunk), at in places.items() if owner == rank},
        input_pieces=input_pieces(schedule, rank),
        output_pieces=output_pieces(schedule, rank),
        total_bytes=total,
    )


def _places(
    schedule: Schedule, sizes: dict[int, int], hosts: Sequence[int], host: int
) -> tuple[dict[Place, int], dict[Place, int], int]:
    """Offset of every place on a host, the rank in whose range it is, and the bytes of all."""
    own: list[list[Place]] = [[] for _ in range(schedule.ranks)]
    for rank in range(schedule.ranks):
        own[rank] += [(rank, *piece) for piece in input_pieces(schedule, rank)]
    for fold in schedule.combine_list():
        own[fold.rank].append((fold.rank, fold.out_slot, fold.chunk))
    moves = schedule.transfer_list()
    for move in moves:
        if hosts[move.src] != hosts[move.dst]:
            own[move.dst].append((move.dst, move.dst_slot, move.chunk))
    places: dict[Place, int] = {}
    owners: dict[Place, int] = {}
    top = 0
    for rank, written in enumerate(own):
        if hosts[rank] == host:
            for place in written:
                places[place], owners[place] = top, rank
                top += sizes[place[2]]
    for move in moves:  # in round order: a relayed value already has its place
        if hosts[move.src] == hosts[move.dst] == host:
            target, source = (move.dst, move.dst_slot, move.chunk), (move.src, move.src_slot, move.chunk)
            places[target], owners[target] = places[source], owners[source]
    return places, owners, top
