"""Which lanes a prepared call has on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.execute.lanes import Lane, LongWait, Work
from topocomm.execute.staged_lane import message_lane, shared_lane
from topocomm.execute.transports.shared_memory import open_shared
from topocomm.execute.waiting import Waiting
from topocomm.operators.operator import ALIGNMENT_BYTES
from topocomm.planning.shared_memory import shared_program

SHARED_LIMIT_BYTES = 8 << 20
"""Payloads above this go by messages: their time is in the bytes, not in the latency."""


def make_lanes(work: Work, waiting: Waiting, wait_long: LongWait) -> Sequence[Lane]:
    """The lanes of this rank; collective.

    Ranks of one host share memory for allreduce of small payloads, where a host gives it; else they exchange
    messages.
    """
    transport = waiting.transport
    if _may_share(work, waiting):
        program = shared_program(work.plan.schedule, transport.rank, work.chunk_bytes, ALIGNMENT_BYTES)
        shared = open_shared(waiting, program.total_bytes)
        if shared is not None:
            from topocomm.execute import compiled_lane  # needs numba

            if compiled_lane.covers(work):
                return [compiled_lane.CompiledLane(work, program, shared, number, wait_long) for number in range(2)]
            return [shared_lane(work, program, shared, number, wait_long) for number in range(2)]
    return [message_lane(work, transport, wait_long)]


def _may_share(work: Work, waiting: Waiting) -> bool:
    transport = waiting.transport
    return (
        transport.shares_memory
        and transport.size > 1
        and work.plan.collective.name == "allreduce"  # the rule of two lanes needs every rank's word in every call
        and work.plan.payload_bytes <= SHARED_LIMIT_BYTES
    )
