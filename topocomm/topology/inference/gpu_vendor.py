"""Whose GPUs a topology has, as far as its source tells: NCCL's files are for NVIDIA's, RCCL's for AMD's."""

from __future__ import annotations

import re

from topocomm.topology.model import Topology

VENDOR = "gpu_vendor"
"""The fact that holds the vendor where nothing else in the topology tells it: `AMD` or `NVIDIA`."""

_TOOLS = re.compile(r"rocm-smi|amd-?smi")
_NAMES = re.compile(r"\b(?:AMD|ATI|Radeon|Instinct|MI\d{2,3}[AX]?)\b", re.IGNORECASE)


def is_amd(topology: Topology) -> bool:
    """True if the source shows AMD's GPUs: by tool, library, link kind, architecture or the names of GPUs."""
    facts = topology.facts
    if facts.get(VENDOR) == "AMD" or "gcn" in facts or str(facts.get("library", "")).startswith("RCCL"):
        return True
    if _TOOLS.search(topology.source) or any(link.kind == "xgmi" for link in topology.links):
        return True
    return any(d.kind == "gpu" and _NAMES.search(d.name or "") for d in topology.devices)
