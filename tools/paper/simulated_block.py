"""The paper's attention block on hosts of 8 H100, simulated: by every method, with any constant halved or doubled."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

import topocomm
from topocomm.simulation import simulate
from topocomm.simulation.decode import DecodeStep, DeviceFigures, device_figures, model_shape, simulate_step
from topocomm.simulation.decode.layer_costs import LayerCosts
from topocomm.simulation.decode.rank_program import RankProgram
from topocomm.topology.links import GROUP_LAUNCH_US

SYSTEM, DEVICE, MODEL = "dgx-h100", "h100", "tree-attention-block"
RANKS_PER_HOST = 8
METHODS = {
    "ring": "ring (paper)",
    "ring-partials": "ring of partials",
    "three-allreduce": "tree, three all-reduces (paper)",
    "tree": "tree, one planned reduction (ours)",
    "allgather": "all-gather + merge",
    "max-sum": "MAX + packed SUM",
    "dcp": "DCP (vLLM, ag_rs)",
    "dcp-a2a": "DCP (vLLM, a2a)",
    "helix": "Helix",
}
"""Methods of topocomm.simulation.decode as pictures and tables name them: rings, then the paper's tree and the rest."""


class Machine(NamedTuple):
    """Hosts of GPUs with the constants of a simulation.

    Attributes:
        launch_us: What a round of a planned collective costs to start, and a message of the ring.
    """

    topology: topocomm.Topology
    device: DeviceFigures
    launch_us: float = GROUP_LAUNCH_US


CONSTANTS = {
    "NVLink rate": ("nvlink", "gb_per_s"),
    "NIC and network rate": ("network", "gb_per_s"),
    "PCIe rate, GPU to NIC": ("pcie", "gb_per_s"),
    "NVLink latency": ("nvlink", "latency_us"),
    "network latency": ("network", "latency_us"),
    "launch of a round": None,
    "HBM rate": None,
}
"""What is halved and doubled: a kind of links and the figure of it; None: of the machine."""


def hosts_of_h100(gpus: int, constant: str | None = None, factor: float = 1.0) -> Machine:
    """Return DGX H100 hosts of the catalogue, one constant of `CONSTANTS` times a factor."""
    topology = topocomm.catalog(SYSTEM, hosts=gpus // RANKS_PER_HOST)
    device, launch_us = device_figures(DEVICE), GROUP_LAUNCH_US
    if constant == "launch of a round":
        launch_us *= factor
    elif constant == "HBM rate":
        device = device._replace(memory_gb_per_s=device.memory_gb_per_s * factor)
    elif constant is not None:
        kind, figure = CONSTANTS[constant] or ("", "")
        links = tuple(
            link._replace(**{figure: getattr(link, figure) * factor}) if link.kind == kind else link
            for link in topology.links
        )
        topology = replace(topology, name=f"{topology.name}, {factor:g} x {constant}", links=links)
    return Machine(topology, device, launch_us)


def constants_text() -> str:
    """Return the constants in words, as pictures print them."""
    machine = hosts_of_h100(16)
    rates = {link.kind: link.gb_per_s for link in machine.topology.links if "NIC" in link.src or link.kind == "nvlink"}
    latencies = {link.kind: link.latency_us for link in machine.topology.links if link.gb_per_s == rates[link.kind]}
    words = {"nvlink": "NVLink", "pcie": "GPU to NIC", "network": "NIC"}
    links = "; ".join(f"{words[kind]} {rates[kind]:g} GB/s, {latencies[kind]:g} us a link" for kind in words)
    return f"{links}; launch {machine.launch_us:g} us a round; HBM {machine.device.memory_gb_per_s:,g} GB/s"


def block_step(machine: Machine, method: str, context: int) -> DecodeStep:
    """Return the simulated step of the block; `context`: tokens in all."""
    return simulate_step(
        machine.topology, MODEL, context=context, method=method, device=machine.device, launch_us=machine.launch_us
    )


def attention_us(machine: Machine, context: int) -> float:
    """Return what attention over a rank's own keys takes: the least that any method takes."""
    costs = LayerCosts(model_shape(MODEL), machine.device, context)
    return costs.attention_us(context / len(machine.topology.endpoints))


class BlockTimes:
    """Times of the block on one machine, in microseconds.

    But for the ring, only the attention over a rank's keys depends on the context: it is equally long on all ranks, so
    that it delays all that follows. One simulation of each method is therefore enough.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.beyond_us = cache(self._beyond_us)
        """(method but "ring") -> what it takes beyond attention over a rank's own keys."""

    def _beyond_us(self, method: str) -> float:
        context = 1000 * len(self.machine.topology.endpoints)
        return block_step(self.machine, method, context).total_us - attention_us(self.machine, context)

    def us(self, method: str, context: int) -> float:
        """Return the time by a method at a context."""
        if method == "ring":
            return block_step(self.machine, method, context).total_us
        return attention_us(self.machine, context) + self.beyond_us(method)


def sequential_ring_us(machine: Machine, context: int) -> float:
    """Return the time of a ring that attends to a part first, and sends it on after that."""
    ends = machine.topology.endpoints
    ranks, rank = len(ends), np.arange(len(ends))
    part_bytes = context // ranks * model_shape(MODEL).kv_token_bytes
    program = RankProgram(ends)
    for step in range(ranks):
        program.compute(attention_us(machine, context), "attention")
        if step + 1 < ranks:
            sent = program.builder.send(
                rank, (rank + 1) % ranks, part_bytes, after=program.last, before_us=machine.launch_us, round_=step
            )
            both = np.concatenate([sent, np.roll(sent, 1)])
            program.follow(np.concatenate([rank, rank]), both, "keys and values")
    return simulate(program.builder.build(), machine.topology).total_us
