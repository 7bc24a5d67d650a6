"""How the data of a prepared call moves, in words."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.host.sliced_engine import SlicedEngine
from topocomm.execute.transports.transport import Transport

MESSAGES = {"mpi": "MPI messages", "torch": "gloo messages", "threads": "threads"}
"""What a transport's messages are, by its name."""
ALONE = "one rank"


def way_of(call: PreparedCall) -> str:
    """The way in words: shared memory, compiled; MPI messages; and the like."""
    transport = call.transport
    if transport.size == 1:
        return ALONE
    engine = call.engines[0]
    slices = isinstance(engine, SlicedEngine)
    inner = engine.engines[0] if isinstance(engine, SlicedEngine) else engine
    if inner.shared is None:
        return MESSAGES.get(transport.name, f"{transport.name} messages")
    words = ["shared memory"]
    if len(set(transport.hosts)) > 1:
        words = [f"shared memory within hosts, {MESSAGES.get(transport.name, transport.name)} between"]
    elif not inner.in_python:
        words.append("compiled")
    if slices:
        words.append("in slices")
    return ", ".join(words)


def pairs_by_way(transport: Transport) -> dict[str, int]:
    """How many pairs of ranks share memory, and how many exchange messages."""
    between = MESSAGES.get(transport.name, f"{transport.name} messages")
    pairs = combinations(transport.hosts, 2)
    return dict(Counter("shared memory" if a == b else between for a, b in pairs))
