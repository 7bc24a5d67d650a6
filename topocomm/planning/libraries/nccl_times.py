"""What NCCL's and RCCL's calls take, in closed form: start, hops, channels, links. `nccl_work` simulates the same.

A call starts, then its chunks go from hop to hop. Few bytes take few channels (a channel has a least number of bytes,
NCCL's thread thresholds), and a channel has a rate of its own; many bytes take what the links give to all channels
together. So the time is the start, the latencies along the longest way, and the larger of the bytes along that way and
the bytes through its narrowest link.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import NamedTuple

from topocomm.errors import PlanError
from topocomm.planning.libraries.job_shape import JobShape
from topocomm.planning.libraries.library_figures import Figures
from topocomm.planning.libraries.nccl_choice import NEWEST, PROTOCOLS, Choice, Version, channels, choices

_THREADS, _THRESHOLD_BYTES = (512, 640, 512), (8, 8, 64)
"""Most threads of a channel, and the least bytes for each of them (NCCL src/include/comm.h); by protocol."""
CHUNK_BYTES = (16384, 32768, 65536)
"""Chunks of trees, by protocol: what a slot of their buffers holds, halved as NCCL does for short payloads."""
_CHAIN_CHUNK_BYTES = 256 << 10
"""Chunks of broadcasts by protocol Simple over several hosts: sent on when they are whole."""
_MSCCL_LEAST_BYTES = 256 * 4
"""Least sum by RCCL's exchange of all with all: a number of float32 in each of its 256 chunks (nchunksperloop in RCCL's
tools/msccl-algorithms/allreduce-allpairs-8n-ll.xml, whose multiples it takes); shorter ones go around the ring."""
_CHANNEL_SCALE = {"hopper": 1.9, "blackwell": 3.8, "amd": 1.9}
"""Rate of a channel over that of V100 and A100 (NCCL tuning.cc, bandwidth per channel: 20, 20, 36.7, 73.4 GB/s)."""


@dataclass(frozen=True)
class Rates:
    """Rates in bytes per us, and latencies, of one protocol on one shape with `count` channels in use.

    Attributes:
        count: Channels, at least one.
        inside: Of one channel from rank to rank inside a group; infinite with one rank a group.
        across: Of one channel between groups; infinite with one group.
        inside_us: Latency of a hop inside.
        across_us: Latency of a hop between groups.
    """

    count: float
    inside: float
    across: float
    inside_us: float
    across_us: float

    @property
    def narrowest(self) -> float:
        """The least rate of a channel."""
        return min(self.inside, self.across)


class TunerSettings(NamedTuple):
    """What NCCL's tuner chooses from.

    Attributes:
        version: Of NCCL.
        has_ll128: Whether LL128 is in use; None: by NCCL's rule.
        algorithms: Those that settings allow; empty: all.
        protocols: The same.
    """

    version: Version = NEWEST
    has_ll128: bool | None = None
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()


ALL = TunerSettings()


def rates_of(shape: JobShape, figures: Figures, protocol: str, payload_bytes: int, *, ring: bool) -> Rates:
    """Return the rates of a call's channels."""
    number = PROTOCOLS.index(protocol)
    threshold = _THREADS[number] * _THRESHOLD_BYTES[number]
    if ring and protocol == "LL":
        threshold *= shape.hosts * shape.per_host
    count = min(float(channels(shape)), max(1.0, payload_bytes / threshold))
    share = figures.get(f"nccl.share.{protocol}", 1.0)
    own = figures[f"nccl.channel_gb_per_s.{protocol}"] * _CHANNEL_SCALE.get(shape.generation, 1.0)
    inside = shape.inner_gb_per_s * figures[f"efficiency.{shape.inner}"] * share / count
    across = shape.network_gb_per_s * figures["efficiency.network"] * share / count
    return Rates(
        count,
        1e3 * min(own, inside) if shape.per_host > 1 else float("inf"),
        1e3 * min(own, across) if shape.hosts > 1 else float("inf"),
        figures[f"nccl.hop_us.{shape.inner}.{protocol}"],
        figures[f"nccl.hop_us.network.{protocol}"],
    )


def nccl_us(
    shape: JobShape,
    figures: Figures,
    collective: str,
    payload_bytes: int,
    settings: TunerSettings = ALL,
) -> float:
    """Return the predicted time in us of a call of NCCL: of messages, or of the collective that `chosen_call` times.

    Raises:
        PlanError: NCCL has no such collective.
    """
    if collective in ("sendrecv", "alltoall", "message", "stream", "gather", "scatter"):
        return messages_us(shape, figures, collective, payload_bytes)
    return chosen_call(shape, figures, collective, payload_bytes, settings)[1]


def chosen_call(
    shape: JobShape,
    figures: Figures,
    collective: str,
    payload_bytes: int,
    settings: TunerSettings = ALL,
) -> tuple[Choice, float]:
    """Return what NCCL's tuner takes for a collective, and the predicted time of that in us.

    Args:
        shape: The ranks.
        figures: All figures.
        collective: Our name.
        payload_bytes: As plans count it.
        settings: What the tuner chooses from.

    Raises:
        PlanError: NCCL has no such collective.
    """
    if collective not in ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce"):
        raise PlanError(f"collective {collective!r}: NCCL has none of this name")
    version, has_ll128, algorithms, protocols = settings
    every = list(choices(shape, collective, payload_bytes, version=version, has_ll128=has_ll128))
    allowed = [c for c in every if not algorithms or c.algorithm in algorithms]
    allowed = [c for c in allowed if not protocols or c.protocol in protocols] or every
    choice = min(allowed, key=lambda c: c.tuner_us)
    return choice, time_us(shape, figures, collective, payload_bytes, choice)


def payload_share(shape: JobShape, figures: Figures) -> float:
    """Return the share of the links' nominal rates that payloads get, by the bytes that must pass links inside and out.

    By the figures of NCCL's calls: headers take the rest, whoever sends. A rank has (n - 1) / n of its value inside a
    group of n, and as much of the part that is its own between groups.
    """
    efficiency = figures[f"efficiency.{shape.inner}"]
    inside = (1 - 1 / shape.per_host) / shape.inner_gb_per_s if shape.per_host > 1 else 0.0
    across = (1 - 1 / shape.hosts) / shape.network_gb_per_s if shape.hosts > 1 else 0.0
    return (inside + across) / (inside / efficiency + across / figures["efficiency.network"])


def rccl_us(shape: JobShape, figures: Figures, collective: str, payload_bytes: int) -> float:
    """Return the predicted time in us of a call of RCCL: NCCL's, or an exchange of all with all where that is shorter.

    RCCL takes MSCCL's kernels up to sizes that it was tuned for on each machine; the lesser time stands for these. It
    does not take them for less than a number a chunk.
    """
    nccl = nccl_us(shape, figures, collective, payload_bytes, TunerSettings(has_ll128=False))
    if collective != "allreduce" or shape.hosts > 1 or not shape.peers or payload_bytes < _MSCCL_LEAST_BYTES:
        return nccl
    return min(nccl, direct_us(shape, figures, payload_bytes))


def time_us(shape: JobShape, figures: Figures, collective: str, payload_bytes: int, choice: Choice) -> float:
    """Return the predicted time in us of a collective by one algorithm and protocol."""
    if choice.algorithm == "nvls":
        return nvls_us(shape, figures, payload_bytes)
    if choice.algorithm == "nvls-tree":
        return nvls_tree_us(shape, figures, payload_bytes)
    if choice.algorithm == "tree":
        return tree_us(shape, figures, payload_bytes, choice.protocol)
    if choice.algorithm == "pat":
        return pat_us(shape, figures, payload_bytes)
    if collective in ("broadcast", "reduce"):
        return chain_us(shape, figures, payload_bytes, choice.protocol)
    return ring_us(shape, figures, collective, payload_bytes, choice.protocol)


def ring_us(shape: JobShape, figures: Figures, collective: str, payload_bytes: int, protocol: str) -> float:
    """Return the time of a ring: each of P chunks goes P - 1 hops, of an allreduce twice as many."""
    n = shape.hosts * shape.per_host
    passes = 2 if collective == "allreduce" else 1
    rates = rates_of(shape, figures, protocol, payload_bytes, ring=True)
    steps = passes * (n - 1)
    across = ceil(steps / shape.per_host) if shape.hosts > 1 else 0  # of the chunk that crosses most
    inside = steps - across
    part = payload_bytes / n / rates.count
    way = inside * part / rates.inside + across * part / rates.across
    narrow = steps * part / rates.narrowest
    latency_us = inside * rates.inside_us + across * rates.across_us
    return figures[f"nccl.start_us.{protocol}"] + latency_us + max(way, narrow)


def tree_us(shape: JobShape, figures: Figures, payload_bytes: int, protocol: str) -> float:
    """Return the time of a double binary tree over hosts, chains inside: up and down, in chunks."""
    rates = rates_of(shape, figures, protocol, payload_bytes, ring=False)
    levels = int(log2(shape.hosts))
    part = payload_bytes / rates.count
    chunk = min(part, CHUNK_BYTES[PROTOCOLS.index(protocol)])
    inside, across = 2 * (shape.per_host - 1), 2 * levels
    first_us = inside * (rates.inside_us + chunk / rates.inside) + across * (rates.across_us + chunk / rates.across)
    following = (part - chunk) / (rates.narrowest * figures["nccl.tree_share"] / 2)
    return figures[f"nccl.start_us.{protocol}"] + first_us + following


def chain_us(shape: JobShape, figures: Figures, payload_bytes: int, protocol: str) -> float:
    """Return the time of a broadcast or reduction along a ring, one of many in a row as benchmarks time them.

    Calls in a row overlap: the next one enters the ring while this one is on its way, so of the way's latency a call
    shows only as much as its bytes hold up the next one.
    """
    n = shape.hosts * shape.per_host
    rates = rates_of(shape, figures, protocol, payload_bytes, ring=False)
    across = shape.hosts - 1
    part = payload_bytes / rates.count
    chunk = min(part, _CHAIN_CHUNK_BYTES) if protocol == "Simple" and shape.hosts > 1 else 0.0
    inside = n - 1 - across
    way_us = inside * (rates.inside_us + chunk / rates.narrowest)
    way_us += across * (rates.across_us + chunk / rates.narrowest) if across else 0.0
    shown_us = min(way_us, payload_bytes / figures["nccl.overlap_gb_per_s"] / 1e3) if shape.hosts > 1 else 0.0
    return figures[f"nccl.start_us.{protocol}"] + shown_us + part / rates.narrowest


def nvls_us(shape: JobShape, figures: Figures, payload_bytes: int) -> float:
    """Return the time of an allreduce in the switches of one NVLink domain.

    Of each value a rank reads its part reduced and writes it to all at once; the switches' share of the links is less
    on Blackwell, as NCCL's tuner has it.
    """
    rate = nvls_gb_per_s(shape) * figures["efficiency.nvlink"]
    filling_us = figures["nvls.ramp_us"] * payload_bytes / (payload_bytes + 1e3 * rate * figures["nvls.ramp_us"])
    return figures["nvls.start_us"] + filling_us + payload_bytes / rate / 1e3


def nvls_gb_per_s(shape: JobShape) -> float:
    """Return the nominal GB/s of payload through reducing switches (NCCL: 0.75 and 0.65 of the links' rate)."""
    return shape.inner_gb_per_s * (0.65 if shape.generation == "blackwell" else 0.75)


def nvls_tree_us(shape: JobShape, figures: Figures, payload_bytes: int) -> float:
    """Return the time of an allreduce in switches inside and over a tree of hosts."""
    levels = (shape.hosts - 1).bit_length()
    latency_us = figures["nvls.start_us"] + 2 * levels * figures["nvls.tree_hop_us"]
    return latency_us + figures["nvls.ramp_us"] + payload_bytes / nvls_tree_gb_per_s(shape, figures) / 1e3


def nvls_tree_gb_per_s(shape: JobShape, figures: Figures) -> float:
    """Return the GB/s of payload over a tree of hosts with switches that reduce inside."""
    network = shape.network_gb_per_s * figures["efficiency.network"]
    out = network if shape.hosts == 2 else network / 2  # a host inside one tree sends to its parent and two children
    return min(nvls_gb_per_s(shape) * figures["efficiency.nvlink"], out)


def pat_us(shape: JobShape, figures: Figures, payload_bytes: int) -> float:
    """Return the time of PAT, parallel aggregated trees: an allgather or reduce_scatter with one rank a host."""
    rate = shape.network_gb_per_s * figures["efficiency.network"]
    levels = (shape.hosts - 1).bit_length()
    latency_us = levels * figures["nccl.hop_us.network.Simple"] / 3.5 + 2.8 * shape.hosts
    return figures["nccl.start_us.Simple"] + latency_us + payload_bytes / rate / 1e3


def direct_us(shape: JobShape, figures: Figures, payload_bytes: int) -> float:
    """Return the time of an allreduce in which all exchange with all, twice, over links of their own."""
    links = shape.inner_gb_per_s * figures["direct.share"]
    moved = 2 * payload_bytes * (shape.per_host - 1) / shape.per_host
    return figures["direct.start_us"] + moved / links / 1e3


def messages_us(shape: JobShape, figures: Figures, collective: str, payload_bytes: int) -> float:
    """Return the time of a group of messages: to the next rank, or to all; the payload of alltoall is a rank's whole.

    Up to half of LL's share of a slot a message goes by LL, beyond by Simple.
    """
    n = shape.hosts * shape.per_host
    inside = (shape.pair_gb_per_s if shape.peers else shape.inner_gb_per_s) * figures[f"efficiency.{shape.inner}"]
    network = shape.network_gb_per_s * figures["efficiency.network"]
    if collective == "alltoall":
        far = payload_bytes * (shape.hosts - 1) / shape.hosts * shape.per_host / network if shape.hosts > 1 else 0.0
        near_rate = shape.inner_gb_per_s * figures[f"efficiency.{shape.inner}"]
        near = payload_bytes * (shape.per_host - 1) / n / near_rate if shape.per_host > 1 else 0.0
        return figures["nccl.message_us"] + max(far, near) / 1e3
    sent = payload_bytes * (1 if collective in ("sendrecv", "message", "stream") else (n - 1) / n)
    rate = min(inside if shape.per_host > 1 else float("inf"), network if shape.hosts > 1 else float("inf"))
    return figures["nccl.message_us"] + sent / rate / 1e3
