"""Steps in thread blocks: one for each peer and direction, cut where a runtime takes no more.

A connection with more steps than a thread block takes goes over several channels, each with a part of its steps one
behind the other; what a rank does by itself goes on in another thread block without a peer. Where a rank has more
thread blocks than the runtime runs at once, one that sends and one that receives on a channel become one.

No deadlock, whatever the buffers of the channels hold: the steps of all ranks have one order, with the two ends of a
message as one (`msccl_steps.py`). Thread blocks run in that order, whatever steps they are made of, and every step
waits for earlier ones only, so the first step that is not done can run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from topocomm.planning.formats.msccl_runtimes import MOST_PEERS, Runtime
from topocomm.planning.formats.msccl_steps import Connection, Program, Step


class Block(NamedTuple):
    """What a thread block is for: the peers that it sends to and receives from, -1 is none; `part` of what it does."""

    send: int
    receive: int
    channel: int
    part: int = 0


class Line(NamedTuple):
    """One line of a thread block: a step, None for a `nop`, and the step of another thread block that it waits for."""

    step: Step | None
    wait: Step | None


@dataclass(frozen=True)
class RankBlocks:
    """The thread blocks of one rank.

    Attributes:
        lines: Of every thread block, in the order of their numbers.
        places: Of every step its thread block and line.
        awaited: The steps that others wait for.
    """

    lines: dict[Block, list[Line]]
    places: dict[Step, tuple[Block, int]]
    awaited: set[Step]


def blocks_of(program: Program, runtime: Runtime) -> list[RankBlocks] | str:
    """The thread blocks of every rank, or why the runtime does not take them.

    Args:
        program: The steps of all ranks.
        runtime: What reads them.
    """
    parts = dict.fromkeys(program.turns, 1)
    while True:
        cut = _Cut(program, runtime, parts)
        ranks = [cut.rank(rank) for rank in range(len(program.steps))]
        long = {
            connection: len(lines)
            for one in ranks
            for block, lines in one.lines.items()
            if len(lines) > runtime.steps.most
            for connection in {line.step.connection for line in lines if line.step is not None}
        }
        if not long:
            return _refusal(cut, ranks, runtime) or ranks
        if all(parts[connection] == program.turns[connection] for connection in long):
            return _too_many("steps in a thread block", max(long.values()), runtime.steps.most, runtime.steps.source)
        for connection, steps in long.items():
            wanted = max(parts[connection] + 1, parts[connection] * steps // runtime.steps.most)
            parts[connection] = min(wanted, program.turns[connection])


def _refusal(cut: _Cut, ranks: Sequence[RankBlocks], runtime: Runtime) -> str:
    blocks = max((len(one.lines) for one in ranks), default=0)
    if blocks > runtime.blocks.most:
        return _too_many("thread blocks on a GPU", blocks, runtime.blocks.most, runtime.blocks.source)
    if cut.channels > runtime.channels.most:
        return _too_many("channels", cut.channels, runtime.channels.most, runtime.channels.source)
    return ""


def _too_many(what: str, found: int, most: int, source: str) -> str:
    return f"{found} {what}, it takes {most} ({source})"


class _Cut:
    """The thread blocks for one choice of how many parts each connection has."""

    def __init__(self, program: Program, runtime: Runtime, parts: Mapping[Connection, int]) -> None:
        self.program, self.runtime, self.parts = program, runtime, parts
        ranks = len(program.steps)
        self._rows = max(ranks - 2, 0) // MOST_PEERS + 1
        """Channels that give every pair a connection of its own, once."""
        used = {self._wide(c, part) for c, many in parts.items() if c[0] != c[1] for part in range(many)}
        self._number = {channel: number for number, channel in enumerate(sorted(used | {0}))}
        self.channels = len(self._number)

    def _wide(self, connection: Connection, part: int) -> int:
        """The channel of a part, before those that nothing uses are left out.

        Peers at distances 1 to 32 share one, so that no rank has more than 32 on it in either direction.
        """
        src, dst = connection
        return ((dst - src) % len(self.program.steps) - 1) // MOST_PEERS + part * self._rows

    def block(self, rank: int, step: Step) -> Block:
        """The thread block of a step."""
        connection = step.connection
        part = step.turn * self.parts[connection] // self.program.turns[connection]
        src, dst = connection
        if src == dst:
            return Block(-1, -1, 0, part)
        channel = self._number[self._wide(connection, part)]
        return Block(dst, -1, channel) if rank == src else Block(-1, src, channel)

    def rank(self, rank: int) -> RankBlocks:
        """The thread blocks of a rank."""
        steps = self.program.steps[rank]
        own = {step: self.block(rank, step) for step in steps}
        joined = self._joined(own)
        lines: dict[Block, list[Line]] = {block: [] for block in sorted(set(joined.values()))}
        known: dict[Block, dict[Block, int]] = {block: {} for block in lines}
        places: dict[Step, tuple[Block, int]] = {}
        awaited: set[Step] = set()
        for step in steps:
            block = joined[own[step]]
            waits = _waits(step, block, places, known[block])
            awaited.update(waits)
            lines[block] += [Line(None, wait) for wait in waits[:-1]]
            places[step] = block, len(lines[block])
            lines[block].append(Line(step, waits[-1] if waits else None))
        return RankBlocks(lines, places, awaited)

    def _joined(self, own: Mapping[Step, Block]) -> dict[Block, Block]:
        """Every thread block, and the one that does its steps: no more than the runtime runs at once, if that can be.

        First one that sends and one that receives on a channel become one, the shortest first; then what the rank does
        by itself goes to the shortest others.
        """
        length = Counter(own.values())
        joined = {block: block for block in length}
        for first, second in self._pairs(length)[: max(len(joined) - self.runtime.blocks.most, 0)]:
            joined[first] = joined[second] = Block(first.send, second.receive, first.channel)
        total = Counter(joined[block] for block in own.values())
        for block in sorted((block for block in length if _is_local(block)), key=lambda block: (length[block], block)):
            others = [other for other in total if not _is_local(other)]
            if len(total) <= self.runtime.blocks.most or not others:
                break
            joined[block] = min(others, key=lambda other: (total[other], other))
            total[joined[block]] += total.pop(block)
        return joined

    def _pairs(self, length: Mapping[Block, int]) -> list[tuple[Block, Block]]:
        """Thread blocks of one channel that send and that receive, two and two, the shortest first."""
        ways: dict[tuple[int, bool], list[Block]] = {}
        for block in sorted(length, key=lambda block: (length[block], block)):
            if not _is_local(block):
                ways.setdefault((block.channel, block.send >= 0), []).append(block)
        pairs = [
            pair
            for channel in range(self.channels)
            for pair in zip(ways.get((channel, True), ()), ways.get((channel, False), ()), strict=False)
        ]
        return sorted(pairs, key=lambda pair: (length[pair[0]] + length[pair[1]], pair))


def _is_local(block: Block) -> bool:
    return block.send < 0 and block.receive < 0


def _waits(step: Step, block: Block, places: Mapping[Step, tuple[Block, int]], known: dict[Block, int]) -> list[Step]:
    """The steps of other thread blocks to wait for, at most one of each, and none that was waited for before.

    A thread block runs in order: to wait for one step is to wait for those before it.
    """
    last: dict[Block, tuple[int, Step]] = {}
    for need in step.needs:
        other, line = places[need]
        if other != block and (other not in last or line > last[other][0]):
            last[other] = line, need
    waits = []
    for other, (line, need) in sorted(last.items(), key=lambda entry: entry[0]):
        if line > known.get(other, -1):
            known[other] = line
            waits.append(need)
    return waits
