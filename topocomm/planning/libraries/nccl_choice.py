"""Which algorithm and protocol NCCL takes: its own tuner, with its own constants, by version.

Sources: NCCL `src/graph/tuning.cc` of 2.8 to 2.18 (`_EARLY`) and of 2.19 on (`_LATE`; the constants of 2.30.7), and of
2.23 on PAT. The tuner
predicts a time for each pair of algorithm and protocol and takes the least. What it predicts is not what calls take:
that is `nccl_times`. Times in us, protocols in the order LL, LL128, Simple.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topocomm.planning.libraries.job_shape import JobShape

Version = tuple[int, ...]
PROTOCOLS = ("LL", "LL128", "Simple")
PAT_SINCE, NVLS_SINCE, NVLS_TREE_SINCE = (2, 23), (2, 17), (2, 18)
"""First versions with an algorithm."""
NEWEST: Version = (2, 30)
"""Assumed where the version is not known."""


class _Tuner(NamedTuple):
    """Constants of one range of versions."""

    start_us: dict[str, tuple[float, float, float]]
    hop_us: dict[str, dict[str, tuple[float, float, float]]]
    ring_ll_share: float
    plateau: float


_RING_HOPS = {"nvlink": (0.47, 1.9, 3.4), "pcie": (1.0, 2.5, 5.7), "network": (2.7, 4.0, 9.6)}
_EARLY = _Tuner(
    {"ring": (3.6, 10.0, 8.4), "tree": (4.4, 4.4, 0.0)},
    {
        "ring": _RING_HOPS,
        "tree": {"nvlink": (0.52, 1.25, 28.0), "pcie": (1.0, 1.9, 28.0), "network": (5.0, 8.5, 28.0)},
    },
    0.25,
    1.9,
)
_LATE = _Tuner(
    {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)},
    {
        "ring": {**_RING_HOPS, "nvlink": (0.6, 1.9, 3.4), "network": (2.7, 4.0, 14.0)},
        "tree": {"nvlink": (0.6, 1.25, 4.0), "pcie": (1.0, 1.9, 4.0), "network": (5.0, 8.5, 14.0)},
    },
    0.5,
    1.4,
)
_LL_MOST = {"volta": (39.0, 39.0, 20.4), "ampere": (87.7, 22.5, 19.0), "hopper": (141.0, 45.0, 35.0)}
"""Most GB/s of LL on one node, on two, on more."""
_LL_MOST |= {"blackwell": (282.0, 90.0, 70.0), "ada": _LL_MOST["ampere"], "amd": _LL_MOST["ampere"]}
_TREE_MOST = {"volta": (26.5, 18.5, 10.0), "ampere": (24.0, 23.6, 17.8), "hopper": (38.7, 41.4, 36.0)}
"""Most GB/s of a tree's channel on one node, on two, on more."""
_TREE_MOST |= {"blackwell": (77.4, 82.8, 72.0), "ada": _TREE_MOST["ampere"], "amd": _TREE_MOST["hopper"]}
_BUS_MOST = {"ampere": 235.0, "hopper": 370.0}
"""Bus GB/s that the tuner does not exceed."""
_TREE_CORRECTION = (
    (1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0),
    (1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
"""Share of a tree's bandwidth by size, in powers of two from 64 bytes on."""
_LINK_SHARE = {"nvlink": 0.8, "xgmi": 0.75, "pcie": 0.75, "memory": 1.0}
"""Share of nominal GB/s that NCCL's search counts (topo.h: 20 of 25 of an NVLink, 24 of 32 of PCIe 4)."""
_NVLS_US, _NVLS_TREE_US = 25.0, 20.9
_NVLS_TREE_MOST = {"hopper": (57.7, 45.5), "blackwell": (96.0, 80.0)}
"""Most GB/s of each channel of NVLS's trees, one channel a rank of a node, on two nodes and on more."""
_NVLS_SHARE = {"hopper": 0.85 * 0.75, "blackwell": 0.74 * 0.75}


class Choice(NamedTuple):
    """What NCCL runs, and the time that its tuner predicts."""

    algorithm: str
    protocol: str
    tuner_us: float

    @property
    def words(self) -> str:
        """The algorithm as NCCL names it, with the protocol where there are several."""
        alone = {"nvls": "NVLS", "nvls-tree": "NVLS tree", "pat": "PAT"}
        return alone.get(self.algorithm) or f"{self.algorithm} {self.protocol}"


def choose(
    shape: JobShape, collective: str, payload_bytes: int, *, version: Version = NEWEST, has_ll128: bool | None = None
) -> Choice:
    """Return the algorithm and protocol of a call of allreduce, allgather, reduce_scatter, broadcast or reduce.

    Args:
        shape: The ranks.
        collective: Our name.
        payload_bytes: As plans count it.
        version: Of NCCL.
        has_ll128: Whether protocol LL128 is in use; None: by NCCL's rule, NVLink between all ranks of a node.
    """
    return min(
        choices(shape, collective, payload_bytes, version=version, has_ll128=has_ll128), key=lambda c: c.tuner_us
    )


def choices(
    shape: JobShape, collective: str, payload_bytes: int, *, version: Version = NEWEST, has_ll128: bool | None = None
) -> Iterator[Choice]:
    """Yield all pairs of algorithm and protocol that NCCL has for a call, with what its tuner predicts."""
    tuner = _LATE if version >= (2, 19) else _EARLY
    ll128 = has_ll128 if has_ll128 is not None else shape.inner == "nvlink" and shape.generation != "unknown"
    for number, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128" and not ll128:
            continue
        yield Choice("ring", protocol, _ring_us(tuner, shape, collective, payload_bytes, number))
        if collective == "allreduce":
            yield Choice("tree", protocol, _tree_us(tuner, shape, payload_bytes, number))
    in_switches = shape.reduces and version >= (NVLS_SINCE if shape.hosts == 1 else NVLS_TREE_SINCE)
    if collective == "allreduce" and in_switches and shape.per_host > 2:
        yield _nvls(shape, payload_bytes)
    if collective in ("allgather", "reduce_scatter") and shape.per_host == 1 and version >= PAT_SINCE:
        yield Choice("pat", "Simple", _pat_us(tuner, shape, payload_bytes))


def bus_gb_per_s(shape: JobShape) -> float:
    """Return the bus bandwidth that NCCL's search finds for rings: that of the ports between nodes, or inside."""
    inside = shape.inner_gb_per_s * _LINK_SHARE[shape.inner]
    inside = min(inside, _BUS_MOST.get(shape.generation, inside)) if shape.per_host > 1 else float("inf")
    return inside if shape.hosts == 1 else min(inside, shape.network_gb_per_s)


def _ring_us(tuner: _Tuner, shape: JobShape, collective: str, payload_bytes: int, number: int) -> float:
    n, hosts = shape.hosts * shape.per_host, shape.hosts
    passes = 2 if collective == "allreduce" else 1
    steps = n if collective in ("broadcast", "reduce") else passes * (n - 1)
    between = passes * (hosts - 1)
    if steps == n or (tuner is _EARLY and collective == "allreduce"):
        between = passes * hosts
    across = between if hosts > 1 else 0
    bus = bus_gb_per_s(shape)
    if number == 0:
        bus = min(_most(_LL_MOST, shape), bus * tuner.ring_ll_share)
    elif number == 1:
        bus *= 0.92
    hops = tuner.hop_us["ring"]
    inside_us = hops[_kind(shape)][number] * (1.8 if hosts > 1 and number == 0 and tuner is _EARLY else 1.0)
    latency_us = tuner.start_us["ring"][number]
    if collective in ("broadcast", "reduce"):
        if hosts == 1:
            latency_us += hops[_kind(shape)][number]
        else:  # rings of different channels take different ways, and chunks are sent on whole
            latency_us += steps * (tuner.hop_us["tree"] if number == 2 else hops)["network"][number]
    else:
        latency_us += (steps - across) * inside_us + across * hops["network"][number]
    if number == 2 and hosts > 1 and collective == "allreduce" and payload_bytes >= n / 16 * 65536:
        latency_us *= tuner.plateau
    return latency_us + payload_bytes * steps / n / bus / 1e3


def _tree_us(tuner: _Tuner, shape: JobShape, payload_bytes: int, number: int) -> float:
    one_node = shape.hosts == 1
    bus = min(bus_gb_per_s(shape) * 0.92, _most(_TREE_MOST, shape) * channels(shape))
    if number == 0:
        bus = min(bus / 3.8, _most(_LL_MOST, shape))
    elif number == 1:
        bus *= 7 / 9 if one_node else 120 / 128
    size = min(max((payload_bytes >> 6).bit_length() - 1, 0), len(_TREE_CORRECTION[0]) - 1)
    hops = tuner.hop_us["tree"]
    inside_us = hops[_kind(shape)][number] * (1.8 if shape.hosts > 1 and number == 0 and tuner is _EARLY else 1.0)
    levels = shape.hosts.bit_length() - 1
    latency_us = tuner.start_us["tree"][number]
    latency_us += 2 * ((shape.per_host - 1) * inside_us + levels * hops["network"][number])
    return latency_us + payload_bytes / (bus / 2 * _TREE_CORRECTION[number][size]) / 1e3


def _nvls(shape: JobShape, payload_bytes: int) -> Choice:
    inside = shape.inner_gb_per_s * _NVLS_SHARE.get(shape.generation, 0.6)
    if shape.hosts == 1:
        return Choice("nvls", "Simple", _NVLS_US + payload_bytes / inside / 1e3)
    n, two = shape.hosts * shape.per_host, shape.hosts == 2
    most = _NVLS_TREE_MOST.get(shape.generation, _NVLS_TREE_MOST["hopper"])[0 if two else 1]
    bus = min(shape.network_gb_per_s * (2 if two else 1), shape.per_host * most)
    out = bus * n / (2 * (n - 1))
    levels = shape.hosts.bit_length() - 1
    latency_us = _NVLS_US + 2 * levels * _NVLS_TREE_US
    return Choice("nvls-tree", "Simple", latency_us + payload_bytes / min(inside, out) / 1e3)


def _pat_us(tuner: _Tuner, shape: JobShape, payload_bytes: int) -> float:
    levels = (shape.hosts - 1).bit_length()
    latency_us = 8.0 + levels * tuner.hop_us["tree"]["network"][2] / 3.5 + shape.hosts * 2.8
    return latency_us + payload_bytes / (bus_gb_per_s(shape) * 0.75) / 1e3


def channels(shape: JobShape) -> int:
    """Return the number of channels: two for each port between nodes, or for each link inside, within NCCL's limits."""
    if shape.hosts > 1:
        return max(2, min(2 * shape.nics, 32))
    if shape.inner == "pcie":
        return 4
    links = round(shape.inner_gb_per_s / 25.0)
    return {"volta": 2 * links, "ampere": 2 * links, "hopper": 16, "blackwell": 24, "amd": 32}.get(
        shape.generation, max(2, min(links, 24))
    )


def _kind(shape: JobShape) -> str:
    return "nvlink" if shape.inner in ("nvlink", "xgmi") else "pcie"


def _most(table: dict[str, tuple[float, float, float]], shape: JobShape) -> float:
    return table.get(shape.generation, table["ampere"])[min(shape.hosts, 3) - 1]
