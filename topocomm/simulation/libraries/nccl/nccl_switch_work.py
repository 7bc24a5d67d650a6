"""NCCL's allreduce in NVLink switches as work for the simulator: in one domain, and with trees over hosts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.cost.simulated_work import Work, WorkBuilder
from topocomm.planning.libraries.nccl_times import nvls_gb_per_s, nvls_tree_gb_per_s
from topocomm.simulation.libraries.nccl.nccl_call import NcclCall
from topocomm.simulation.libraries.nccl.nccl_tree_work import trees_along


def nvls_work(call: NcclCall) -> Work:
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


def nvls_tree_work(call: NcclCall) -> Work:
    """Return the messages of an allreduce in switches inside and over trees of hosts, a double tree for each rank.

    All flow at once, a pipeline in its steady state, no edge faster than the narrowest; each begins when the first
    chunk has come up to it.
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
    most = nvls_tree_gb_per_s(shape, figures) / size / 2 / figures["efficiency.network"]
    for place in range(size):
        order = [host * size + place for host in range(shape.hosts)]
        for edges in trees_along(replace(shape, per_host=1), order):
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
                    most_gb_per_s=most,
                    round_=round_,
                    label="allreduce NVLS tree",
                )
    return builder.build()


def _switches(call: NcclCall) -> list[str]:
    """The reducing switch of each group, in order of the groups that have one."""
    first = set(call.shape.ranks[:: call.shape.per_host])
    found = {
        link.src: link.dst
        for link in call.topology.links
        if link.src in first and call.topology.by_id[link.dst].in_network == "nvls"
    }
    return [found[end] for end in call.shape.ranks[:: call.shape.per_host] if end in found]
