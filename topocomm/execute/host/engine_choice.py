"""Engines of a prepared call on this machine.

Ranks of one host share memory where the host gives it, by compiled code where the operator has it; ranks of different
hosts exchange messages. Long payloads go through shared memory slice by slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from topocomm.execute.host import sliced_engine
from topocomm.execute.host.call_engine import CallEngine, Work, messages_of
from topocomm.execute.host.credits import Credits
from topocomm.execute.host.sliced_engine import SlicedEngine, slices_of
from topocomm.execute.host.staged_engine import StagedEngine, aligned_buffer
from topocomm.execute.liveness.pollable import CompositeWait
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.shared_memory import (
    COUNTER_BYTES,
    Segment,
    SharedMemory,
    kernels_available,
    memory_of_one,
    open_shared,
)
from topocomm.execute.transports.transport import Batch, Transport
from topocomm.operators.layout import ALIGNMENT_BYTES, Buffer
from topocomm.planning.program.shared_memory_layout import SharedProgram, shared_program
from topocomm.planning.program.slot_memory import RankProgram, Stage, rank_program
from topocomm.planning.schedule.schedule import Piece


def make_engines(work: Work, waiting: Waiting) -> Sequence[CallEngine]:
    """Return the engines of a prepared call; collective."""
    transport = waiting.transport
    hosts = transport.hosts
    if len(set(hosts)) == transport.size:
        return _message_engines(work, waiting)
    if len(set(hosts)) == 1 and waiting.trace is None and (engines := _single_copy_engines(work, waiting)) is not None:
        return engines
    one_host = len(set(hosts)) == 1
    slices = slices_of(work, sliced_engine.SLICE_BYTES if one_host else sliced_engine.HOSTS_SLICE_BYTES)
    program = _shared_program(slices, hosts, work.rank)
    first_ranks = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    others = [first for host, first in first_ranks.items() if host != hosts[work.rank]]
    most_bytes = max(program.total_bytes, *(_shared_program(slices, hosts, peer).total_bytes for peer in others), 0)
    shared = open_shared(work.arena, waiting, most_bytes, hosts)  # all take as many, so all open segments together
    if shared is None:
        return _message_engines(work, waiting)
    if len(slices) == 1:
        return [_shared_engine(work, program, shared, waiting, number) for number in range(2)]
    first = (shared.epoch + 1) & 1  # the memory of the first call
    return [SlicedEngine([_shared_engine(s, program, shared, waiting, i & 1) for i, s in enumerate(slices, first)])]


def _single_copy_engines(work: Work, waiting: Waiting) -> Sequence[CallEngine] | None:
    from topocomm.execute.host.compiled_engine import covers
    from topocomm.execute.host.single_copy import single_copy_engines

    return single_copy_engines(work, waiting) if covers(work) else None


def shared_by(engine: CallEngine) -> SharedMemory | None:
    """Return the shared memory that an engine lies in; None where it has none."""
    return engine.engines[0].shared if isinstance(engine, SlicedEngine) else engine.shared


def _shared_program(slices: Sequence[Work], hosts: Sequence[int], rank: int) -> SharedProgram:
    """One rank's program for all slices, with room for the longest.

    A rank that is ahead waits for the readers of its own range only, so ranges must not move from slice to slice.
    """
    work = slices[0]

    def most_bytes(chunk: int) -> int:
        return max(part.chunk_bytes(chunk) for part in slices)

    return shared_program(work.schedule, rank, most_bytes, ALIGNMENT_BYTES, hosts)


def _shared_engine(
    work: Work, program: SharedProgram, shared: SharedMemory, waiting: Waiting, number: int
) -> CallEngine:
    from topocomm.execute.host import compiled_engine
    from topocomm.execute.host.compiled_engine import free_memory, shared_stage
    from topocomm.native._native import FINISHED

    transport = waiting.transport
    memory, rank = shared.memories[number], work.rank
    away = [peer for peer, host in enumerate(transport.hosts) if host != transport.hosts[rank]]
    credits = None if work.synchronises else _credits(work, program.stages, transport, away)
    if waiting.trace is None and _in_c(credits) and compiled_engine.covers(work):
        exchanges = _exchanges(work, program, memory, transport, away)
        return compiled_engine.CompiledEngine(work, program, shared, number, exchanges, credits)
    sizes = compiled_engine.awaited_bytes(work, program, shared)
    batches: list[Batch | None] = []
    for index, (stage, waits) in enumerate(zip(program.stages, program.waits, strict=True)):
        both: list[Batch] = []
        if any(peer not in away for _, peer, _ in stage.sends) or waits:
            placed = [(shared.ranks.index(peer), done) for peer, done in waits]
            both.append(shared_stage(shared, index + 1, placed, sizes))
        both += _messages(work, stage, program.offsets, memory, transport, away)
        batches.append(CompositeWait(both) if len(both) > 1 else (both[0] if both else None))
    if work.synchronises:
        return _staged(waiting, work, memory, program, batches, shared=shared)
    readers = [shared.ranks.index(peer) for peer in program.readers]
    before = shared_stage(shared, 0, free_memory(readers))
    after = shared_stage(shared, FINISHED, ())
    return _staged(waiting, work, memory, program, batches, before=before, after=after, shared=shared, credits=credits)


def _message_engines(work: Work, waiting: Waiting) -> Sequence[CallEngine]:
    """The engine of a rank that shares no memory; twice where calls count which of two it is."""
    transport = waiting.transport
    program = rank_program(work.schedule, transport.rank, work.chunk_bytes, ALIGNMENT_BYTES)
    region, everyone = aligned_buffer(COUNTER_BYTES + program.arena_bytes), range(transport.size)
    arena = region[COUNTER_BYTES:]
    exchanges = _exchanges(work, program, arena, transport, everyone)
    credits = None if work.synchronises else _credits(work, program.stages, transport, everyone)
    if waiting.trace is None and _in_c(credits) and kernels_available():
        from topocomm.execute.host.compiled_engine import CompiledEngine, covers

        if covers(work):
            segment = Segment(-work.tag, work.plan.payload_bytes + work.plan.figures.scratch_bytes)
            own = memory_of_one(region, transport.rank, segment)
            alone = SharedProgram(
                stages=program.stages,
                waits=((),) * len(program.stages),
                readers=(),
                offsets=program.offsets,
                input_pieces=program.input_pieces,
                output_pieces=program.output_pieces,
                total_bytes=program.arena_bytes,
            )
            return [CompiledEngine(work, alone, own, 0, exchanges, credits)] * 2
    batches = [exchanges.get(index) for index in range(len(program.stages))]
    return [_staged(waiting, work, arena, program, batches, credits=credits)]


def _exchanges(
    work: Work,
    program: RankProgram | SharedProgram,
    memory: Buffer,
    transport: Transport,
    peers: Iterable[int],
) -> dict[int, Batch]:
    """The messages with these ranks, by the number of their stage."""
    made = (_messages(work, stage, program.offsets, memory, transport, peers) for stage in program.stages)
    return {index: batch for index, batches in enumerate(made) for batch in batches}


def _staged(waiting: Waiting, *arguments: Any, **more: Any) -> StagedEngine:
    """A staged engine, one that notes what it does where calls are traced."""
    if waiting.trace is None:
        return StagedEngine(*arguments, **more)
    from topocomm.execute.host.traced_engine import TracedEngine

    return TracedEngine(waiting.trace, *arguments, **more)


def _messages(
    work: Work, stage: Stage, offsets: Mapping[Piece, int], memory: Buffer, transport: Transport, peers: Iterable[int]
) -> list[Batch]:
    sends, receives = (
        [message for message in messages_of(work, moves, offsets) if message.peer in peers]
        for moves in (stage.sends, stage.receives)
    )
    return [transport.batch(memory, sends, receives, work.tag)] if sends or receives else []


def _in_c(credits: Credits | None) -> bool:
    """Whether compiled code can take the credits of a call, or it needs none."""
    return credits is None or credits.requests() is not None


def _credits(work: Work, stages: Sequence[Stage], transport: Transport, peers: Iterable[int]) -> Credits | None:
    """Make credits by messages; equal engine numbers have equal tags on both sides.

    Ranks that send to each other need none: who has finished a call knows that the other one has begun it.
    """
    receivers = {peer for stage in stages for _, peer, _ in stage.sends if peer in peers}
    senders = {peer for stage in stages for _, peer, _ in stage.receives if peer in peers}
    receivers, senders = receivers - senders, senders - receivers
    return Credits(transport, receivers, senders, work.tag + 1) if receivers or senders else None
