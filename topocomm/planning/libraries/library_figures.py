"""Figures of libraries: what starting, a hop, a channel and a link give. Defaults are public; calibration fits them.

A figure has one physical meaning and one value on a machine, for all its host counts, sizes and collectives. Topologies
carry fitted ones as the fact `calibration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from topocomm.errors import TopologyError
from topocomm.topology.model import Topology

FACT = "calibration"
"""Fact of a topology with fitted figures: {"figures": {name: value}, "has_ll128": whether NCCL's LL128 is in use}."""
OF_MEASURED = 0.98
"""Share of a rate measured by messages that payloads of collectives get."""
Figures = Mapping[str, float]
"""Values by name: all of those in DEFAULTS."""


class Figure(NamedTuple):
    """One figure.

    Attributes:
        value: Default, positive.
        meaning: What it is, with its unit.
        source: Where the default is from.
    """

    value: float
    meaning: str
    source: str


_TUNING = "NCCL src/graph/tuning.cc"
_V100 = "read off tables of 4x V100 hosts with EDR (docs/results/simulator.md)"
_LL_RATE = f"{_V100}; a step waits for flags"


def _of_nccl() -> dict[str, Figure]:
    table = {
        "nccl.start_us.LL": Figure(6.6, "us to start a collective, protocol LL", f"{_TUNING}, base latency of rings"),
        "nccl.start_us.LL128": Figure(14.0, "us to start a collective, protocol LL128", f"{_TUNING}, base latency"),
        "nccl.start_us.Simple": Figure(8.4, "us to start a collective, protocol Simple", f"{_TUNING}, base latency"),
        "nccl.share.LL": Figure(
            0.3, "payload over bytes sent, with LL's waits", f"{_TUNING}: 1/4 to 1/2 of the bus; the value {_V100}"
        ),
        "nccl.share.LL128": Figure(0.92, "payload over bytes sent, LL128", f"{_TUNING}: 120/128, less waits"),
        "nccl.tree_share": Figure(
            0.6, "share of the network that a double tree uses", f"{_TUNING}, by size 0.5 to 0.9; the value {_V100}"
        ),
        "nccl.message_us": Figure(10.0, "us of a message of send/recv beside its bytes", f"{_TUNING}, base and hop"),
        "nccl.overlap_gb_per_s": Figure(0.6, "GB/s at which calls in a row expose a broadcast's path", _V100),
        "nvls.start_us": Figure(18.0, "us of a small payload through reducing switches", f"{_TUNING}: 23 to 25"),
        "nvls.ramp_us": Figure(25.0, "us more of a long payload: the pipeline of its chunks fills", "an 8x H100 host"),
        "nvls.tree_hop_us": Figure(18.0, "us a level of a tree of hosts, NVLS inside", f"{_TUNING}: 14 to 18"),
        "direct.start_us": Figure(13.5, "us of an exchange of all with all", "8x MI300X host, RCCL's MSCCL kernels"),
        "direct.share": Figure(0.35, "share of the links that an exchange of all with all uses", "8x MI300X host"),
        "efficiency.nvlink": Figure(0.82, "payload over nominal GB/s", f"{_TUNING} and topo.h: 20 to 21 of 25 a link"),
        "efficiency.xgmi": Figure(0.70, "payload over nominal GB/s", "RCCL on 8x MI300X: 315 of 448"),
        "efficiency.pcie": Figure(0.78, "payload over nominal GB/s", "NCCL topo.h: 24 of 32 GB/s, PCIe 4 x16"),
        "efficiency.network": Figure(0.90, "payload over nominal GB/s", "InfiniBand's headers and NCCL's proxy"),
    }
    hops = {
        "nvlink": (0.6, 1.9, 3.4),
        "xgmi": (0.6, 1.9, 3.4),
        "pcie": (1.0, 2.5, 5.7),
        "network": (5.0, 8.5, 14.0),
    }
    rates = (("LL", 1.8), ("LL128", 10.0), ("Simple", 20.0))
    for kind, latencies in hops.items():
        for (protocol, _), latency_us in zip(rates, latencies, strict=True):
            words = f"us of a hop over {kind}, protocol {protocol}"
            table[f"nccl.hop_us.{kind}.{protocol}"] = Figure(latency_us, words, f"{_TUNING}, hardware latencies")
    for protocol, rate in rates:
        source = f"{_TUNING}: 20 on V100 and A100; newer ones scale" if protocol != "LL" else _LL_RATE
        table[f"nccl.channel_gb_per_s.{protocol}"] = Figure(rate, f"GB/s of one channel, protocol {protocol}", source)
    return table


def _of_mpi() -> dict[str, Figure]:
    return {
        "mpi.call_us": Figure(
            0.6, "us of a round in a rank: post, progress, wait", f"{_V100}: OSU collectives on Xeon, by UCX"
        ),
        "mpi.memory_us": Figure(
            0.3, "us of a small message between cores of a host", f"{_V100}: a cache line's way, twice"
        ),
        "mpi.memory_long_us": Figure(
            2.0, "us more of a message of 8 KiB or more in a host", f"{_V100}: UCX: a handshake"
        ),
        "mpi.memory_gb_per_s": Figure(
            4.5, "GB/s of one core that copies through shared memory", f"{_V100}: two copies a byte"
        ),
        "mpi.fold_gb_per_s": Figure(
            5.0, "GB/s of one core that adds float32", f"{_V100}: memory-bound: two reads and a write"
        ),
        "mpi.segment_us": Figure(0.3, "us of a segment in a pipeline, beside its bytes", f"{_V100}: half a round"),
        "mpi.network_us": Figure(0.9, "us of a small message between hosts", f"{_V100}: OSU latency on InfiniBand EDR"),
        "mpi.eager_gb_per_s": Figure(9.0, "GB/s of one message up to the rendezvous size", f"{_V100}: one EDR port"),
        "mpi.rendezvous_us": Figure(
            8.0, "us of the handshake of long messages", f"{_V100}: a round trip and a registration"
        ),
        "mpi.efficiency": Figure(0.93, "payload over nominal GB/s of a host's ports", f"{_V100}: InfiniBand's headers"),
        "mpi.copy_us": Figure(
            11.0, "us of a copy between device and host memory", f"{_V100}: CUDA, a synchronous copy"
        ),
        "mpi.copy_gb_per_s": Figure(
            3.0, "GB/s of such a copy", f"{_V100}: PCIe 3, pageable memory: through a bounce buffer"
        ),
        "mpi.device_us": Figure(2.4, "us of a small message from device memory", f"{_V100}: OSU on V100 with GDRCopy"),
        "mpi.device_small_gb_per_s": Figure(
            1.2, "GB/s of reading device memory by the CPU", f"{_V100}: GDRCopy's window"
        ),
        "mpi.device_memory_gb_per_s": Figure(0.25, "GB/s of the same inside a host", f"{_V100}: uncached loads"),
        "mpi.device_segment_us": Figure(
            15.0, "us of one of many messages between hosts, by the device", f"{_V100}: CUDA events"
        ),
        "mpi.device_long_us": Figure(
            30.0, "us of a long message from device memory beside its bytes", f"{_V100}: CUDA events"
        ),
        "mpi.device_inside_us": Figure(
            5.0, "us of a copy from device to device beside its bytes", f"{_V100}: CUDA IPC"
        ),
        "mpi.device_gb_per_s": Figure(
            10.0, "GB/s of long messages from device memory", f"{_V100}: one EDR port by GPUDirect"
        ),
    }


TABLE: dict[str, Figure] = {**_of_nccl(), **_of_mpi()}
"""All figures by name."""
DEFAULTS: dict[str, float] = {name: figure.value for name, figure in TABLE.items()}
"""Their default values."""


def is_share(name: str) -> bool:
    """Whether a figure is a share of something, which cannot exceed 1."""
    return "efficiency" in name or "share" in name


def figures_of(facts: Mapping[str, Any], *, source: str = "topology") -> dict[str, float]:
    """Return the defaults, replaced by what a topology's facts say was fitted.

    Raises:
        TopologyError: The fact has a name that is unknown, or a value that is no positive number.
    """
    fact = facts.get(FACT)
    if fact is None:
        return dict(DEFAULTS)
    fitted = fact.get("figures") if isinstance(fact, Mapping) else None
    if not isinstance(fitted, Mapping):
        raise TopologyError(f"{source}: fact {FACT}: expected an object with `figures`")
    for name, value in fitted.items():
        if name not in DEFAULTS:
            raise TopologyError(f"{source}: fact {FACT}: no figure {name!r}; a newer topocomm may have written it")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise TopologyError(f"{source}: fact {FACT}: {name} {value!r}: expected a positive number")
    return {**DEFAULTS, **fitted}


def topology_figures(topology: Topology) -> dict[str, float]:
    """Return the figures of a topology: those that were fitted, else the defaults.

    Where links of a kind were measured by messages (`topocomm inspect --measure`) and nothing was fitted, payloads get
    nearly all of their rate: what headers take is in the measurement.

    Raises:
        TopologyError: As `figures_of`.
    """
    figures = figures_of(topology.facts, source=topology.name)
    if FACT in topology.facts:
        return figures
    for kind in {link.kind for link in topology.links if link.gb_per_s_source == "measured"}:
        for name in (f"efficiency.{kind}", *(("mpi.efficiency",) if kind == "network" else ())):
            if name in figures:
                figures[name] = OF_MEASURED
    return figures


def ll128_of(facts: Mapping[str, Any]) -> bool | None:
    """Return whether NCCL's LL128 is in use, as far as a topology's facts say; None: by NCCL's rule."""
    fact = facts.get(FACT)
    known = fact.get("has_ll128") if isinstance(fact, Mapping) else None
    return known if isinstance(known, bool) else None
