"""Memory bandwidth and peak rate of devices, from their makers' data sheets."""

from __future__ import annotations

import re
from typing import NamedTuple

from topocomm.errors import PlanError
from topocomm.topology.model import Topology


class DeviceFigures(NamedTuple):
    """One device that holds a rank.

    Attributes:
        name: As users give it.
        memory_gb_per_s: Bandwidth of its memory, 10^9 bytes per second.
        tflop_per_s: Peak rate of dense bfloat16 matrix products (float16 where there is no bfloat16), 10^12 per second.
        memory_gb: Size of its memory, 10^9 bytes.
        source: The data sheet.
    """

    name: str
    memory_gb_per_s: float
    tflop_per_s: float
    memory_gb: float
    source: str


_NVIDIA = "NVIDIA data sheet"
DEVICES = {
    each.name: each
    for each in (
        DeviceFigures("p100", 732.0, 21.2, 16.0, f"{_NVIDIA}, Tesla P100 SXM2, float16"),
        DeviceFigures("v100", 900.0, 125.0, 32.0, f"{_NVIDIA}, Tesla V100 SXM2 32GB, float16"),
        DeviceFigures("a100-40gb", 1555.0, 312.0, 40.0, f"{_NVIDIA}, A100 40GB SXM"),
        DeviceFigures("a100", 2039.0, 312.0, 80.0, f"{_NVIDIA}, A100 80GB SXM"),
        DeviceFigures("a100-pcie", 1935.0, 312.0, 80.0, f"{_NVIDIA}, A100 80GB PCIe"),
        DeviceFigures("h100", 3350.0, 989.0, 80.0, f"{_NVIDIA}, H100 SXM"),
        DeviceFigures("h200", 4800.0, 989.0, 141.0, f"{_NVIDIA}, H200 SXM"),
        DeviceFigures("b200", 8000.0, 2250.0, 180.0, f"{_NVIDIA}, DGX B200: 64 TB/s and 18 PFLOPS of 8"),
        DeviceFigures("gb200", 8000.0, 2500.0, 186.0, f"{_NVIDIA}, GB200 NVL72: 576 TB/s and 180 PFLOPS of 72"),
        DeviceFigures("mi100", 1228.8, 184.6, 32.0, "AMD data sheet, Instinct MI100, float16"),
        DeviceFigures("mi250x", 1638.4, 191.5, 64.0, "AMD data sheet, Instinct MI250X, a die of two"),
        DeviceFigures("mi300x", 5300.0, 1307.4, 192.0, "AMD data sheet, Instinct MI300X"),
        DeviceFigures("mi325x", 6000.0, 1307.4, 256.0, "AMD data sheet, Instinct MI325X"),
        DeviceFigures("rtx3090", 936.0, 71.0, 24.0, "NVIDIA GA102 white paper, GeForce RTX 3090, float32 sums"),
        DeviceFigures("rtx4090", 1008.0, 165.2, 24.0, "NVIDIA Ada white paper, GeForce RTX 4090, float32 sums"),
    )
}
"""Devices by name."""
_NAMED = (
    (r"GB200", "gb200"), (r"B200", "b200"), (r"H200", "h200"), (r"H100", "h100"), (r"A100.*40GB|p4d", "a100-40gb"),
    (r"A100.?PCIe", "a100-pcie"), (r"A100", "a100"), (r"V100|dgx-2\b|p3dn", "v100"), (r"P100", "p100"),
    (r"MI325X", "mi325x"), (r"MI300X", "mi300x"), (r"MI250X", "mi250x"), (r"MI100", "mi100"),
    (r"(RTX.?)?4090", "rtx4090"), (r"(RTX.?)?3090", "rtx3090"),
)  # fmt: skip
"""Patterns of device names and of catalogue systems, the first that fits."""


def device_figures(name: str) -> DeviceFigures:
    """Return the figures of a device.

    Raises:
        PlanError: There is none of this name; the message lists them.
    """
    if name not in DEVICES:
        raise PlanError(f"device {name!r}: expected one of {', '.join(DEVICES)}")
    return DEVICES[name]


def recognise_device(topology: Topology) -> DeviceFigures:
    """Return the figures of a topology's endpoints, by their name or, where they have none, by that of the topology.

    Raises:
        PlanError: They are unknown.
    """
    ends = [topology.by_id[end] for end in topology.endpoints]
    words = (ends[0].name or topology.name) if ends else topology.name
    for pattern, name in _NAMED:
        if ends and ends[0].kind == "gpu" and re.search(pattern, words, re.IGNORECASE):
            return DEVICES[name]
    raise PlanError(
        f"topology {topology.name!r}: no memory bandwidth is known of its endpoints; name a device, one of "
        f"{', '.join(DEVICES)}"
    )
