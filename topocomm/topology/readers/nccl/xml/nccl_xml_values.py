"""The meaning of attributes of NCCL's topology XML: numbers, bus ids, PCIe speeds, CPU masks, processors.

From NCCL's `src/graph/topo.cc` and `xml.cc`, save for PCIe: NCCL reckons with what it measured (12 GB/s for Gen3 x16),
topocomm with the nominal rate (16).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from topocomm.errors import TopologyError
from topocomm.topology.inference.cpu_lists import mask_of
from topocomm.topology.links import PCIE_LANE_GB_PER_S
from topocomm.topology.readers.plain.safe_xml import Element

DEFAULT_GT_PER_S = 8.0
DEFAULT_WIDTH = 16
"""NCCL's defaults where the machine prints no speed or width: Gen3 x16."""

_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_WRITTEN_WIDTHS = (16, 8, 4, 2, 1)
"""No slot has 12 or 32 lanes, and 12 would make what NCCL reckons for 16 look like a nominal rate."""
_RECKONED_GB_PER_S = {2.5: 15 / 80, 5.0: 30 / 80, 8.0: 60 / 80, 16.0: 120 / 80, 32.0: 240 / 80, 64.0: 480 / 80}
"""GB/s of one lane by GT/s as NCCL reckons it: `kvDictPciGen` in `src/graph/topo.cc`. Its logs print one decimal."""
_CODING = 0.02
"""Part of the nominal rate that the coding of lines takes from Gen3 on: 2 of 130 bits, and from Gen6 on a little."""
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]{1,16}|\d{1,18})\s*")
_SPEED = re.compile(r"\s*(\d{1,3}(?:\.\d)?)\s*GT/s\b")
_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,4}):([0-9a-f]{1,2})(?:\.([0-9a-f]))?")
_HIDDEN = re.compile(r"f{5,8}:f+:f+(?:\.\w)?", re.IGNORECASE)
_CPUS = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*")
_MOST_CPUS = 28 * 32
"""NCCL reads texts of at most 254 characters: 28 words of a mask."""
_MASK = re.compile(r"[0-9a-f]{1,8}(?:,[0-9a-f]{1,8}){0,511}", re.IGNORECASE)

IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")
"""Attributes that `ncclTopoGetXmlFromSys` adds; `getBcmGen` knows two-level switches by them, which are flattened."""
BRIDGE_IDS = "bridge_ids"
"""Fact with these attributes of PCIe switches, by bus id."""

_CPU_NAMES = {
    ("GenuineIntel", 6, 79): "Broadwell",
    ("GenuineIntel", 6, 85): "Skylake",
    ("GenuineIntel", 6, 106): "Ice Lake",
    ("GenuineIntel", 6, 143): "Sapphire Rapids",
    ("GenuineIntel", 6, 207): "Emerald Rapids",
    ("AuthenticAMD", 143, 49): "Rome",
    ("AuthenticAMD", 175, 1): "Milan",
    ("AuthenticAMD", 175, 17): "Genoa",
    ("AuthenticAMD", 191, 2): "Turin",
}
"""NCCL writes AMD's family 17h as 143: base family plus sixteen times the extended one."""


def whole(element: Element, key: str, file: str, *, least: int = 0, most: int = 2**31) -> int | None:
    """Return an attribute as a number, decimal or hexadecimal (`0x7`); None where it is absent.

    Raises:
        TopologyError: It is no whole number, or out of range.
    """
    text = element.attributes.get(key)
    if text is None:
        return None
    if number := _NUMBER.fullmatch(text):
        value = _to_int(number)
        if least <= value <= most:
            return value
    raise TopologyError(
        f'{file}:{element.line}: <{element.tag} {key}="{text[:40]}">: expected a whole number from {least} to {most}; '
        "correct it or dump the file again with NCCL_TOPO_DUMP_FILE"
    )


def _to_int(number: re.Match[str]) -> int:
    value = int(number[2], 16 if number[2][:2] in ("0x", "0X") else 10)
    return -value if number[1] == "-" else value


def bus_key(text: str) -> str:
    """Return a bus id in one spelling: lower case, a domain of four digits or more, with function."""
    match = _BUS_ID.fullmatch(text.strip().lower())
    if match is None:
        return text.strip().lower()
    return f"{int(match[1] or '0', 16):04x}:{int(match[2], 16):02x}:{int(match[3], 16):02x}.{match[4] or '0'}"


def is_bus_id(text: str) -> bool:
    """Return whether this is like `0000:0f:00.0`, with and without domain or function."""
    return _BUS_ID.fullmatch(text.strip().lower()) is not None


def is_hidden(target: str) -> bool:
    """Return whether this is NVML's bus id of a switch that a virtual machine or container does not see."""
    return _HIDDEN.fullmatch(target.strip()) is not None


def pcie_rate(attributes: Mapping[str, str]) -> tuple[float | None, bool]:
    """Return GB/s of a PCIe link by its `link_speed` and `link_width`, and whether they are assumed.

    An absent attribute leaves the rate unknown, because NCCL fills it in on the machine. One that is empty, 0 or says
    nothing stands for Gen3 and 16 lanes, as NCCL takes it; the rate is then assumed.
    """
    if "link_speed" not in attributes or "link_width" not in attributes:
        return None, False
    rate = gt_per_s(attributes["link_speed"])
    number = _NUMBER.fullmatch(attributes["link_width"])
    lanes = _to_int(number) if number else 0
    assumed = rate is None or lanes not in _WIDTHS
    return PCIE_LANE_GB_PER_S[rate or DEFAULT_GT_PER_S] * (lanes if lanes in _WIDTHS else DEFAULT_WIDTH), assumed


def pcie_attributes(gb_per_s: float | None) -> dict[str, str]:
    """Return `link_speed` and `link_width` of a rate; none where it is unknown or no speed and width gives it.

    The rate may be nominal (16 GB/s for Gen3 x16), net of the coding of lines as hwloc has it (15.75), or what NCCL's
    logs print: three quarters of the nominal one (12.0). No two of them are alike.
    """
    if gb_per_s is None:
        return {}
    for width in _WRITTEN_WIDTHS:
        for speed, lane in PCIE_LANE_GB_PER_S.items():
            nominal, reckoned = lane * width, _RECKONED_GB_PER_S.get(speed, 0.0) * width
            if abs(gb_per_s - nominal) <= _CODING * nominal or gb_per_s in (reckoned, round(reckoned, 1)):
                return {"link_speed": f"{speed} GT/s PCIe", "link_width": str(width)}
    return {}


def gt_per_s(speed: str | None) -> float | None:
    """Return the number in a `link_speed`; None where it has none that PCIe knows."""
    match = _SPEED.match(speed or "")
    return float(match[1]) if match and float(match[1]) in PCIE_LANE_GB_PER_S else None


def mask_words(mask: str | None) -> list[str] | None:
    """Return the 32-bit words of a CPU mask, most significant first; None for no mask or a damaged one."""
    if mask is None or _MASK.fullmatch(mask.strip()) is None:
        return None
    words = mask.strip().lower().split(",")
    return words if all(len(word) == 8 for word in words[1:]) else None


def cpu_mask(cpus: str | None) -> str | None:
    """Return the mask of a list such as `0-23,48-71`, in words of eight digits; None for no list or a long one."""
    mask = mask_of(cpus, _MOST_CPUS) if cpus is not None and _CPUS.fullmatch(cpus) else None
    if mask is None:
        return None
    digits = f"{mask:x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[i : i + 8] for i in range(0, len(digits), 8))


def cpu_words(vendor: str, family: int, model: int) -> str:
    """Return `GenuineIntel 6/85 (Skylake)`; the name only where it is known."""
    name = _CPU_NAMES.get((vendor, family, model))
    return f"{vendor} {family}/{model}" + (f" ({name})" if name else "")


def smp_kind(arch: str | None, vendor: str | None, family: int | None, model: int | None) -> str:
    """Return the row of `links.KINDS` between processors, by NCCL's classes; `smp` where there is none."""
    if arch == "ppc64":
        return "smp-power9"
    if vendor == "AuthenticAMD":
        return "smp-amd"
    if vendor != "GenuineIntel" or family != 6 or model is None or model >= 0xCF:  # Emerald Rapids has no row
        return "smp"
    return "smp-sapphire-rapids" if model >= 0x8F else "smp-skylake" if model >= 0x55 else "smp-broadwell"
