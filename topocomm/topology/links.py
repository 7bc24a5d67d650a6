"""The table of link kinds: GB/s of one lane in one direction, latency of one link, and their sources.

A *lane* is one link of a bonded set: one NVLink, one xGMI link, one x16 slot, one network port, one core's path to
memory. `Link.kind` is the family (`nvlink`); the rows of this table are its generations (`nvlink4`).

Latencies are for a small message on a warm path, without kernel launches. Vendors do not publish them; they are derived
from NCCL's hardware latencies per hop (`src/graph/tuning.cc`, LL protocol, tree: NVLink 0.6 us, PCIe 1.0 us, network
5.0 us), split over the links of a hop.
"""

from __future__ import annotations

from typing import NamedTuple

from topocomm.topology.model import FigureSource, Link


class LinkKind(NamedTuple):
    """One row of the table."""

    family: str
    """Value of `Link.kind`."""
    gb_per_s: float
    """10^9 bytes per second of one lane in one direction."""
    latency_us: float
    """Latency of one link, not of the whole path."""
    source: str
    """Source of GB/s."""
    gb_per_s_source: FigureSource = "table"

    @property
    def latency_source(self) -> str:
        """Source of the latency; all latencies are assumed."""
        return _LATENCY_SOURCES[self.family]


_LATENCY_SOURCES = {
    "nvlink": "assumed: NCCL tuning.cc has 0.6 us for a hop through an NVSwitch; a direct link is put at 0.7",
    "xgmi": "assumed: as a direct NVLink",
    "xgmi-cpu": "assumed: as a direct NVLink",
    "pcie": "assumed: half of NCCL's 1.0 us for a PCIe hop, which is two links",
    "smp": "assumed: below half a PCIe hop",
    "network": "assumed: what NCCL's 5.0 us for a network hop leaves beside its two PCIe hops, on two links",
    "shared-memory": "assumed: a cache line's way between cores",
    "unknown": "assumed: as a network link, the slowest in the table",
}

_NVLINK_US = 0.7
NVSWITCH_HOP_US = 0.3
"""GPU to NVSwitch or back: half of NCCL's 0.6 us per NVLink hop."""
_XGMI_US = 0.7
_PCIE_US = 0.5
_SMP_US = 0.4
_NETWORK_US = 1.5
FABRIC_HOP_US = 0.5
"""Switch to switch of a network, cable included; assumed."""

PATH_LATENCY_US = {"PIX": 1.0, "PXB": 1.2, "PHB": 1.4, "NODE": 1.6, "SYS": 2.0, "SOC": 2.0}
"""Latency between devices over PCIe, by nvidia-smi's codes. PIX is NCCL's PCIe hop; further levels are assumed to add
0.2 us each, the link between NUMA nodes 0.4 us."""

GROUP_LAUNCH_US = 6.6
"""Time to start a group of messages between devices, one kernel launch. Assumed: the base latency of NCCL's `tuning.cc`
for collectives by LL (ring 6.6 us, tree 6.8)."""

_NVLINK_DATASHEET = "NVIDIA datasheets: total per GPU over links"
_NCCL_CPU = "NCCL src/graph/topo.h, bandwidth between CPUs"
_PER_LANE = "PCI Express base specification, nominal per lane x 16"
_PORT = "port rate / 8"

KINDS: dict[str, LinkKind] = {
    "nvlink1": LinkKind("nvlink", 20.0, _NVLINK_US, f"{_NVLINK_DATASHEET} (P100: 80 / 4)"),
    "nvlink2": LinkKind("nvlink", 25.0, _NVLINK_US, f"{_NVLINK_DATASHEET} (V100: 150 / 6)"),
    "nvlink3": LinkKind("nvlink", 25.0, _NVLINK_US, f"{_NVLINK_DATASHEET} (A100: 300 / 12)"),
    "nvlink3-rtx": LinkKind("nvlink", 14.0625, _NVLINK_US, f"{_NVLINK_DATASHEET} (RTX A6000: 56.25 / 4)"),
    "nvlink4": LinkKind("nvlink", 25.0, _NVLINK_US, f"{_NVLINK_DATASHEET} (H100: 450 / 18)"),
    "nvlink5": LinkKind("nvlink", 50.0, _NVLINK_US, f"{_NVLINK_DATASHEET} (B200: 900 / 18)"),
    "xgmi-mi100": LinkKind("xgmi", 46.0, _XGMI_US, "AMD MI100 architecture guide: 23 GT/s x 16 bit"),
    "xgmi-mi250": LinkKind("xgmi", 50.0, _XGMI_US, "AMD MI250 architecture guide: 25 GT/s x 16 bit"),
    "xgmi-mi250-cpu": LinkKind("xgmi-cpu", 36.0, _XGMI_US, "die to CPU of MI250X, Pearson, arXiv:2302.14827"),
    "xgmi-mi300": LinkKind("xgmi", 64.0, _XGMI_US, "amd-smi xgmi: 32 Gb/s x 16 lanes"),
    "xgmi-mi350": LinkKind("xgmi", 76.5, _XGMI_US, "AMD MI350 datasheet: 153 / 2"),
    "pcie3": LinkKind("pcie", 16.0, _PCIE_US, f"{_PER_LANE}: 1 GB/s"),
    "pcie4": LinkKind("pcie", 32.0, _PCIE_US, f"{_PER_LANE}: 2 GB/s"),
    "pcie5": LinkKind("pcie", 64.0, _PCIE_US, f"{_PER_LANE}: 4 GB/s"),
    "pcie6": LinkKind("pcie", 120.0, _PCIE_US, f"{_PER_LANE}: 7.5 GB/s"),
    "smp-broadwell": LinkKind("smp", 6.0, _SMP_US, f"{_NCCL_CPU} (Intel Broadwell, QPI)"),
    "smp-skylake": LinkKind("smp", 10.0, _SMP_US, f"{_NCCL_CPU} (Intel Skylake, UPI)"),
    "smp-sapphire-rapids": LinkKind("smp", 22.0, _SMP_US, f"{_NCCL_CPU} (Intel Sapphire Rapids, UPI)"),
    "smp-amd": LinkKind("smp", 16.0, _SMP_US, f"{_NCCL_CPU} (AMD, xGMI)"),
    "smp-power9": LinkKind("smp", 32.0, _SMP_US, f"{_NCCL_CPU} (IBM POWER9, X bus)"),
    "network-10": LinkKind("network", 1.25, _NETWORK_US, f"{_PORT}: 10 Gb/s Ethernet"),
    "network-100": LinkKind("network", 12.5, _NETWORK_US, f"{_PORT}: 100 Gb/s, InfiniBand EDR"),
    "network-200": LinkKind("network", 25.0, _NETWORK_US, f"{_PORT}: 200 Gb/s, InfiniBand HDR, Slingshot 11"),
    "network-400": LinkKind("network", 50.0, _NETWORK_US, f"{_PORT}: 400 Gb/s, InfiniBand NDR"),
    "network-800": LinkKind("network", 100.0, _NETWORK_US, f"{_PORT}: 800 Gb/s, InfiniBand XDR"),
    "shared-memory-core": LinkKind("shared-memory", 10.0, 0.1, "assumed: one core's copy through cache", "assumed"),
}

_ASSUMED = {
    "nvlink": KINDS["nvlink3-rtx"]._replace(source="the slowest NVLink, RTX A6000"),
    "xgmi": KINDS["xgmi-mi100"]._replace(source="the slowest xGMI, MI100"),
    "xgmi-cpu": KINDS["xgmi-mi250-cpu"]._replace(source="die to CPU of MI250X"),
    "pcie": KINDS["pcie3"]._replace(source="PCIe 3 x16, as NCCL assumes"),
    "smp": KINDS["smp-broadwell"]._replace(source="the slowest in NCCL's table, Broadwell"),
    "network": KINDS["network-10"]._replace(source="10 Gb/s, as NCCL assumes"),
    "shared-memory": KINDS["shared-memory-core"]._replace(source="one core's copy through cache"),
}
_UNKNOWN_KIND = LinkKind("unknown", 1.25, _NETWORK_US, "10 Gb/s network, the slowest in the table")


_NVLINK_BY_SM = {60: "nvlink1", 70: "nvlink2", 72: "nvlink2", 75: "nvlink2", 80: "nvlink3", 86: "nvlink3-rtx"}
_NVLINK_BY_SM |= {90: "nvlink4", 100: "nvlink5", 103: "nvlink5"}
_XGMI_BY_GCN = {"908": "xgmi-mi100", "910": "xgmi-mi250", "90a": "xgmi-mi250", "950": "xgmi-mi350"}
_XGMI_BY_GCN |= {"940": "xgmi-mi300", "941": "xgmi-mi300", "942": "xgmi-mi300"}
"""Generations by compute capability, as in NCCL's `ncclTopoNVLinkBw`, and by architecture, as in RCCL's `topo.h`."""
PCIE_LANE_GB_PER_S = {2.5: 0.25, 5.0: 0.5, 8.0: 1.0, 16.0: 2.0, 32.0: 4.0, 64.0: 7.5, 128.0: 15.0}
"""Nominal GB/s of one lane by GT/s (PCI Express base specification), as `KINDS` has them for 16 lanes."""


def kind_of(family: str, sm: int | None, gcn: str | None) -> str:
    """Return the row of `KINDS` for `nvlink` or `xgmi`; the family where `sm` or `gcn` does not tell the generation."""
    if family == "xgmi":
        return _XGMI_BY_GCN.get((gcn or "").strip().lower().removeprefix("gfx"), "xgmi")
    return _NVLINK_BY_SM.get(sm or 0, "nvlink")


def assume(kind: str) -> LinkKind:
    """Return the figures that planners assume for a link of a family without figures of its own.

    They are those of the slowest generation, or NCCL's default, so that a plan is not better than the machine. A kind
    that the table lacks gets its slowest row.
    """
    return _ASSUMED.get(kind, _UNKNOWN_KIND)._replace(gb_per_s_source="assumed")


def both_ways(
    a: str,
    b: str,
    kind: str,
    *,
    lanes: int | None = None,
    gb_per_s: float | None = None,
    latency_us: float | None = None,
) -> tuple[Link, Link]:
    """Return the two directed links of one connection, with the figures of the table.

    The kind is a row of `KINDS`, or a family where the generation is unknown (GB/s is None). Bonded links (`lanes`)
    multiply the table's GB/s. GB/s that a source gave, and a latency for a part of a longer hop, replace the table's.
    """
    row = KINDS.get(kind)
    rest = row or assume(kind)
    bandwidth_source: FigureSource | None = "read" if gb_per_s is not None else None
    if gb_per_s is None and row is not None:
        gb_per_s, bandwidth_source = row.gb_per_s * (lanes or 1), row.gb_per_s_source
    latency = rest.latency_us if latency_us is None else latency_us
    family = rest.family if row or kind in _ASSUMED else kind
    link = Link(a, b, family, lanes, gb_per_s, latency, None, bandwidth_source, "assumed")
    return link, link._replace(src=b, dst=a)
