"""Where the values of a schedule live when all ranks map one memory: nothing is copied between ranks.

Every rank owns a range. Its contribution and the results of its combines are written there, once per call; what a
transfer moves is read where it was written. A rank publishes how many of its stages are done, and whoever needs a
value waits for that count. No range is used twice within a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topocomm.planning.buffers import Piece, Stage, output_pieces, stages_of
from topocomm.planning.schedule import Schedule

Place = tuple[int, int, int]


@dataclass(frozen=True)
class SharedProgram:
    """One rank's part.

    Attributes:
        stages: What it does; a stage's receives are waits.
        waits: For every stage, (rank, stages of that rank that must be done).
        offsets: Byte offset in the memory of all ranks of every piece it touches.
        input_pieces: Its contribution, by chunk.
        output_pieces: Its result, by chunk.
        total_bytes: Bytes of the memory of all ranks.
    """

    stages: tuple[Stage, ...]
    waits: tuple[tuple[tuple[int, int], ...], ...]
    offsets: dict[Piece, int]
    input_pieces: tuple[Piece, ...]
    output_pieces: tuple[Piece, ...]
    total_bytes: int


def shared_program(schedule: Schedule, rank: int, chunk_bytes: Callable[[int], int], align: int) -> SharedProgram:
    """The part of `rank`; every rank computes the same places."""
    sizes = {c: -(-chunk_bytes(c) // align) * align for c in range(len(schedule.chunks))}
    places, total = _places(schedule, sizes)
    stages = stages_of(schedule, rank)
    sent_in = _sending_stages(schedule)
    waits = []
    for stage in stages:
        needed: dict[int, int] = {}
        for round_, peer, path in stage.receives:
            done = sent_in[peer][round_, rank, path] + 1
            needed[peer] = max(needed.get(peer, 0), done)
        waits.append(tuple(sorted(needed.items())))
    return SharedProgram(
        stages=tuple(stages),
        waits=tuple(waits),
        offsets={(slot, chunk): at for (owner, slot, chunk), at in places.items() if owner == rank},
        input_pieces=tuple((slot, c) for r, slot, _ in schedule.inputs.tolist() if r == rank for c in sizes),
        output_pieces=output_pieces(schedule, rank),
        total_bytes=total,
    )


def _places(schedule: Schedule, sizes: dict[int, int]) -> tuple[dict[Place, int], int]:
    """Offset of every (rank, slot, chunk): its own bytes, or those of the value that a transfer brought there."""
    own: list[list[Place]] = [[] for _ in range(schedule.ranks)]
    for rank, slot, _ in schedule.inputs.tolist():
        own[rank] += [(rank, slot, chunk) for chunk in sizes]
    for fold in schedule.combine_list():
        own[fold.rank].append((fold.rank, fold.out_slot, fold.chunk))
    places: dict[Place, int] = {}
    top = 0
    for written in own:
        for place in written:
            places[place] = top
            top += sizes[place[2]]
    for move in schedule.transfer_list():  # in round order: a relayed value already has its place
        places[move.dst, move.dst_slot, move.chunk] = places[move.src, move.src_slot, move.chunk]
    return places, top


def _sending_stages(schedule: Schedule) -> list[dict[tuple[int, int, int], int]]:
    """For every rank: (round, destination, path) -> index of the stage that sends it."""
    found = []
    for rank in range(schedule.ranks):
        stages = stages_of(schedule, rank)
        found.append({key: index for index, stage in enumerate(stages) for key in stage.sends})
    return found
