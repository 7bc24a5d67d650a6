"""GPUs and NICs by the names of the PCI database, where a tool prints no class."""

from __future__ import annotations

import re

_NVIDIA = re.compile(r"nvidia corporation\b", re.IGNORECASE)
_AMD = re.compile(r"(?:advanced micro devices|ati technologies).*?(?:\[amd/ati\]|\[ati\]|\bati\b)", re.IGNORECASE)
_AMD_GPU = re.compile(r"\[AMD\].*\b(?:Instinct|Radeon|MI[1-9]\d\d?[AX]?)\b")
_INTEL_GPU = re.compile(r"intel corporation.*\b(?:data center gpu|arc\b.*graphics|\[arc|ponte vecchio)", re.IGNORECASE)
_NO_GPU = re.compile(
    r"audio|hdmi|\busb|ucsi|type-c|nvswitch|bridge|smbus|\bsata\b|\bide\b|ethernet|azalia|memory controller|\biommu\b"
    r"|upstream|downstream|pci express|root port|\blpc\b|host controller|\bS?MU\b|nforce|\bmcp\d|\bck804|\bsb\d00|sbx00"
    r"|\br[sd]\d{3}\b.*(?:host|northbridge|pci)|(?:\bDevice |\[10de:)(?:1ac[0-2]|1af1|22a3)\b|connectx|bluefield",
    re.IGNORECASE,
)
"""What else these vendors make. 1ac0 to 1ac2, 1af1 and 22a3 are NVSwitches that old databases do not name."""
_INSIDE_CPU = re.compile(
    r"\b(?:Raven|Picasso|Renoir|Lucienne|Cezanne|Barcelo|Rembrandt|Raphael|Phoenix|Granite Ridge|Strix|Mendocino)\b"
)
_CPU_VENDORS = (
    (re.compile(r"intel corporation\b", re.IGNORECASE), "GenuineIntel"),
    (re.compile(r"advanced micro devices, inc\. \[amd\](?!.*\bati\b)", re.IGNORECASE), "AuthenticAMD"),
)

_NIC = re.compile(
    r"\bethernet\b|mellanox technologies device|connectx|infiniband"
    r"|network connection|netxtreme|omni-path|\bhfi silicon|gigabit|\bgbe\b|nbase-t"
    r"|elastic (?:network|fabric) adapter|virtio network|slingshot|cassini|\bbcm57\d{2,3}|10gbase"
    r"|\bmt(?:27|28|29|41|43)\d{2,3}|terminator 5|\bt[4-7]\d{2}-|solarflare|\bsf[cn]\d{4}|aqtion|\baqc\d"
    r"|\be8[123]\d-|\bx[57]\d\d\b|\b8259\d|vmxnet|fastlinq",
    re.IGNORECASE,
)
_NO_NIC = re.compile(
    r"wireless|wi-?fi|bluetooth|virtual function|bridge|dma controller|\bsoc management|management interface|audio"
    r"|\bsas\b|\braid\b|non-volatile|nvme|\bpcie switch|crypto|serial|\busb\b|management topology|thunderbolt",
    re.IGNORECASE,
)
_IDS = re.compile(r"\s*\[[0-9a-f]{4}:[0-9a-f]{4}\]")
_MODEL = re.compile(r"\b(?:[A-Z]{1,4}\d{3,5}[A-Z]{0,3}(?:-[A-Z0-9]+)?|\d{5}[A-Z]{0,3}|Device [0-9a-f]{4})\b")


def is_gpu(name: str) -> bool:
    """True for a GPU of NVIDIA, AMD or Intel that computes, by vendor and device; not for a board's graphics chip."""
    vendor = _NVIDIA.match(name) or _AMD.match(name) or _AMD_GPU.search(name) or _INTEL_GPU.match(name)
    return vendor is not None and _NO_GPU.search(name) is None


def is_inside_cpu(name: str) -> bool:
    """True for AMD's graphics inside a desktop CPU, which are no GPU to compute on where there is another."""
    return _AMD.match(name) is not None and _INSIDE_CPU.search(name) is not None


def cpu_vendor(name: str) -> str | None:
    """Whose processor has this device 00.0 on a root bus, as CPUID spells it; None for other makers' chips."""
    return next((vendor for pattern, vendor in _CPU_VENDORS if pattern.match(name)), None)


def is_nic(name: str) -> bool:
    """True for an Ethernet or InfiniBand port; not for Wi-Fi and virtual functions."""
    return _NIC.search(name) is not None and _NO_NIC.search(name) is None


def nic_model(name: str) -> str:
    """The short name of a NIC: what stands last in brackets (`ConnectX-7`), else its type number (`X710`)."""
    bare = _IDS.sub("", name).strip()
    bracket = re.search(r"\[([^\[\]]+)\]$", bare)
    if bracket:
        return bracket.group(1)
    models = _MODEL.findall(bare)
    return models[0] if models else bare


def plain_name(name: str) -> str:
    """The name without the ids that `-nn` adds."""
    return _IDS.sub("", name).strip()
