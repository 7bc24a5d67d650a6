"""Transports of a launch, by payload size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topocomm.bench.facts import way_of
from topocomm.doctor.finding import Finding
from topocomm.execute.communicator import Communicator
from topocomm.execute.host.engine_words import transport_words
from topocomm.execute.transports.cross_memory import can_read_peers
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.operators.builtin import SUM
from topocomm.topology.draw.names import ranges

SIZES_BYTES = tuple(4 << (2 * power) for power in range(13))
"""4 B to 64 MiB."""
UNITS = ("B", "KiB", "MiB")


class Way(NamedTuple):
    """Data path and algorithm of payloads up to a size."""

    up_to_bytes: int
    way: str
    algorithm: str


def ways_by_size(comm: Communicator) -> list[Way]:
    """Return the data path and algorithm of an allreduce of float32 sums by payload; collective."""
    found: list[Way] = []
    for size_bytes in SIZES_BYTES:
        call = comm.prepare("allreduce", like=np.zeros(size_bytes // 4, np.float32), operator=SUM)
        way = Way(size_bytes, way_of(call), call.plan.algorithm)
        call.free()
        if found and found[-1][1:] == way[1:]:
            found.pop()
        found.append(way)
    return found


def ways_text(ways: list[Way]) -> list[str]:
    """Format `ways_by_size` as lines."""
    lines = []
    for size_bytes, way, algorithm in ways:
        power = min((size_bytes.bit_length() - 1) // 10, 2)
        lines.append(f"up to {f'{size_bytes >> 10 * power} {UNITS[power]}':>8}  {way:36}  {algorithm}")
    return [*lines[:-1], f"{'longer':>14}{lines[-1][14:]}"]


def check_transport(comm: Communicator, *, kernels: bool, shared_memory: bool) -> Finding:
    """Check which ranks share memory, and why others do not: compiled code or memory files may fail on some rank."""
    transport = comm.session.transport
    messages = transport_words(transport)
    if transport.size == 1:
        return Finding("ok", "transport", "one rank: nothing moves")
    if transport.in_process:
        return Finding("ok", "transport", f"{transport.size} ranks are threads of one process: a message is one copy")
    hosts = transport.hosts
    groups = [[str(rank) for rank in range(transport.size) if hosts[rank] == host] for host in dict.fromkeys(hosts)]
    shared = [group for group in groups if len(group) > 1]
    reported = "; ".join(f"ranks {ranges(group)} share memory" for group in shared)
    machines = {comm.topology.by_id[place].host for place in comm.places}
    if len(groups) == 1:
        return Finding("ok", "transport", f"{reported}: they are on one host, and can map its memory")
    if len(groups) == len(machines):
        between = f"{messages} between hosts"
        return Finding("ok", "transport", f"{reported}; {between}" if shared else f"{between}: one rank on each")
    if not kernels:
        reason, remedy = "no compiled code on every rank", "see `native` and `kernels` above"
    elif not shared_memory:
        reason, remedy = "memory files cannot be mapped", "see `shared memory` above"
    else:
        reason, remedy = "ranks of one host are in different containers", "start them in one process namespace"
    return Finding(
        "warn", "transport", f"{reported + '; ' if reported else ''}{messages} within a host: {reason}", remedy
    )


def check_peer_memory_of(comm: Communicator) -> list[Finding]:
    """Try whether ranks of one host read each other's memory; no finding where they do, or are alone. Collective."""
    transport = comm.session.transport
    if len(set(transport.hosts)) == transport.size:
        return []
    with comm.session.call(GATHER_TAG):
        reads = can_read_peers(comm.session.waiting)
    if reads:
        return []
    text = "not all ranks can read the memory of those of their host: long values that are only moved are copied twice"
    remedy = "one user for all ranks; kernel.yama.ptrace_scope 0; process_vm_readv allowed in containers"
    return [Finding("info", "peer memory", text, remedy)]


def check_transport_alone(*, kernels: bool, shared_memory: bool) -> Finding:
    """Describe the transport that ranks of this host would use; there is no launcher."""
    alone = (
        "no launcher: ranks of `run_local` are threads, a message is one copy; under mpirun ranks of this host would"
    )
    if kernels and shared_memory:
        return Finding("info", "transport", f"{alone} share memory", "mpirun -n 2 topocomm doctor")
    reason = "memory files cannot be mapped" if kernels else "no compiled code"
    return Finding("info", "transport", f"{alone} exchange messages: {reason}", "see the findings above")
