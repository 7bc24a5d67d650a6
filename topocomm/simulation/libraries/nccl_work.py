"""NCCL's algorithms as work for the simulator: contention on links comes out of it, `nccl_times` is its closed form.

Bytes are those on the wire: payload over the share that a protocol carries and over the efficiency of the links, since
the simulator's links are nominal. Channels over one ring or tree are one message with the rate of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.routing.routes import Ints
from topocomm.simulation.libraries.job_shape import JobShape, job_shape
from topocomm.simulation.libraries.library_algorithm import LibraryAlgorithm
from topocomm.simulation.libraries.library_figures import Figures, ll128_of, topology_figures
from topocomm.simulation.libraries.nccl_choice import PROTOCOLS, Choice, choices
from topocomm.simulation.libraries.nccl_rings import ring_orders
from topocomm.simulation.libraries.nccl_times import (
    CHUNK_BYTES,
    Rates,
    nvls_gb_per_s,
    rates_of,
)
from topocomm.simulation.simulated_work import NO_TASK, Work, WorkBuilder
from topocomm.topology.model import Topology

MOST_MESSAGES = 200_000
"""Messages of a ring beyond which all chunks of an edge are one message that starts after the ring's latency."""


@dataclass(frozen=True)
class _Call:
    """One call: what is needed to send its messages."""

    topology: Topology
    shape: JobShape
    figures: Figures
    collective: str
    payload_bytes: int
    protocol: str

    def rates(self, *, ring: bool) -> Rates:
        return rates_of(self.shape, self.figures, self.protocol, self.payload_bytes, ring=ring)

    def is_far(self, src: Ints, dst: Ints) -> Any:
        return src // self.shape.per_host != dst // self.shape.per_host

    def wire(self, far: Any) -> Any:
        """float64: bytes on the wire of one byte of payload."""
        share = self.figures.get(f"nccl.share.{self.protocol}", 1.0)
        inside = self.figures[f"efficiency.{self.shape.inner}"]
        return 1 / (share * np.where(far, self.figures["efficiency.network"], inside))

    def channel_gb_per_s(self) -> float:
        """GB/s of payload of one channel, whatever the links have."""
        free = replace(self.shape, inner_gb_per_s=1e9, network_gb_per_s=1e9)
        return rates_of(free, self.figures, self.protocol, self.payload_bytes, ring=True).inside / 1e3


def ring_work(call: _Call) -> Work:
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


def chain_work(call: _Call) -> Work:
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


def tree_work(call: _Call) -> Work:
    """Return the messages of double binary trees over hosts, with chains inside them, up and then down.

    The first chunk goes hop by hop; all others are one message an edge, a pipeline in its steady state.
    """
    shape, rates = call.shape, call.rates(ring=False)
    first = min(call.payload_bytes / rates.count, CHUNK_BYTES[PROTOCOLS.index(call.protocol)])
    builder = WorkBuilder(shape.ranks)
    orders = ring_orders(call.topology, shape)
    trees = [edges for order in orders for edges in _trees(shape, order)]
    chunk = first * rates.count / len(trees)
    rest = max(call.payload_bytes / len(trees) - chunk, 0.0) / call.figures["nccl.tree_share"]
    for edges in trees:
        _send_tree(builder, call, edges, chunk, rest, call.channel_gb_per_s() * rates.count / len(trees))
    return builder.build()


def _send_tree(
    builder: WorkBuilder, call: _Call, edges: list[list[tuple[int, int]]], chunk: float, rest: float, most: float
) -> None:
    """Add the messages of one tree, level by level up, then down; `most` is payload GB/s of its channels."""
    rates = call.rates(ring=False)
    arrived: dict[int, list[int]] = {}
    levels = [[(child, parent) for child, parent in level] for level in edges]
    levels += [[(parent, child) for child, parent in level] for level in reversed(edges)]
    for round_, level in enumerate(levels):
        src, dst = np.array(level).T
        far = call.is_far(src, dst)
        wire = call.wire(far)
        most_waits = max(1, *(len(arrived.get(rank, ())) for rank in src.tolist()))
        waits = np.full((len(level), most_waits), NO_TASK)
        for row, rank in enumerate(src.tolist()):
            waits[row, : len(arrived.get(rank, ()))] = arrived.get(rank, [])
        head = builder.send(
            src,
            dst,
            np.ceil(chunk * wire),
            after=waits,
            before_us=np.where((waits == NO_TASK).all(axis=1), call.figures[f"nccl.start_us.{call.protocol}"], 0.0),
            latency_us=np.where(far, rates.across_us, rates.inside_us),
            most_gb_per_s=most * wire,
            round_=round_,
            label=f"allreduce tree {call.protocol}",
        )
        if rest:
            sizes = np.ceil(rest * wire)
            builder.send(src, dst, sizes, after=head, latency_us=0.0, most_gb_per_s=most * wire, label="following")
        is_up = round_ < len(edges)
        for rank, task in zip(dst.tolist(), head.tolist(), strict=True):
            arrived[rank] = [*arrived.get(rank, []), task] if is_up else [task]


def _trees(shape: JobShape, order: list[int]) -> list[list[list[tuple[int, int]]]]:
    """Trees along one ring's order: levels of (child, parent) ranks, leaves first.

    Chains lead to the first rank of each host's part of the order, binary trees over hosts from there. The second tree
    is that of the hosts shifted by one, so that leaves of one are inside the other (Sanders, Speck, Träff, Parallel
    Computing 35 (2009) 581-594).
    """
    size, hosts = shape.per_host, shape.hosts
    chains = [
        [(order[host * size + place], order[host * size + place - 1]) for host in range(hosts)]
        for place in range(size - 1, 0, -1)
    ]
    above: dict[int, list[tuple[int, int]]] = {}
    for place in range(1, hosts):
        low = place & -place
        parent = (place & ~low) | (low << 1)
        above.setdefault(low, []).append((place, parent if parent < hosts else place & ~low))
    trees = []
    for shift in range(2 if hosts > 1 else 1):
        between = [
            [(order[(a + shift) % hosts * size], order[(b + shift) % hosts * size]) for a, b in above[low]]
            for low in sorted(above)
        ]
        trees.append([*chains, *between])
    return trees


def nvls_work(call: _Call) -> Work:
    """Return the messages of an allreduce in the switches: every rank reads through them and writes through them."""
    shape, figures = call.shape, call.figures
    switches = _switches(call)
    if not switches or shape.hosts > 1:
        raise PlanError("nccl-nvls: expected one NVLink domain with switches that reduce; nccl-ring runs everywhere")
    wire = shape.inner_gb_per_s / (nvls_gb_per_s(shape) * figures["efficiency.nvlink"])
    rate = nvls_gb_per_s(shape) * figures["efficiency.nvlink"] * 1e3
    filling_us = figures["nvls.ramp_us"] * call.payload_bytes / (call.payload_bytes + rate * figures["nvls.ramp_us"])
    devices = (*shape.ranks, switches[0])
    builder, ranks = WorkBuilder(devices), np.arange(len(shape.ranks))
    hub = len(shape.ranks)
    sizes = np.ceil(call.payload_bytes * wire)
    before_us = figures["nvls.start_us"] + filling_us
    for src, dst, words in ((ranks, hub, "reduce"), (hub, ranks, "multicast")):
        ends = np.broadcast_arrays(src, dst)
        paths = [
            builder.path((devices[int(a)], devices[int(b)])) for a, b in zip(ends[0].flat, ends[1].flat, strict=True)
        ]
        builder.send(
            ends[0], ends[1], sizes, before_us=before_us, latency_us=0.0, path=paths, label=f"allreduce NVLS {words}"
        )
    return builder.build()


def nvls_tree_work(call: _Call) -> Work:
    """Return the messages of an allreduce in switches inside and over trees of hosts, a double tree for each rank.

    All flow at once, a pipeline in its steady state; each edge begins when the first chunk has come up to it.
    """
    shape, figures = call.shape, call.figures
    switches = _switches(call)
    if shape.hosts < 2 or len(switches) < shape.hosts:
        raise PlanError("nccl-nvls-tree: expected several hosts whose switches reduce; nccl-tree runs everywhere")
    devices = (*shape.ranks, *switches)
    builder, size = WorkBuilder(devices), shape.per_host
    ranks = np.arange(len(shape.ranks))
    hubs = len(ranks) + ranks // size
    start_us = figures["nvls.start_us"] + figures["nvls.ramp_us"]
    wire = shape.inner_gb_per_s / (nvls_gb_per_s(shape) * figures["efficiency.nvlink"])
    levels = (shape.hosts - 1).bit_length()
    whole_us = start_us + 2 * levels * figures["nvls.tree_hop_us"]
    for src, dst, words, before_us in ((ranks, hubs, "reduce", start_us), (hubs, ranks, "multicast", whole_us)):
        paths = [builder.path((devices[a], devices[b])) for a, b in zip(src.tolist(), dst.tolist(), strict=True)]
        sizes = np.ceil(call.payload_bytes * wire)
        label = f"allreduce NVLS tree {words}"
        builder.send(src, dst, sizes, before_us=before_us, latency_us=0.0, path=paths, label=label)
    sizes = np.ceil(call.payload_bytes / size / 2 / figures["efficiency.network"])
    for place in range(size):
        order = [host * size + place for host in range(shape.hosts)]
        for edges in _trees(replace(shape, per_host=1), order):
            for round_, level in enumerate([*edges, *[[(b, a) for a, b in each] for each in reversed(edges)]]):
                src, dst = np.array(level).T
                before_us = start_us + round_ * figures["nvls.tree_hop_us"]
                latency_us = figures["nvls.tree_hop_us"]
                builder.send(
                    src,
                    dst,
                    sizes,
                    before_us=before_us,
                    latency_us=latency_us,
                    round_=round_,
                    label="allreduce NVLS tree",
                )
    return builder.build()


def _switches(call: _Call) -> list[str]:
    """The reducing switch of each group, in order of the groups that have one."""
    first = set(call.shape.ranks[:: call.shape.per_host])
    found = {
        link.src: link.dst
        for link in call.topology.links
        if link.src in first and call.topology.by_id[link.dst].in_network == "nvls"
    }
    return [found[end] for end in call.shape.ranks[:: call.shape.per_host] if end in found]


def pat_work(call: _Call) -> Work:
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
    call = _Call(topology, shape, figures, collective, payload_bytes, choice.protocol)
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
