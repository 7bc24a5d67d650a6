"""Parts over the ways of a flow: cut in pieces, which go when their ports are free (`list_scheduling.py`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from topocomm.planning.algorithms.gossip_parts import carried
from topocomm.planning.collectives import Collective
from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.ways.list_scheduling import SAME_US, Piece, Send, backwards_schedule, list_schedule
from topocomm.planning.ways.member_ways import MemberWays

Block = tuple[int, int, int]
"""(giver, taker, rows)."""
MOST_BETWEEN = 1 << 20
"""More than the messages of any port."""


def blocks_of(collective: Collective) -> list[Block]:
    """Return the blocks of a gather, scatter or alltoall that have rows, as they follow each other; of none, all."""
    numbers, root = np.arange(len(collective.parts)), collective.root
    givers, takers = collective.givers(numbers).tolist(), collective.takers(numbers).tolist()
    if collective.name == "gather":
        takers = [root] * len(takers)
    if collective.name == "scatter":
        givers = [root] * len(givers)
    every = zip(givers, takers, collective.parts, strict=True)
    return [block for block in every if block[2] or not any(collective.parts)]


def way_schedule(
    blocks: Sequence[Block], ways: MemberWays, slices: int, row_bytes: int, *, root: int | None = None
) -> Schedule:
    """Return the schedule that moves all blocks, which follow each other in the payload, in about so many pieces each.

    A `root` gives all of them.
    """
    pieces: list[tuple[int, Piece]] = []
    owner: list[int] = []
    for block, (src, dst, rows) in enumerate(blocks):
        own = [(rows, Piece(0, ()))] if src == dst or not rows else ways.pieces((src, dst), rows, slices, row_bytes)
        pieces += own
        owner += [block] * len(own)
    rows_of = [rows for rows, _ in pieces]
    chunks = list(zip(accumulate(rows_of, initial=0), rows_of, strict=False))
    moving = [chunk for chunk, (_, piece) in enumerate(pieces) if piece.lines]
    own_pieces = [pieces[chunk][1] for chunk in moving]
    both = [list_schedule(ways.lines, own_pieces), backwards_schedule(ways.lines, own_pieces)]
    _, sends = min(both, key=lambda found: found[0])
    round_, line, chunk = in_rounds(ways, sends)
    ends = np.array(ways.ends, dtype=np.int64).reshape(-1, 2)[line]
    moves = np.stack([round_, *ends.T, np.array(moving, dtype=np.int64)[chunk]])
    schedule = carried(
        ways.lines.ranks,
        chunks,
        moves,
        givers=[blocks[block][0] for block in owner],
        takers=[blocks[block][1] for block in owner],
        root=root,
    )
    return with_paths(schedule, [ways.named[number] for number in line.tolist()])


def with_paths(schedule: Schedule, named: Sequence[tuple[str, ...]]) -> Schedule:
    """Return the schedule with the path of each transfer; of an empty one the cheapest."""
    numbers: dict[tuple[str, ...], int] = {}
    path = [numbers.setdefault(way, len(numbers)) if way else NO_PATH for way in named]
    if numbers:
        schedule.transfers[:, 6] = path
    return replace(schedule, paths=tuple(numbers))


def in_rounds(ways: MemberWays, sends: Sequence[Send], starts_us: Sequence[float] = (0.0,)) -> Ints:
    """Return (round, line, piece) of every message, int64 [3, n], by round.

    A round is at most one message of a port, or NIC, after those before. Where rounds of others begin at `starts_us`,
    it is the number of the last that began, times `MOST_BETWEEN`, and the number of the round among those since.
    """
    times_us = np.array([send.start_us for send in sends])
    at = np.searchsorted(np.array(starts_us), times_us + SAME_US, side="right") - 1
    last: dict[tuple[str, int], int] = defaultdict(lambda: -1)
    table = []
    for send, began in zip(sends, at.tolist(), strict=True):
        held = [("port", port) for port in ways.lines.held[send.line, :2].tolist()]
        held += [("nic", nic) for nic in ways.lines.nics[send.line]]
        held.append(("piece", send.piece))
        round_ = max(began * MOST_BETWEEN, 1 + max(last[each] for each in held))
        last.update(dict.fromkeys(held, round_))
        table.append((round_, send.line, send.piece))
    return np.array(sorted(table, key=lambda row: row[0]), dtype=np.int64).reshape(-1, 3).T
