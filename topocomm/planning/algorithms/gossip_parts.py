"""Collectives in parts of a gossip, written as columns: P ranks with a part each move P^2 chunks.

A message carries the chunks that its source has and its destination lacks. Every chunk spreads on a tree; backwards in
time it gathers on that tree. Slots are counted per chunk: a chunk arrives in slot 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Gossip, NodeExchange
from topocomm.planning.schedule.range_tree import RangeTree
from topocomm.planning.schedule.schedule import NO_PATH, IntTable, Schedule, part_chunks, row_keys
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder, schedule_of_columns

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Loads:
    """The chunks that messages carry, message by message, chunks in order.

    Attributes:
        round, src, dst, chunk: int64 [n].
        holds: Whether each rank has each chunk in the end, bool [ranks, chunks].
    """

    rounds: int
    round: Ints
    src: Ints
    dst: Ints
    chunk: Ints
    holds: NDArray[np.bool_]


def gossip_allgather(gossip: Gossip, parts: Sequence[int]) -> Schedule:
    """Return an allgather: every rank ends with the chunks of all."""
    chunks, owners = part_chunks(parts)
    loads, owner = _loads_of(gossip, len(parts), owners), np.array(owners, dtype=np.int64)
    src_slot = (loads.src != owner[loads.chunk]).astype(np.int64)
    rank, chunk = np.nonzero(loads.holds)
    schedule = schedule_of_columns(
        len(parts),
        chunks,
        outputs=np.stack([rank, (rank != owner[chunk]).astype(np.int64), chunk], axis=1),
        transfers=_columns(loads.round, loads.src, src_slot, loads.dst, 1, loads.chunk, NO_PATH),
        combines=np.zeros((0, 4), np.int64),
        operands=[],
    )
    return replace(schedule, owners=owners)


def gossip_gather(gossip: Gossip, parts: Sequence[int], root: int) -> Schedule:
    """Return a gather: the root ends with the chunks of all, by a gossip that leads to it."""
    chunks, owners = part_chunks(parts)
    moves = _moves_to(gossip, len(parts), owners, [root] * len(owners))
    return carried(len(parts), chunks, moves, givers=owners, takers=[root] * len(owners))


def gossip_alltoall(gossip: Gossip, parts: Sequence[int], ranks: int) -> Schedule:
    """Return an alltoall by a gossip of all ranks: every chunk on the way that comes first."""
    chunks, pairs = part_chunks(parts)
    givers, takers = [pair // ranks for pair in pairs], [pair % ranks for pair in pairs]
    return carried(ranks, chunks, _moves_to(gossip, ranks, givers, takers), givers=givers, takers=takers)


def gossip_scatter(gossip: Gossip, parts: Sequence[int], root: int) -> Schedule:
    """Return a scatter, the gather of the gossip backwards: chunks go from the root the way that they come to it."""
    chunks, owners = part_chunks(parts)
    round_, src, dst, chunk = _moves_to(gossip, len(parts), owners, [root] * len(owners))[:, ::-1]
    moves = np.stack([len(gossip) - 1 - round_, dst, src, chunk])
    return carried(len(parts), chunks, moves, givers=[root] * len(owners), takers=owners, root=root)


def carried(
    ranks: int,
    chunks: Sequence[tuple[int, int]],
    moves: Ints,
    *,
    givers: Sequence[int],
    takers: Sequence[int],
    root: int | None = None,
) -> Schedule:
    """Return the schedule that brings every chunk from the rank that gives it to the one that takes it.

    `moves` are round, source, destination and chunk of every transfer, int64 [4, n]; a chunk comes to no rank twice: in
    slot 1. A `root` has all chunks as its value.
    """
    giver, taker = np.array(givers, dtype=np.int64), np.array(takers, dtype=np.int64)
    round_, src, dst, chunk = moves
    schedule = schedule_of_columns(
        ranks,
        chunks,
        outputs=np.stack([taker, (taker != giver).astype(np.int64), np.arange(len(chunks))], axis=1),
        transfers=_columns(round_, src, (src != giver[chunk]).astype(np.int64), dst, 1, chunk, NO_PATH),
        combines=np.zeros((0, 4), np.int64),
        operands=[],
    )
    if root is None:
        return replace(schedule, owners=tuple(givers))
    return replace(schedule, inputs=np.array([[root, 0, root]], dtype=np.int32))


def gossip_reduce_scatter(gossip: Gossip, parts: Sequence[int], tree: RangeTree | None) -> Schedule:
    """Return a reduce-scatter, the allgather of the gossip backwards: chunks gather along the trees they spread on.

    Every chunk is the expression `tree`, operands in rank order. Without it every relay folds what it has into one
    value, which keeps rank order only where neighbours are folded.
    """
    chunks, owners = part_chunks(parts)
    loads = _loads_of(gossip, len(parts), owners)
    if tree is None:
        return _folded_on_the_way(loads, chunks, owners)
    build = ScheduleBuilder(len(parts), chunks)
    order = np.argsort(loads.chunk, kind="stable")
    ends = np.searchsorted(loads.chunk[order], np.arange(len(chunks) + 1))
    for chunk, owner in enumerate(owners):
        own = order[ends[chunk] : ends[chunk + 1]][::-1]
        backwards: list[list[tuple[int, int]]] = [[] for _ in range(loads.rounds)]
        for round_, src, dst in zip(*(c[own].tolist() for c in (loads.round, loads.src, loads.dst)), strict=True):
            backwards[loads.rounds - 1 - round_].append((dst, src))
        exchange = NodeExchange(build, tree, chunk)
        exchange.run(backwards, everywhere=False)
        build.output(owner, exchange.value(owner), chunk=chunk)
    return build.build()


def _loads_of(gossip: Gossip, ranks: int, owners: Sequence[int]) -> _Loads:
    holds = np.zeros((ranks, len(owners)), dtype=bool)
    holds[list(owners), np.arange(len(owners))] = True
    by_round: list[tuple[Ints, Ints, Ints]] = []
    for messages in gossip:
        src, dst = np.array(messages, dtype=np.int64).reshape(-1, 2).T
        before, turns = holds[src], _ranks_among_equals(dst)
        carried = np.zeros_like(before)
        for turn in range(int(turns.max(initial=-1)) + 1):  # messages to one rank one after the other
            which = np.flatnonzero(turns == turn)
            carried[which] = before[which] & ~holds[dst[which]]
            holds[dst[which]] |= carried[which]
        message, chunk = np.nonzero(carried)
        by_round.append((src[message], dst[message], chunk))
    rounds = np.repeat(np.arange(len(by_round)), [len(chunk) for _, _, chunk in by_round])
    none = np.zeros(0, np.int64)
    src, dst, chunk = (
        (np.concatenate([none, *columns]) for columns in zip(*by_round, strict=True)) if by_round else [none] * 3
    )
    return _Loads(len(gossip), rounds, src, dst, chunk, holds)


def _moves_to(gossip: Gossip, ranks: int, givers: Sequence[int], takers: Sequence[int]) -> Ints:
    """Return (round, source, destination, chunk) of every move that brings chunks from givers to takers.

    Every chunk takes the way on which the gossip first brings what its giver has; it is traced back from its taker.
    """
    owners, of = np.unique(np.array(givers, dtype=np.int64), return_inverse=True)
    loads = _loads_of(gossip, ranks, owners.tolist())
    came = np.full((ranks, len(owners)), -1, dtype=np.int64)
    came[loads.dst, loads.chunk] = np.arange(len(loads.dst))
    at, chunks, parts = np.array(takers, dtype=np.int64), np.arange(len(of)), []
    while len(chunks):
        move = came[at, of[chunks]]
        going = move >= 0
        move, chunks = move[going], chunks[going]
        parts.append(np.stack([move, chunks]))
        at = loads.src[move]
    move, chunk = np.concatenate([np.zeros((2, 0), np.int64), *parts], axis=1)
    fresh = np.diff(row_keys(loads.round, loads.src, loads.dst), prepend=-1) != 0  # entries of a message are together
    order = np.argsort(row_keys(np.cumsum(fresh)[move], chunk), kind="stable")
    move = move[order]
    return np.stack([loads.round[move], loads.src[move], loads.dst[move], chunk[order]])


def _ranks_among_equals(values: Ints) -> Ints:
    """Return how many equal values come before each value."""
    order = np.argsort(values, kind="stable")
    fresh = np.ones(len(values), dtype=bool)
    fresh[1:] = np.diff(values[order]) != 0
    first = np.flatnonzero(fresh)
    turns = np.empty(len(values), dtype=np.int64)
    turns[order] = np.arange(len(values)) - np.repeat(first, np.diff(first, append=len(values)))
    return turns


def _folded_on_the_way(loads: _Loads, chunks: Sequence[tuple[int, int]], owners: Sequence[int]) -> Schedule:
    """Return a reduce-scatter in which every rank folds what arrives into its own value before it sends that.

    Values arrive in slots 1, 2 and so on; the slot after has their fold.
    """
    ranks, count = len(loads.holds), len(chunks)
    backwards = (loads.rounds - 1 - loads.round, loads.dst, loads.src, loads.chunk)
    round_, src, dst, chunk = (np.ascontiguousarray(column[::-1]) for column in backwards)
    arrived = np.bincount(dst * count + chunk, minlength=ranks * count).reshape(ranks, count)
    turns = _ranks_among_equals(row_keys(dst, chunk))
    last = np.zeros((ranks, count), dtype=np.int64)
    last[dst, chunk] = round_  # in rising order: of several the last stays
    result = np.where(arrived, arrived + 1, 0)
    folds, operands = [np.zeros((0, 4), np.int32)], []
    for arrivals in range(1, int(arrived.max(initial=0)) + 1):
        rank, chunk_of = np.nonzero(arrived == arrivals)
        folds.append(_columns(last[rank, chunk_of], rank, arrivals + 1, chunk_of))
        operands.append(np.tile(np.arange(arrivals + 1), (len(rank), 1)))
    owner, own = np.array(owners, dtype=np.int64), np.arange(count)
    return schedule_of_columns(
        ranks,
        chunks,
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
