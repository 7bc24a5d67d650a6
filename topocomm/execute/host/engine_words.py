"""How the data of a call moves, in words: for the log, the bench and the doctor."""

from __future__ import annotations

from topocomm.execute.host.call_engine import CallEngine
from topocomm.execute.host.sliced_engine import SlicedEngine
from topocomm.execute.transports.transport import Transport

MESSAGES = {"mpi": "MPI messages", "torch": "gloo messages", "threads": "threads"}
"""Words for a transport's messages, by transport name."""


def transport_words(transport: Transport) -> str:
    """Return the words for messages of a transport."""
    return MESSAGES.get(transport.name, f"{transport.name} messages")


def way_of(engine: CallEngine, transport: Transport) -> str:
    """Describe how data moves by an engine: "shared memory, compiled", "MPI messages" and the like."""
    if transport.size == 1:
        return "one rank"
    inner = engine.engines[0] if isinstance(engine, SlicedEngine) else engine
    if inner.shared is None or inner.shared.alone:
        return transport_words(transport)
    words = ["shared memory"]
    if len(set(transport.hosts)) > 1:
        words = [f"shared memory within hosts, {transport_words(transport)} between"]
    elif not inner.in_python:
        words.append("compiled")
    if isinstance(engine, SlicedEngine):
        words.append("in slices")
    if inner.in_one_copy:
        words.append("in one copy")
    return ", ".join(words)
