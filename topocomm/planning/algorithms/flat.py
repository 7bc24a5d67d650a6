"""Flat: every rank sends its value to every rank that needs it, which folds all values in rank order.

One hop of latency, P-1 messages a port: best where messages of one port overlap (a switch under LogGP, stores to mapped
memory) or P is tiny. Round i pairs rank r with r+i, so no endpoint has two messages in a round. `direct` splits the
payload: each chunk goes to its owner, which folds it once and sends it to all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topocomm.planning.schedule.schedule import Schedule, part_chunks, split_rows
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def flat_allreduce(ranks: int, rows: int) -> Schedule:
    """All-to-all exchange and a local fold: P-1 one-port rounds, one combine a rank."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    exchange(build)
    return build.build()


def exchange(build: ScheduleBuilder) -> None:
    """Send every value to all ranks, fold them there, and declare the results."""
    ranks = build.ranks
    held = [{rank: 0} for rank in range(ranks)]
    for step in range(1, ranks):
        for rank in range(ranks):
            target = (rank + step) % ranks
            held[target][rank] = build.send(step - 1, rank, 0, target)
    for rank, slots in enumerate(held):
        build.output(rank, build.fold(max(ranks - 2, 0), rank, [slots[source] for source in range(ranks)]))


def direct_allreduce(ranks: int, rows: int) -> Schedule:
    """Flat reduce-scatter, then flat allgather: 2(P-1) one-port rounds, one combine a chunk, rank order kept."""
    build = ScheduleBuilder(ranks, split_rows(rows, min(ranks, rows) if rows else ranks))
    owners = range(len(build.chunks))
    spread(build, owners, collect(build, owners), first_round=ranks - 1)
    return build.build()


def flat_reduce(ranks: int, rows: int, root: int) -> Schedule:
    """Every rank sends to the root, which folds once."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    return build.build([(root, collect(build, [root])[0])])


def flat_broadcast(ranks: int, rows: int, root: int) -> Schedule:
    """The root sends to every rank."""
    build = ScheduleBuilder(ranks, ((0, rows),), contributors=[root])
    spread(build, [root], [0], first_round=0)
    return build.build()


def flat_allgather(parts: Sequence[int]) -> Schedule:
    """Every rank sends its part to all: P-1 one-port rounds."""
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks, owners=owners)
    spread(build, owners, [0] * len(chunks), first_round=0)
    return build.build()


def reduce_scatter_by(collect: Callable[[ScheduleBuilder, Sequence[int]], list[int]], parts: Sequence[int]) -> Schedule:
    """Return the reduce-scatter by a function that folds every chunk at its owner and returns the slots by chunk."""
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks)
    for chunk, slot in enumerate(collect(build, owners)):
        build.output(owners[chunk], slot, chunk=chunk)
    return build.build()


def flat_scan(ranks: int, rows: int, *, own: bool) -> Schedule:
    """Every rank sends to all later ones, each of which folds once, its `own` value too or not: P-1 rounds."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    held: list[dict[int, int]] = [{rank: 0} if own else {} for rank in range(ranks)]
    for step in range(1, ranks):
        for rank in range(ranks - step):
            held[rank + step][rank] = build.send(step - 1, rank, 0, rank + step)
    for rank, slots in enumerate(held):
        if slots:
            build.output(rank, build.fold(max(rank - 1, 0), rank, [slots[source] for source in sorted(slots)]))
    return build.build()


def collect(build: ScheduleBuilder, owners: Sequence[int]) -> list[int]:
    """Send each chunk from all ranks to its owner, which folds in rank order; return the owners' slots by chunk."""
    ranks = build.ranks
    held = [{owner: 0} for owner in owners]
    for step in range(1, ranks):
        for chunk, owner in enumerate(owners):
            source = (owner - step) % ranks
            held[chunk][source] = build.send(step - 1, source, 0, owner, chunk=chunk)
    last = max(ranks - 2, 0)
    return [
        build.fold(last, owner, [held[chunk][source] for source in range(ranks)], chunk=chunk)
        for chunk, owner in enumerate(owners)
    ]


def spread(build: ScheduleBuilder, owners: Sequence[int], slots: Sequence[int], *, first_round: int) -> None:
    """Send each chunk from its owner to all ranks, and declare every copy a result."""
    held: list[dict[int, int]] = [{} for _ in range(build.ranks)]
    for chunk, owner in enumerate(owners):
        held[owner][chunk] = slots[chunk]
    for step in range(1, build.ranks):
        for chunk, owner in enumerate(owners):
            target = (owner + step) % build.ranks
            held[target][chunk] = build.send(first_round + step - 1, owner, slots[chunk], target, chunk=chunk)
    build.output_everywhere(held)
