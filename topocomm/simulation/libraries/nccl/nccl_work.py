"""NCCL's algorithms as work for the simulator: contention on links comes out of it, `nccl_times` is its closed form.

Bytes are those on the wire: payload over the share that a protocol carries and over the efficiency of the links, since
the simulator's links are nominal. Channels over one ring or tree are one message with the rate of all of them.
"""

from __future__ import annotations

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.cost.simulated_work import Work, WorkBuilder
from topocomm.planning.libraries.job_shape import JobShape, job_shape
from topocomm.planning.libraries.library_figures import Figures, ll128_of, topology_figures
from topocomm.planning.libraries.nccl_choice import PROTOCOLS, Choice, choices
from topocomm.planning.libraries.nccl_times import CHUNK_BYTES
from topocomm.simulation.libraries.library_algorithm import LibraryAlgorithm
from topocomm.simulation.libraries.nccl.nccl_call import NcclCall
from topocomm.simulation.libraries.nccl.nccl_rings import ring_orders
from topocomm.simulation.libraries.nccl.nccl_switch_work import nvls_tree_work, nvls_work
from topocomm.simulation.libraries.nccl.nccl_tree_work import tree_work
from topocomm.topology.model import Topology

MOST_MESSAGES = 200_000
"""Messages of a ring beyond which all chunks of an edge are one message that starts after the ring's latency."""


def ring_work(call: NcclCall) -> Work:
    """Return the messages of all rings; a round's message of an edge follows that of the edge before it."""
    shape = call.shape
    n = shape.hosts * shape.per_host
    orders = ring_orders(call.topology, shape)
    rates = call.rates(ring=True)
    used = orders[: max(1, min(len(orders), round(rates.count)))]
    rounds = (2 if call.collective == "allreduce" else 1) * (n - 1)
    builder = WorkBuilder(shape.ranks)
    start_us = call.figures[f"nccl.start_us.{call.protocol}"]
    most = call.channel_gb_per_s() * rates.count / len(used)
    grouped = n * rounds * len(used) > MOST_MESSAGES
    for order in used:
        src = np.array(order)
        dst = np.roll(src, -1)
        far = call.is_far(src, dst)
        wire, latency = call.wire(far), np.where(far, rates.across_us, rates.inside_us)
        part = call.payload_bytes / n / len(used)
        label = f"{call.collective} ring {call.protocol}"
        if grouped:
            filling_us = start_us + rounds * float(latency.mean())
            sizes = np.ceil(part * rounds * wire)
            builder.send(src, dst, sizes, before_us=filling_us, latency_us=0.0, most_gb_per_s=most * wire, label=label)
            continue
        sent = None
        for round_ in range(rounds):
            sent = builder.send(
                src,
                dst,
                np.ceil(part * wire),
                after=None if sent is None else np.roll(sent, 1),
                before_us=start_us if sent is None else 0.0,
                latency_us=latency,
                most_gb_per_s=most * wire,
                round_=round_,
                label=label,
            )
    return builder.build()


def chain_work(call: NcclCall) -> Work:
    """Return the messages of a broadcast from rank 0, or a reduction to it, along rings cut open there.

    The first chunk goes hop by hop, all others follow as one message an edge. It is one call alone: of calls in a row
    the next begins before (`nccl_times.chain_us`).
    """
    shape, rates = call.shape, call.rates(ring=False)
    n = shape.hosts * shape.per_host
    orders = ring_orders(call.topology, shape)
    used = orders[: max(1, min(len(orders), round(rates.count)))]
    most = call.channel_gb_per_s() * rates.count / len(used)
    part = call.payload_bytes / len(used)
    chunk = min(part, CHUNK_BYTES[PROTOCOLS.index(call.protocol)] * rates.count / len(used))
    builder = WorkBuilder(shape.ranks)
    for order in used:
        at = order.index(0)
        way = np.array([*order[at:], *order[:at]])
        if call.collective == "reduce":
            way = way[::-1]
        src, dst = way[:-1], way[1:]
        far = call.is_far(src, dst)
        wire, latency_us = call.wire(far), np.where(far, rates.across_us, rates.inside_us)
        head = None
        for hop in range(n - 1):
            one = slice(hop, hop + 1)
            head = builder.send(
                src[one],
                dst[one],
                np.ceil(chunk * wire[one]),
                after=head,
                before_us=call.figures[f"nccl.start_us.{call.protocol}"] if head is None else 0.0,
                latency_us=latency_us[one],
                most_gb_per_s=most * wire[one],
                round_=hop,
                label=f"{call.collective} ring {call.protocol}",
            )
            if part > chunk:
                rest = np.ceil((part - chunk) * wire[one])
                limit = most * wire[one]
                builder.send(
                    src[one], dst[one], rest, after=head, latency_us=0.0, most_gb_per_s=limit, label="following"
                )
    return builder.build()


def pat_work(call: NcclCall) -> Work:
    """Return the messages of PAT: rounds over distances that halve or double, one rank a host."""
    shape, figures = call.shape, call.figures
    n = shape.hosts * shape.per_host
    if shape.per_host > 1:
        raise PlanError("nccl-pat: expected one rank a host, as NCCL runs it")
    levels = (n - 1).bit_length()
    gathers = call.collective == "allgather"
    builder, rank = WorkBuilder(shape.ranks), np.arange(n)
    latency_us = figures["nccl.hop_us.network.Simple"] / 3.5 + 2.8 * n / levels
    sent, before = None, 0
    for round_ in range(levels):
        distance = 1 << (round_ if gathers else levels - 1 - round_)
        sizes = np.ceil(call.payload_bytes / n * min(distance, n - distance) / figures["efficiency.network"])
        sent = builder.send(
            rank,
            (rank + distance) % n,
            sizes,
            after=None if sent is None else np.stack([sent, sent[(rank - before) % n]], axis=1),
            before_us=figures["nccl.start_us.Simple"] if sent is None else 0.0,
            latency_us=latency_us,
            round_=round_,
            label=f"{call.collective} PAT",
        )
        before = distance
    return builder.build()


def call_work(
    *,
    topology: Topology,
    shape: JobShape,
    figures: Figures,
    collective: str,
    payload_bytes: int,
    choice: Choice,
) -> Work:
    """Return the work of a call by one algorithm and protocol, with these figures.

    Raises:
        PlanError: The algorithm is not simulated, or the machine cannot run it.
    """
    if choice.algorithm not in _BUILDERS:
        raise PlanError(f"NCCL's {choice.algorithm} is not simulated; expected one of {', '.join(_BUILDERS)}")
    call = NcclCall(topology, shape, figures, collective, payload_bytes, choice.protocol)
    if collective in ("broadcast", "reduce"):
        return chain_work(call)
    return _BUILDERS[choice.algorithm](call)


_BUILDERS = {"ring": ring_work, "tree": tree_work, "nvls": nvls_work, "nvls-tree": nvls_tree_work, "pat": pat_work}


def _build(only: str | None, topology: Topology, collective: str, payload_bytes: int, ranks: tuple[str, ...]) -> Work:
    """The work of one algorithm by its best protocol, or of what NCCL's tuner takes."""
    shape = job_shape(topology, ranks)
    every = choices(shape, collective, payload_bytes, has_ll128=ll128_of(topology.facts))
    known = [choice for choice in every if choice.algorithm in _BUILDERS]
    fitting = [c for c in known if only in (None, c.algorithm)]
    if not fitting and only is not None:
        fitting = [Choice(only, "Simple", 0.0)]
    choice = min(fitting, key=lambda c: c.tuner_us)
    figures = topology_figures(topology)
    return call_work(
        topology=topology,
        shape=shape,
        figures=figures,
        collective=collective,
        payload_bytes=payload_bytes,
        choice=choice,
    )


def _algorithm(name: str, only: str | None, summary: str, *collectives: str) -> LibraryAlgorithm:
    def build(topology: Topology, collective: str, payload_bytes: int, ranks: tuple[str, ...]) -> Work:
        return _build(only, topology, collective, payload_bytes, ranks)

    return LibraryAlgorithm(name, summary, collectives, build)


_RING_COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
ALGORITHMS = (
    _algorithm("nccl", None, "what NCCL's tuner takes", *_RING_COLLECTIVES),
    _algorithm("nccl-ring", "ring", "NCCL's rings", *_RING_COLLECTIVES),
    _algorithm("nccl-tree", "tree", "NCCL's double binary tree over hosts", "allreduce"),
    _algorithm("nccl-nvls", "nvls", "NVLink SHARP in one NVLink domain", "allreduce"),
    _algorithm("nccl-nvls-tree", "nvls-tree", "NVLink SHARP inside, a double tree over hosts", "allreduce"),
    _algorithm("nccl-pat", "pat", "NCCL's aggregated trees, one rank a host", "allgather", "reduce_scatter"),
)
