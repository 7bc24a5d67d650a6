"""Names that options take, as literals: a parser needs no NumPy for them, so that errors in options come at once.

A test compares each with the table that it is the names of.
"""

from __future__ import annotations

COLLECTIVES = (
    "allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "alltoall", "scan", "exscan"
)  # fmt: skip
COLLECTIVE_NAMES = f"default {COLLECTIVES[0]}; or {', '.join(COLLECTIVES[1:])}"
"""The same for the help of an option."""
SENDRECV = "sendrecv"
"""Name of an alltoall in which every rank sends to one other."""
ORDERS = ("any", "canonical")
OBJECTIVES = ("latency", "rounds", "throughput", "auto")
PORT_MODELS = ("alpha", "loggp")
PLAN_FORMATS = ("text", "json", "msccl-xml", "mscclpp-json", "svg", "html")
RUNTIMES = ("rccl", "azure", "msccl")
PLANNED = "planned"
ALGORITHMS = (
    PLANNED, "switch-sum", "ring", "nccl", "nccl-ring", "nccl-tree", "nccl-nvls", "nccl-nvls-tree", "nccl-pat",
    "openmpi", "openmpi-5", "mpich", "mpi-recursive-doubling", "mpi-rabenseifner", "mpi-ring", "mpi-han",
    "mpi-binomial", "mpi-chain",
)  # fmt: skip
PROTOCOLS = ("none", "nccl", "nccl-ll", "nccl-ll128", "nccl-simple", "openmpi-tcp", "openmpi-sm")
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.2-1b", "qwen2.5-7b", "tree-attention-block")
METHODS = ("tree", "allgather", "max-sum", "three-allreduce", "ring", "ring-partials", "dcp", "dcp-a2a", "helix")
DEVICES = (
    "p100", "v100", "a100-40gb", "a100", "a100-pcie", "h100", "h200", "b200", "gb200", "mi100", "mi250x", "mi300x",
    "mi325x", "rtx3090", "rtx4090",
)  # fmt: skip
