"""Times of NCCL's collectives, by the model with which NCCL itself chooses algorithms.

Source of all figures: NCCL 2.30.7, `src/graph/tuning.cc` (defaults of the tuner), `src/transport/nvls.cc` (channels of
NVLink SHARP). Times in us; protocols in the order LL, LL128, Simple. What is left out is in
docs/concepts/cost-models.md; also a generation's LL, and the CPU's vendor (1 us to post to the network, as for Intel).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PROTOCOLS = ("LL", "LL128", "Simple")
_RING_BASE_US = (6.6, 14.0, 8.4)
_TREE_BASE_US = (6.8, 14.0, 8.4)
_RING_HOP_US = {"nvlink": (0.6, 1.9, 3.4), "pcie": (1.0, 2.5, 5.7), "network": (2.7, 4.0, 14.0)}
_TREE_HOP_US = {"nvlink": (0.6, 1.25, 4.0), "pcie": (1.0, 1.9, 4.0), "network": (5.0, 8.5, 14.0)}
_POST_US = (1.0, 1.0, 3.0)
"""Least time of a step of a ring over several nodes: posting to the network."""
_RING_SHARE = (0.5, 0.92, 1.0)
"""Share of a ring's bandwidth."""
_TREE_SHARE = 0.92
"""Share of a tree's bandwidth."""
_TREE_PATTERN = 0.85
"""Share of a tree's bandwidth where a node has its network card on one GPU."""
_TREE_PROTOCOL_SHARE = {True: (1 / 3.8, 7 / 9, 1.0), False: (1 / 3.8, 120 / 128, 1.0)}
"""Share of a tree's bandwidth, by whether there is one node."""
_TREE_CORRECTION = (
    (1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0),
    (1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
"""Share of a tree's bandwidth by message size, in powers of two from 64 bytes on."""
_PLATEAU = 1.4
"""Factor of a ring's latency over several nodes with protocol Simple."""
_NVLS_US, _NVLS_NETWORK_US = 25.0, 20.9
"""Latency of NVLS, and of each level of its tree over the network."""
_HOPPER_GB_PER_S = 450.0
"""Bandwidth of a GPU into its NVLink 4 switch; above, the figures of Blackwell hold."""
_NVLS_EFFICIENCY = {True: 0.85, False: 0.74}
"""Share of NVLS's bandwidth, by whether it is NVLink 4."""
_NVLS_CHANNELS = {True: 16, False: 24}
"""Channels, by whether it is NVLink 4; one of them only synchronises."""


class Nvls(NamedTuple):
    """NVLink SHARP between all ranks of every node.

    Attributes:
        gb_per_s: Bandwidth of the narrowest rank into its switch.
        network_gb_per_s: Bandwidth out of the narrowest node; 0 with one node.
    """

    gb_per_s: float
    network_gb_per_s: float


class Ranks(NamedTuple):
    """The communicator, as far as the model needs it.

    Attributes:
        nodes: Number of sets of ranks that NVLink or a host joins.
        nvlink: Whether NVLink joins all ranks of each node.
        gb_per_s: Bound on the payload bandwidth of any schedule.
        nvls: NVLink SHARP; None where switches cannot reduce the operator.
    """

    ranks: int
    nodes: int
    nvlink: bool
    gb_per_s: float
    nvls: Nvls | None


def times_us(collective: str, where: Ranks, payload_bytes: int) -> dict[str, float]:
    """Return the time in us of every algorithm and protocol of an allreduce, reduce_scatter or allgather, by name.

    The communicator has 2 ranks or more; the payload is that of a plan: of allgather and reduce_scatter the whole.
    """
    algorithms = [*_rings(collective, where)]
    if collective == "allreduce":
        algorithms += [*_trees(where, payload_bytes), *_in_switches(where)]
    return {name: latency_us + payload_bytes / (1e3 * gb_per_s) for name, latency_us, gb_per_s in algorithms}


def _rings(collective: str, where: Ranks) -> Iterator[tuple[str, float, float]]:
    """(name, latency in us, GB/s) of rings."""
    passes = 2 if collective == "allreduce" else 1
    across = passes * (where.nodes - 1)
    inside = passes * (where.ranks - 1) - across
    alone = where.ranks == where.nodes
    for number, protocol in _protocols(where):
        hop_us = _RING_HOP_US["nvlink" if where.nvlink else "pcie"][number]
        far_us = (_TREE_HOP_US if alone else _RING_HOP_US)["network"][number]
        if where.nodes > 1:
            hop_us = max(hop_us, _POST_US[number])
        latency_us = _RING_BASE_US[number] + inside * hop_us + across * far_us
        if where.nodes > 1 and collective == "allreduce" and protocol == "Simple":
            latency_us *= _PLATEAU
        yield f"ring {protocol}", latency_us, where.gb_per_s * _RING_SHARE[number]


def _trees(where: Ranks, payload_bytes: int) -> Iterator[tuple[str, float, float]]:
    one_node = where.nodes == 1
    size = min(max(payload_bytes >> 6, 1).bit_length() - 1, len(_TREE_CORRECTION[0]) - 1)
    levels = where.nodes.bit_length() - 1
    for number, protocol in _protocols(where):
        hop_us = _TREE_HOP_US["nvlink" if where.nvlink else "pcie"][number]
        hops_us = (where.ranks // where.nodes - 1) * hop_us + levels * _TREE_HOP_US["network"][number]
        share = _TREE_SHARE * _TREE_PROTOCOL_SHARE[one_node][number] * _TREE_CORRECTION[number][size]
        bus_gb_per_s = where.gb_per_s * 2 * (where.ranks - 1) / where.ranks  # of a ring
        gb_per_s = bus_gb_per_s / 2 * share * (1.0 if one_node else _TREE_PATTERN)
        yield f"tree {protocol}", _TREE_BASE_US[number] + 2 * hops_us, gb_per_s


def _in_switches(where: Ranks) -> Iterator[tuple[str, float, float]]:
    """NVLS inside one node, NVLS trees over several: an all-reduce goes up and down at once."""
    if where.nvls is None:
        return
    hopper = where.nvls.gb_per_s <= _HOPPER_GB_PER_S
    channels = _NVLS_CHANNELS[hopper]
    inside = 2 * where.nvls.gb_per_s * _NVLS_EFFICIENCY[hopper] * (channels - 1) / channels
    to_algorithm = where.ranks / (2 * (where.ranks - 1))
    if where.nodes == 1:
        yield "NVLS", _NVLS_US, min(inside * to_algorithm, where.nvls.gb_per_s)
        return
    out = where.nvls.network_gb_per_s
    bus = min(inside, out * (2 if where.nodes == 2 else 1))
    most = out * where.nodes / (2 * (where.nodes - 1))  # every node receives or sends one value of all others
    latency_us = _NVLS_US + 2 * (where.nodes.bit_length() - 1) * _NVLS_NETWORK_US
    yield "NVLS tree", latency_us, min(bus * to_algorithm, most, where.nvls.gb_per_s)


def _protocols(where: Ranks) -> list[tuple[int, str]]:
    """Number and name of the protocols in use: LL128 where NVLink joins all ranks of a node."""
    return [(number, name) for number, name in enumerate(PROTOCOLS) if where.nvlink or name != "LL128"]
