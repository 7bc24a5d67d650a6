"""The vendor of a topology's GPUs: NCCL's files are for NVIDIA's, RCCL's for AMD's."""

from __future__ import annotations

import re

from topocomm.topology.model import Topology

VENDOR = "gpu_vendor"
"""The fact that holds the vendor, `AMD` or `NVIDIA`, where no other part of the topology shows it."""

_TOOLS = re.compile(r"rocm-smi|amd-?smi")
_NAMES = re.compile(r"\b(?:AMD|ATI|Radeon|Instinct|MI\d{2,3}[AX]?)\b", re.IGNORECASE)


def is_amd(topology: Topology) -> bool:
    """Return whether the GPUs are AMD's: by fact, tool, library, link kind, architecture or names of GPUs."""
    facts = topology.facts
    if facts.get(VENDOR) == "AMD" or "gcn" in facts or str(facts.get("library", "")).startswith("RCCL"):
        return True
    if _TOOLS.search(topology.source) or any(link.kind == "xgmi" for link in topology.links):
        return True
    return any(d.kind == "gpu" and _NAMES.search(d.name or "") for d in topology.devices)
