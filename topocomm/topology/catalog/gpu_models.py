"""The GPUs of catalogue systems: their model and memory, which topology documents of the catalogue do not name."""

from __future__ import annotations

from collections.abc import Mapping

from topocomm.topology.model import Topology

_V100, _A100 = "Tesla V100 SXM2, 16 or 32 GB", "A100 SXM4, 40 or 80 GB"
_H100, _A100_PCIE, _RTX4090 = "H100 SXM5, 80 GB", "A100 PCIe, 40 or 80 GB", "GeForce RTX 4090, 24 GB"
GPUS = {
    "dgx-1-v100": _V100,
    "dgx-1-p100": "Tesla P100 SXM2, 16 GB",
    "dgx-2": "Tesla V100 SXM3, 32 GB",
    "v100-4": _V100,
    "p3dn": "Tesla V100 SXM2, 32 GB",
    "hgx-a100-4": _A100,
    "dgx-a100": _A100,
    "p4d": "A100 SXM4, 40 GB",
    "a100-pcie-2": _A100_PCIE,
    "a100-pcie-4": _A100_PCIE,
    "dgx-h100": _H100,
    "dgx-h100-taper2": _H100,
    "dgx-h200": "H200 SXM5, 141 GB",
    "dgx-b200": "B200, 180 GB",
    "gb200-nvl72": "a GPU of GB200, 186 GB",
    "mi100-8": "Instinct MI100, 32 GB",
    "mi250x": "a die of Instinct MI250X, 64 GB",
    "mi300x-8": "Instinct MI300X, 192 GB",
    "mi325x-8": "Instinct MI325X, 256 GB",
    "rtx3090-pair": "GeForce RTX 3090, 24 GB",
    "rtx4090-pcie-4": _RTX4090,
    "rtx4090-pcie-4-2-socket": _RTX4090,
    "rtx4090-pcie-8": _RTX4090,
    "rtx4090-pcie-8-1-socket": _RTX4090,
}
"""Model and memory of a GPU by system, from the makers' data sheets; sizes that were both sold are both named."""


def gpu_models(topology: Topology) -> Mapping[str, str]:
    """Return the words for every GPU of a catalogue system by its id; empty for other topologies."""
    words = GPUS.get(topology.name.split()[0]) if topology.source == "catalogue" and topology.name else None
    if words is None:
        return {}
    return {device.id: f"{words} of memory (datasheet)" for device in topology.devices if device.kind == "gpu"}
