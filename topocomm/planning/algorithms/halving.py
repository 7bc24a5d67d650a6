"""Recursive halving and doubling (Rabenseifner 2004): log2 P rounds whose messages halve, then double.

Distances grow while chunks are reduced: partners first differ in their lowest bit, so merges join neighbouring
ranges and rank order is kept; a chunk ends at the position that agrees with its owner's in every bit. For P that is
not a power of two, P - 2^k neighbours fold in pairs first and get their result back last.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.algorithms.recursive_doubling import Core
from topocomm.planning.schedule.schedule import Schedule, part_chunks, split_rows
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder

Held = dict[int, int]
"""Slots of a position by chunk."""


def halving_reduce_scatter(parts: Sequence[int]) -> Schedule:
    """floor(log2 P) rounds, two more where P is not a power of two; rank order kept."""
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks)
    core = _Core(len(parts))
    positions = [core.position(owner) for owner in owners]
    held, round_ = core.collect(build, positions)
    for chunk, owner in enumerate(owners):
        holder = core.ranks[positions[chunk]]
        slot = held[positions[chunk]][chunk]
        if holder != owner:
            slot = build.send(round_, holder, slot, owner, chunk=chunk)
        build.output(owner, slot, chunk=chunk)
    return build.build()


def doubling_allgather(parts: Sequence[int]) -> Schedule:
    """Halving run backwards: floor(log2 P) rounds, two more where P is no power of two; far partners exchange least."""
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks, owners=owners)
    core = _Core(len(parts))
    held: list[Held] = [{} for _ in core.ranks]
    for chunk, owner in enumerate(owners):
        position = core.position(owner)
        holder = core.ranks[position]
        held[position][chunk] = 0 if holder == owner else build.send(0, owner, 0, holder, chunk=chunk)
    round_ = core.spread(build, held, int(bool(core.surplus)))
    return core.finish(build, held, round_, owners)


def rabenseifner_allreduce(ranks: int, rows: int) -> Schedule:
    """Reduce-scatter by halving, allgather by doubling: 2 floor(log2 P) rounds, two more where P is no power of two."""
    core = _Core(ranks)
    count = len(core.ranks)
    build = ScheduleBuilder(ranks, split_rows(rows, min(count, rows) if rows else count))
    chunks = range(len(build.chunks))
    held, round_ = core.collect(build, chunks)
    round_ = core.spread(build, held, round_)
    return core.finish(build, held, round_, [-1] * len(chunks))


class _Core(Core):
    def position(self, rank: int) -> int:
        """Where in the core the rank, or its even neighbour, stands."""
        return rank // 2 if rank < 2 * self.surplus else rank - self.surplus

    def collect(self, build: ScheduleBuilder, positions: Sequence[int]) -> tuple[list[Held], int]:
        """Reduce chunk c at position positions[c]; returns the slots by position and chunk, and the round after."""
        chunks = range(len(positions))
        held = [dict.fromkeys(chunks, 0) for _ in self.ranks]
        for position, rank in enumerate(self.ranks[: self.surplus]):
            for chunk in chunks:
                operands = [0, build.send(0, rank + 1, 0, rank, chunk=chunk)]
                held[position][chunk] = build.fold(0, rank, operands, chunk=chunk)
        round_ = int(bool(self.surplus))
        for distance in self.distances:  # every position gives its partner the chunks that end on the partner's side
            arrived: list[Held] = [{} for _ in self.ranks]
            for position, slots in enumerate(held):
                partner = position ^ distance
                for chunk in [c for c in slots if (positions[c] ^ position) & distance]:
                    src, dst = self.ranks[position], self.ranks[partner]
                    arrived[partner][chunk] = build.send(round_, src, slots.pop(chunk), dst, chunk=chunk)
            for position, slots in enumerate(held):
                for chunk, other in arrived[position].items():
                    operands = [other, slots[chunk]] if position & distance else [slots[chunk], other]
                    slots[chunk] = build.fold(round_, self.ranks[position], operands, chunk=chunk)
            round_ += 1
        return held, round_

    def finish(self, build: ScheduleBuilder, held: list[Held], round_: int, owners: Sequence[int]) -> Schedule:
        """Return the Schedule with all that is held as results, sent to the odd neighbours that do not own it."""
        for position, rank in enumerate(self.ranks):
            for chunk, owner in enumerate(owners):
                slot = held[position][chunk]
                build.output(rank, slot, chunk=chunk)
                if position < self.surplus:
                    slot = 0 if owner == rank + 1 else build.send(round_, rank, slot, rank + 1, chunk=chunk)
                    build.output(rank + 1, slot, chunk=chunk)
        return build.build()

    def spread(self, build: ScheduleBuilder, held: list[Held], round_: int) -> int:
        """Exchange all that is held, farthest partners first, until every position has all; returns the round after."""
        for distance in reversed(self.distances):
            before = [dict(slots) for slots in held]
            for position, slots in enumerate(before):
                partner = position ^ distance
                for chunk, slot in slots.items():
                    held[partner][chunk] = build.send(
                        round_, self.ranks[position], slot, self.ranks[partner], chunk=chunk
                    )
            round_ += 1
        return round_
