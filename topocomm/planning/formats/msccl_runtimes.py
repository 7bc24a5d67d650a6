"""What the runtimes of MSCCL XML accept: their limits and their words, as data with the source of each.

Sources: ROCm/rccl at 0cbce2a7 (2024-10-24), Azure/msccl-executor-nccl at c6f6b36 (2024-12-13), microsoft/msccl at
b23e9cd (2023-09-20).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from topocomm.topology.model import Topology

RuntimeName = Literal["rccl", "azure", "msccl"]

MOST_PEERS = 32
"""Thread blocks that send on one channel of a GPU, and that receive (MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL)."""
MOST_COUNT = 64
"""Units that one step moves; each runtime takes fewer than 72 (MSCCL_MAX_COUNT)."""
MOST_SCRATCH = 32767
"""Scratch chunks of a GPU: offsets have 16 bits (mscclTransmission.srcOffset, mscclTransfer.srcoffset)."""
MOST_FUSED = 16
"""Reductions into one place that run as one (MSCCL_MAX_REDUCE_FUSION); no runtime checks that there are no more."""
MOST_ELEMENTS = 4095
"""XML elements that a rank loads: the document, every `gpu`, its own `tb` and `step`; one of MAX_NODES is spare."""
MOST_BYTES = 2**63 - 1
"""`maxBytes` of a program without a limit of its own: the attribute is read as int64."""


@dataclass(frozen=True)
class Limit:
    """The most of something, and the line of the runtime that says so."""

    most: int
    source: str


@dataclass(frozen=True)
class Runtime:
    """One program that reads MSCCL XML.

    Attributes:
        name: As the command line spells it.
        title: Its repository.
        steps: Steps of a thread block, `nop` included.
        blocks: Thread blocks of a GPU. They wait for each other, so all must be on the GPU at once.
        channels: Of a program.
        collectives: Its words for collectives that it spells in another way than we do.
        says_out_of_place: Whether a program can be for calls in place and out of place at once.
    """

    name: RuntimeName
    title: str
    steps: Limit
    blocks: Limit
    channels: Limit
    collectives: Mapping[str, str]
    says_out_of_place: bool


_A100 = "a thread block fills a multiprocessor and waits for others, and an A100 has 108"

RUNTIMES: Mapping[str, Runtime] = {
    "rccl": Runtime(
        "rccl",
        "ROCm/rccl",
        Limit(64, "MSCCL_MAX_NUM_STEPS in src/include/msccl/msccl_struct.h"),
        Limit(64, "MSCCL_MAX_NUM_THREAD_BLOCKS in src/include/msccl/msccl_struct.h"),
        Limit(64, "what src/graph/connect.cc lets NCCL_MIN_NCHANNELS ask for on several nodes"),
        {"reduce_scatter": "reducescatter"},
        says_out_of_place=True,
    ),
    "azure": Runtime(
        "azure",
        "Azure/msccl-executor-nccl",
        Limit(64, "MSCCL_MAX_NUM_STEPS in makefiles/common.mk"),
        Limit(108, _A100),
        Limit(32, "MAXCHANNELS in src/include/device.h"),
        {"reduce_scatter": "reducescatter"},
        says_out_of_place=True,
    ),
    "msccl": Runtime(
        "msccl",
        "microsoft/msccl",
        Limit(256, "MSCCL_MAX_NUM_STEPS in src/include/msccl.h"),
        Limit(108, _A100),
        Limit(32, "MAXCHANNELS in src/include/devcomm.h"),
        {},
        says_out_of_place=False,
    ),
}
"""By name."""


def runtime_for(topology: Topology) -> Runtime:
    """The runtime for the machine's GPUs: RCCL where xGMI joins them, else Azure's executor.

    Of the two for NVIDIA's GPUs it is the newer one, and what fits its limits fits those of microsoft/msccl too.
    """
    return RUNTIMES["rccl" if any(link.kind.startswith("xgmi") for link in topology.links) else "azure"]
