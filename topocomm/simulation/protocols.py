"""Protocols of transports by size: what a message costs beside its bytes and the latency of its route.

Data, so that measurement can replace it: `transport("nccl")` names the defaults of a library, and `_replace` or a
`Transport` of one's own puts fitted figures in their place.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.cost.simulated_work import SEND, Work
from topocomm.planning.cost.task_routes import route_tasks
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.model import Topology


class Protocol(NamedTuple):
    """How messages up to a size are sent.

    Attributes:
        name: As the library calls it.
        upto_bytes: Largest message, infinite for the last protocol of a transport.
        payload_share: Payload over the bytes on the wire.
        before_us: Time of a message before its first byte, beside handshakes.
        handshakes: Round trips on the message's route before its first byte.
        most_gb_per_s: Limit on a message's rate on the wire, infinite without one.
        source: Where the figures are from.
    """

    name: str
    upto_bytes: float
    payload_share: float = 1.0
    before_us: float = 0.0
    handshakes: int = 0
    most_gb_per_s: float = inf
    source: str = ""


class Transport(NamedTuple):
    """The protocols of a library, by size: a message takes the first that is for its size."""

    name: str
    protocols: tuple[Protocol, ...]


_LL_SOURCE = "NCCL src/include/device.h: union ncclLLFifoLine, 4 bytes of data and 4 of flag in each 8"
_LL128_SOURCE = "NCCL src/include/device.h: NCCL_LL128_DATAELEMS, 120 bytes of data in each 128"
_P2P_SOURCE = f"NCCL NCCL_P2P_LL_THRESHOLD, 16384 bytes; {_LL_SOURCE}"
LL = Protocol("LL", inf, 1 / 2, source=_LL_SOURCE)
LL128 = Protocol("LL128", inf, 120 / 128, source=_LL128_SOURCE)
SIMPLE = Protocol("Simple", inf, source="NCCL: data in buffers of its own, flags beside them")


def _mpi(name: str, eager_bytes: int, source: str) -> Transport:
    eager = Protocol("eager", eager_bytes, source=source)
    return Transport(name, (eager, Protocol("rendezvous", inf, handshakes=1, source=source)))


TRANSPORTS = {
    each.name: each
    for each in (
        Transport("none", (Protocol("none", inf, source="bytes and latency of the topology only"),)),
        Transport("nccl", (LL._replace(upto_bytes=16384, source=_P2P_SOURCE), SIMPLE)),
        Transport("nccl-ll", (LL,)),
        Transport("nccl-ll128", (LL128,)),
        Transport("nccl-simple", (SIMPLE,)),
        _mpi("openmpi-tcp", 65536, "Open MPI 5.0: ompi_info btl_tcp_eager_limit"),
        _mpi("openmpi-sm", 4096, "Open MPI 5.0: ompi_info btl_sm_eager_limit"),
    )
}
"""Transports by name. Costs before a message are 0 here: what the topology's latencies have is not counted twice."""


def transport(name: str) -> Transport:
    """Return a transport of the table.

    Raises:
        PlanError: There is none of this name; the message lists them.
    """
    if name not in TRANSPORTS:
        raise PlanError(f"protocols {name!r}: expected one of {', '.join(TRANSPORTS)}")
    return TRANSPORTS[name]


def with_protocols(work: Work, machine: Topology | PathFinder, used: Transport) -> Work:
    """Return the work with each message sent by the protocol for its size.

    Payloads become bytes on the wire, rounded up; handshakes and costs are added before the first byte, and limits of
    rate are lowered. Other tasks stay.

    Raises:
        NoRouteError: No route joins the ends of a message.
        PlanError: A transport has no protocol for a size, or a protocol has an impossible figure.
    """
    _check(used)
    limits = np.array([each.upto_bytes for each in used.protocols])
    which = np.searchsorted(limits, work.payload_bytes, side="left")
    sent = np.flatnonzero(work.kind == SEND)
    which = which[sent]
    share, before_us, round_trips, most = (
        np.array([each[column] for each in used.protocols], dtype=float)[which] for column in (2, 3, 4, 5)
    )
    payload_bytes, all_before_us, limit = work.payload_bytes.copy(), work.before_us.copy(), work.most_gb_per_s.copy()
    payload_bytes[sent] = np.ceil(payload_bytes[sent] / share - 1e-9).astype(np.int64)
    all_before_us[sent] += before_us
    if round_trips.any():
        paths = PathFinder(machine) if isinstance(machine, Topology) else machine
        all_before_us[sent] += 2 * round_trips * route_tasks(work, paths).latency_us[sent]
    limit[sent] = np.minimum(limit[sent], most)
    return replace(work, payload_bytes=payload_bytes, before_us=all_before_us, most_gb_per_s=limit)


def _check(used: Transport) -> None:
    limits = [each.upto_bytes for each in used.protocols]
    if not limits or limits[-1] != inf or any(low >= high for low, high in pairwise(limits)):
        raise PlanError(f"transport {used.name}: expected protocols by ascending size, the last for any size")
    for each in used.protocols:
        if not (0 < each.payload_share <= 1 and 0 <= each.before_us < inf and each.most_gb_per_s > 0):
            raise PlanError(
                f"transport {used.name}, protocol {each.name}: expected a share of payload in (0, 1], a time of at "
                "least 0 us and a rate above 0 GB/s"
            )
