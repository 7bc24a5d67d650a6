"""Broadcast of long payloads as scatter and allgather (Barnett, Payne, van de Geijn 1995).

The root scatters one chunk per rank down a binomial tree, then all gather, by a ring or by dissemination: every rank
sends about twice the payload over P, not the payload log2 P times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topocomm.planning.algorithms.multiport import powers_below
from topocomm.planning.algorithms.ring import spread_around
from topocomm.planning.schedule.schedule import Schedule, split_rows
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def scatter_ring_broadcast(ranks: int, rows: int, root: int) -> Schedule:
    """ceil(log2 P) + P - 1 rounds, all links of the ring busy at once."""
    return _scatter_allgather(ranks, rows, root, spread_around)


def scatter_dissemination_broadcast(ranks: int, rows: int, root: int) -> Schedule:
    """2 ceil(log2 P) rounds."""
    return _scatter_allgather(ranks, rows, root, disseminate)


def _scatter_allgather(ranks: int, rows: int, root: int, gather: Callable[..., None]) -> Schedule:
    build = ScheduleBuilder(ranks, split_rows(rows, min(ranks, rows) if rows else ranks), contributors=[root])
    count = len(build.chunks)
    held: list[dict[int, int]] = [{} for _ in range(ranks)]
    held[root] = dict.fromkeys(range(count), 0)
    rounds = (ranks - 1).bit_length()
    for round_ in range(rounds):
        distance = 1 << (rounds - 1 - round_)
        for near in range(0, ranks - distance, 2 * distance):  # relative to the root: chunk c belongs to root + c
            source, target = (root + near) % ranks, (root + near + distance) % ranks
            for chunk in range(near + distance, min(near + 2 * distance, count)):
                held[target][chunk] = build.send(round_, source, held[source][chunk], target, chunk=chunk)
    gather(build, [(root + chunk) % ranks for chunk in range(count)], held, first_round=rounds)
    build.output_everywhere(held)
    return build.build()


def disseminate(build: ScheduleBuilder, owners: Sequence[int], held: list[dict[int, int]], *, first_round: int) -> None:
    """Send every chunk from its owner to all ranks that do not hold it, and add the slots to `held`."""
    ranks = build.ranks
    for round_, width in enumerate(powers_below(ranks, 2), start=first_round):
        for chunk, owner in enumerate(owners):
            for offset in range(min(width, ranks - width)):
                source = (owner - offset) % ranks
                target = (source - width) % ranks
                if chunk not in held[target]:
                    held[target][chunk] = build.send(round_, source, held[source][chunk], target, chunk=chunk)
