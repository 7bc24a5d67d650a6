"""Flat: every rank sends its value to every rank that needs the result, which folds all of them in rank order.

One hop of latency, P-1 messages a port. Best where messages of one port overlap (a switch under LogGP, stores to
mapped memory) or P is tiny. Round i pairs rank r with r+i, so no endpoint has two messages in a round.
"""

from __future__ import annotations

from topocomm.planning.schedule import Schedule, ScheduleBuilder


def flat_allreduce(ranks: int, rows: int) -> Schedule:
    """All-to-all exchange and a local fold: P-1 one-port rounds, one combine a rank."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    held = [{rank: 0} for rank in range(ranks)]
    for step in range(1, ranks):
        for rank in range(ranks):
            target = (rank + step) % ranks
            held[target][rank] = build.send(step - 1, rank, 0, target)
    for rank in range(ranks):
        slots = [held[rank][source] for source in range(ranks)]
        build.output(rank, build.fold(max(ranks - 2, 0), rank, slots))
    return build.build()


def flat_reduce(ranks: int, rows: int, root: int) -> Schedule:
    """Every rank sends to the root, which folds once."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    held = {root: 0}
    for step in range(1, ranks):
        source = (root + step) % ranks
        held[source] = build.send(step - 1, source, 0, root)
    slots = [held[source] for source in range(ranks)]
    build.output(root, build.fold(max(ranks - 2, 0), root, slots))
    return build.build()


def flat_broadcast(ranks: int, rows: int, root: int) -> Schedule:
    """The root sends to every rank."""
    build = ScheduleBuilder(ranks, ((0, rows),), contributors=[root])
    build.output(root, 0)
    for step in range(1, ranks):
        target = (root + step) % ranks
        build.output(target, build.send(step - 1, root, 0, target))
    return build.build()
