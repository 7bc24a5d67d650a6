"""MSCCL's runtimes with their limits, and a program's steps cut into thread blocks that a runtime takes.

A thread block serves one peer and direction. A connection with more steps than a thread block takes goes over several
channels, each with a part of its steps one behind the other; local steps of a rank go on in another thread block
without a peer. Where a rank has more thread blocks than the runtime runs at once, one that sends and one that receives
on a channel become one.

No deadlock, whatever the buffers of the channels hold: the steps of all ranks have one order, with the two ends of a
message as one (`msccl_steps.py`). Thread blocks run in that order and every step waits for earlier ones only, so the
first step that is not done can run.

Sources of the limits: ROCm/rccl at 0cbce2a7 (2024-10-24), Azure/msccl-executor-nccl at c6f6b36 (2024-12-13),
microsoft/msccl at b23e9cd (2023-09-20).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from topocomm.planning.formats.msccl_steps import Connection, Program, Step
from topocomm.topology.model import Topology

RuntimeName = Literal["rccl", "azure", "msccl"]

MOST_PEERS = 32
"""Thread blocks that send on one channel of a GPU, and that receive (MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL)."""
MOST_SCRATCH = 32767
"""Scratch chunks of a GPU: offsets have 16 bits (mscclTransmission.srcOffset, mscclTransfer.srcoffset)."""
MOST_ELEMENTS = 4095
"""XML elements that a rank loads: the document, every `gpu`, its own `tb` and `step`; one of MAX_NODES is spare."""
MOST_BYTES = 2**63 - 1
"""`maxBytes` of a program without a limit of its own: the attribute is read as int64."""


@dataclass(frozen=True)
class Limit:
    """A limit and the line of the runtime that sets it."""

    most: int
    source: str

    def __str__(self) -> str:
        return f"it takes {self.most} ({self.source})"


@dataclass(frozen=True)
class Runtime:
    """One program that reads MSCCL XML.

    Attributes:
        title: Its repository.
        steps: Steps of a thread block, `nop` included.
        blocks: Thread blocks of a GPU. They wait for each other, so all must be on the GPU at once.
        channels: Of a program.
        reduce_scatter: Its name of that collective.
        says_out_of_place: Whether one program can serve calls in place and out of place.
    """

    name: RuntimeName
    title: str
    steps: Limit
    blocks: Limit
    channels: Limit
    reduce_scatter: str = "reducescatter"
    says_out_of_place: bool = True


_A100 = "a thread block fills a multiprocessor and waits for others, and an A100 has 108"

RUNTIMES: Mapping[str, Runtime] = {
    "rccl": Runtime(
        "rccl",
        "ROCm/rccl",
        Limit(64, "MSCCL_MAX_NUM_STEPS in src/include/msccl/msccl_struct.h"),
        Limit(64, "MSCCL_MAX_NUM_THREAD_BLOCKS in src/include/msccl/msccl_struct.h"),
        Limit(64, "what src/graph/connect.cc lets NCCL_MIN_NCHANNELS ask for on several nodes"),
    ),
    "azure": Runtime(
        "azure",
        "Azure/msccl-executor-nccl",
        Limit(64, "MSCCL_MAX_NUM_STEPS in makefiles/common.mk"),
        Limit(108, _A100),
        Limit(32, "MAXCHANNELS in src/include/device.h"),
    ),
    "msccl": Runtime(
        "msccl",
        "microsoft/msccl",
        Limit(256, "MSCCL_MAX_NUM_STEPS in src/include/msccl.h"),
        Limit(108, _A100),
        Limit(32, "MAXCHANNELS in src/include/devcomm.h"),
        reduce_scatter="reduce_scatter",
        says_out_of_place=False,
    ),
}
"""By name."""


def runtime_for(topology: Topology) -> Runtime:
    """Return the runtime for the machine's GPUs: RCCL where xGMI joins them, else Azure's executor.

    That one is newer than microsoft/msccl, and programs within its limits fit those of microsoft/msccl too.
    """
    return RUNTIMES["rccl" if any(link.kind.startswith("xgmi") for link in topology.links) else "azure"]


class Block(NamedTuple):
    """Key of a thread block: the peers that it sends to and receives from (-1: none), its channel and part."""

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
    """The thread blocks of one rank in the order of their numbers, and the steps that other thread blocks wait for."""

    lines: dict[Block, list[Line]]
    places: dict[Step, tuple[Block, int]]
    awaited: set[Step]


def blocks_of(program: Program, runtime: Runtime) -> list[RankBlocks] | str:
    """Return the thread blocks of every rank, or the reason why the runtime does not take them."""
    parts = dict.fromkeys(program.turns, 1)
    while True:
        cut = _Cut(program, runtime, parts)
        ranks = [cut.rank(rank) for rank in range(len(program.steps))]
        long = {
            connection: len(lines)
            for rank_blocks in ranks
            for lines in rank_blocks.lines.values()
            if len(lines) > runtime.steps.most
            for connection in {line.step.connection for line in lines if line.step is not None}
        }
        if not long:
            blocks = max((len(rank_blocks.lines) for rank_blocks in ranks), default=0)
            if blocks > runtime.blocks.most:
                return f"{blocks} thread blocks on a GPU, {runtime.blocks}"
            return f"{cut.channels} channels, {runtime.channels}" if cut.channels > runtime.channels.most else ranks
        if all(parts[connection] == program.turns[connection] for connection in long):
            return f"{max(long.values())} steps in a thread block, {runtime.steps}"
        for connection, steps in long.items():
            wanted = max(parts[connection] + 1, parts[connection] * steps // runtime.steps.most)
            parts[connection] = min(wanted, program.turns[connection])


class _Cut:
    """The thread blocks for one choice of how many parts each connection has."""

    def __init__(self, program: Program, runtime: Runtime, parts: Mapping[Connection, int]) -> None:
        self.program, self.runtime, self.parts = program, runtime, parts
        ranks = len(program.steps)
        self._rows = max(ranks - 2, 0) // MOST_PEERS + 1
        """Channels that give every pair one connection of its own."""
        used = {self._channel_of(c, part) for c, many in parts.items() if c[0] != c[1] for part in range(many)}
        self._number = {channel: number for number, channel in enumerate(sorted(used | {0}))}
        self.channels = len(self._number)

    def _channel_of(self, connection: Connection, part: int) -> int:
        """The channel of a part, unused ones counted too.

        Peers at distances 1 to 32 share a channel, so no rank has more than 32 on it in either direction.
        """
        src, dst = connection
        return ((dst - src) % len(self.program.steps) - 1) // MOST_PEERS + part * self._rows

    def block(self, rank: int, step: Step) -> Block:
        """Return the thread block of a step, before blocks are joined."""
        connection = step.connection
        part = step.turn * self.parts[connection] // self.program.turns[connection]
        src, dst = connection
        if src == dst:
            return Block(-1, -1, 0, part)
        channel = self._number[self._channel_of(connection, part)]
        return Block(dst, -1, channel) if rank == src else Block(-1, src, channel)

    def rank(self, rank: int) -> RankBlocks:
        """Return the thread blocks of a rank."""
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
        """Every thread block with the block that runs its steps: no more than the runtime runs at once, if possible.

        First a sending and a receiving block of a channel become one, the shortest first; then local steps go to the
        shortest others.
        """
        length = Counter(own.values())
        joined = {block: block for block in length}
        by_direction: dict[tuple[int, bool], list[Block]] = {}
        for block in sorted(length, key=lambda block: (length[block], block)):
            if not _is_local(block):
                by_direction.setdefault((block.channel, block.send >= 0), []).append(block)
        pairs = [
            pair
            for channel in range(self.channels)
            for pair in zip(by_direction.get((channel, True), ()), by_direction.get((channel, False), ()), strict=False)
        ]
        pairs.sort(key=lambda pair: (length[pair[0]] + length[pair[1]], pair))
        for first, second in pairs[: max(len(joined) - self.runtime.blocks.most, 0)]:
            joined[first] = joined[second] = Block(first.send, second.receive, first.channel)
        total = Counter(joined[block] for block in own.values())
        for block in sorted((block for block in length if _is_local(block)), key=lambda block: (length[block], block)):
            others = [other for other in total if not _is_local(other)]
            if len(total) <= self.runtime.blocks.most or not others:
                break
            joined[block] = min(others, key=lambda other: (total[other], other))
            total[joined[block]] += total.pop(block)
        return joined


def _is_local(block: Block) -> bool:
    return block.send < 0 and block.receive < 0


def _waits(step: Step, block: Block, places: Mapping[Step, tuple[Block, int]], known: dict[Block, int]) -> list[Step]:
    """The steps of other thread blocks to wait for: at most one of each block, and only beyond the last wait for it."""
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
