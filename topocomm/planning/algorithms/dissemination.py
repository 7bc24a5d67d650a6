"""Dissemination (Bruck, Ho, Kipnis, Upfal, Weathersby 1997): ceil(log2 P) rounds for any P, each chunk moved once.

Allgather: in the round of distance w rank r, which holds the parts of r..r+w-1 (modulo P), gets those of the next
min(w, P-w) ranks from rank r+w. Reduce-scatter is the same run backwards, with folds in place of copies; its folds
join ranges that lie apart, so it is for commutative operators only.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.schedule import Schedule, part_chunks
from topocomm.planning.schedule_builder import ScheduleBuilder


def dissemination_allgather(parts: Sequence[int]) -> Schedule:
    """ceil(log2 P) rounds, several chunks a message."""
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks, owners=owners)
    held = build.own_parts()
    disseminate(build, owners, held, first_round=0)
    build.output_everywhere(held)
    return build.build()


def dissemination_reduce_scatter(parts: Sequence[int]) -> Schedule:
    """ceil(log2 P) rounds, P-1 chunks sent and folded a rank."""
    chunks, owners = part_chunks(parts)
    ranks = len(parts)
    build = ScheduleBuilder(ranks, chunks)
    held = [[0] * len(chunks) for _ in range(ranks)]
    for round_, (width, count) in enumerate(reversed(_widths(ranks))):
        for chunk, owner in enumerate(owners):
            for offset in range(count):
                target = (owner - offset) % ranks
                source = (target - width) % ranks
                arrived = build.send(round_, source, held[source][chunk], target, chunk=chunk)
                held[target][chunk] = build.fold(round_, target, [arrived, held[target][chunk]], chunk=chunk)
    for chunk, owner in enumerate(owners):
        build.output(owner, held[owner][chunk], chunk=chunk)
    return build.build()


def disseminate(build: ScheduleBuilder, owners: Sequence[int], held: list[dict[int, int]], *, first_round: int) -> None:
    """Bring every chunk from its owner to all ranks that do not hold it; adds the slots to `held`."""
    ranks = build.ranks
    for round_, (width, count) in enumerate(_widths(ranks), start=first_round):
        for chunk, owner in enumerate(owners):
            for offset in range(count):
                source = (owner - offset) % ranks
                target = (source - width) % ranks
                if chunk not in held[target]:
                    held[target][chunk] = build.send(round_, source, held[source][chunk], target, chunk=chunk)


def _widths(ranks: int) -> list[tuple[int, int]]:
    """(distance, parts that move over it) of every round of an allgather."""
    widths = [1 << k for k in range((ranks - 1).bit_length())]
    return [(width, min(width, ranks - width)) for width in widths]
