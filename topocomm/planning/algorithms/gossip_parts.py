"""Allgather and reduce-scatter of a gossip, written as columns: P ranks with a part each move P^2 chunks.

Which chunks a message carries follows from who tells whom: those that its source has and its destination lacks. Every
chunk spreads on a tree; run backwards it gathers on that tree. A chunk that arrives at a rank is in slot 1 there: a
place is a slot of one chunk, so all chunks use the same few slot numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Gossip, Traders
from topocomm.planning.schedule.range_tree import RangeTree
from topocomm.planning.schedule.schedule import NO_PATH, IntTable, Schedule, part_chunks, row_keys
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder, schedule_of_columns

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Told:
    """What every message brings that is new, message by message, chunks in order.

    Attributes:
        rounds: Of the gossip.
        round, src, dst, chunk: int64 [n].
        holds: bool [ranks, chunks]: what each rank has in the end.
    """

    rounds: int
    round: Ints
    src: Ints
    dst: Ints
    chunk: Ints
    holds: NDArray[np.bool_]


def gossip_allgather(gossip: Gossip, parts: Sequence[int]) -> Schedule:
    """Every rank ends with the chunks of all; a message carries those that its destination lacks."""
    chunks, owners = part_chunks(parts)
    told, owner = _told(gossip, len(parts), owners), np.array(owners, dtype=np.int64)
    src_slot = (told.src != owner[told.chunk]).astype(np.int64)
    here, chunk = np.nonzero(told.holds)
    ranks = np.arange(len(parts))
    found = schedule_of_columns(
        len(parts),
        chunks,
        inputs=np.stack([ranks, 0 * ranks, ranks], axis=1),
        outputs=np.stack([here, (here != owner[chunk]).astype(np.int64), chunk], axis=1),
        transfers=_columns(told.round, told.src, src_slot, told.dst, 1, told.chunk, NO_PATH),
        combines=np.zeros((0, 4), np.int64),
        operands=[],
    )
    return replace(found, owners=owners)


def gossip_reduce_scatter(gossip: Gossip, parts: Sequence[int], tree: RangeTree | None) -> Schedule:
    """The allgather of the same gossip run backwards: every chunk gathers at its owner along the tree it spread on.

    Args:
        gossip: Of an allgather: who would tell whom.
        parts: Rows that each rank gets.
        tree: The expression of every chunk, operands in rank order; None: every relay folds what it has got into one
            value. That keeps the rank order only where what is folded are always neighbours.
    """
    chunks, owners = part_chunks(parts)
    told = _told(gossip, len(parts), owners)
    if tree is None:
        return _folded_on_the_way(told, chunks, owners)
    build = ScheduleBuilder(len(parts), chunks)
    order = np.argsort(told.chunk, kind="stable")
    ends = np.searchsorted(told.chunk[order], np.arange(len(chunks) + 1))
    for chunk, owner in enumerate(owners):
        mine = order[ends[chunk] : ends[chunk + 1]][::-1]
        backwards: list[list[tuple[int, int]]] = [[] for _ in range(told.rounds)]
        for round_, src, dst in zip(*(c[mine].tolist() for c in (told.round, told.src, told.dst)), strict=True):
            backwards[told.rounds - 1 - round_].append((dst, src))
        traders = Traders(build, tree, chunk)
        for round_, messages in enumerate(backwards):
            traders.round(round_, messages, everywhere=False)
        traders.output(owner)
    return build.build()


def _told(gossip: Gossip, ranks: int, owners: Sequence[int]) -> _Told:
    """What each message of an allgather carries."""
    holds = np.zeros((ranks, len(owners)), dtype=bool)
    holds[list(owners), np.arange(len(owners))] = True
    found: list[tuple[Ints, Ints, Ints]] = []
    for messages in gossip:
        src, dst = np.array(messages, dtype=np.int64).reshape(-1, 2).T
        before, turns = holds[src], _turns(dst)
        carried = np.zeros_like(before)
        for turn in range(int(turns.max(initial=-1)) + 1):  # messages to one rank one after the other
            which = np.flatnonzero(turns == turn)
            carried[which] = before[which] & ~holds[dst[which]]
            holds[dst[which]] |= carried[which]
        message, chunk = np.nonzero(carried)
        found.append((src[message], dst[message], chunk))
    rounds = np.repeat(np.arange(len(found)), [len(chunk) for _, _, chunk in found])
    none = np.zeros(0, np.int64)
    src, dst, chunk = (
        (np.concatenate([none, *columns]) for columns in zip(*found, strict=True)) if found else [none] * 3
    )
    return _Told(len(gossip), rounds, src, dst, chunk, holds)


def _turns(values: Ints) -> Ints:
    """How many equal values come before each."""
    order = np.argsort(values, kind="stable")
    fresh = np.ones(len(values), dtype=bool)
    fresh[1:] = np.diff(values[order]) != 0
    first = np.flatnonzero(fresh)
    turns = np.empty(len(values), dtype=np.int64)
    turns[order] = np.arange(len(values)) - np.repeat(first, np.diff(first, append=len(values)))
    return turns


def _folded_on_the_way(told: _Told, chunks: Sequence[tuple[int, int]], owners: Sequence[int]) -> Schedule:
    """Every rank folds what arrives into its own value before it hands that on.

    Values that arrive are in slots 1, 2 and so on, their fold in the slot after.
    """
    ranks, count = len(told.holds), len(chunks)
    backwards = (told.rounds - 1 - told.round, told.dst, told.src, told.chunk)
    round_, src, dst, chunk = (np.ascontiguousarray(column[::-1]) for column in backwards)
    arrived = np.bincount(dst * count + chunk, minlength=ranks * count).reshape(ranks, count)
    turns = _turns(row_keys(dst, chunk))
    last = np.zeros((ranks, count), dtype=np.int64)
    last[dst, chunk] = round_  # in rising order: of several the last stays
    result = np.where(arrived, arrived + 1, 0)
    folds, operands = [np.zeros((0, 4), np.int32)], []
    for many in range(1, int(arrived.max(initial=0)) + 1):
        rank, what = np.nonzero(arrived == many)
        folds.append(_columns(last[rank, what], rank, many + 1, what))
        operands.append(np.tile(np.arange(many + 1), (len(rank), 1)))
    everybody, owner = np.arange(ranks), np.array(owners, dtype=np.int64)
    own = np.arange(count)
    return schedule_of_columns(
        ranks,
        chunks,
        inputs=np.stack([everybody, 0 * everybody, everybody], axis=1),
        outputs=np.stack([owner, result[owner, own], own], axis=1),
        transfers=_columns(round_, src, result[src, chunk], dst, 1 + turns, chunk, NO_PATH),
        combines=np.concatenate(folds),
        operands=operands,
    )


def _columns(*columns: Ints | int) -> IntTable:
    table = np.empty((np.broadcast(*columns).size, len(columns)), dtype=np.int32)
    for index, column in enumerate(columns):
        table[:, index] = column
    return table
