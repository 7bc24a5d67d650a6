"""Which far ends of NVLinks are GPUs, and which GPU: from the addresses and link numbers that both ends print."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from topocomm.topology.inference.nvlink import MAX_LINKS_PER_GPU


class LinkEnd(NamedTuple):
    """One NVLink of a GPU: its number as printed, and the far end's PCI address and link number."""

    link: int
    address: str
    port: int | None


_MODELS = (
    (re.compile(r"\bP100\b"), "nvlink1", 4),
    (re.compile(r"\bV100\b"), "nvlink2", 6),
    (re.compile(r"\b(?:A100|A800|A30)\b"), "nvlink3", 12),
    (re.compile(r"\bRTX (?:A[456]\d00|3090)\b"), "nvlink3-rtx", 4),
    (re.compile(r"\bG?H(?:100|200|800|20)\b"), "nvlink4", 18),
    (re.compile(r"\bG?B[123]00\b"), "nvlink5", 18),
)
"""Row of `links.KINDS`, and the most links of a GPU, by model (vendor's datasheets)."""


def nvlink_kind(name: str | None) -> str:
    """The row of `links.KINDS` for NVLinks of a GPU model; the family where the model is not known."""
    return next((kind for pattern, kind, _ in _MODELS if name and pattern.search(name)), "nvlink")


def links_of_model(name: str | None) -> int:
    """The most NVLinks that a GPU of this model can have."""
    return next((most for pattern, _, most in _MODELS if name and pattern.search(name)), MAX_LINKS_PER_GPU)


HIDDEN = re.compile(r"(?:ffff){1,2}:ff:ff\.[0-7]")
"""What the driver gives for the address of an NVSwitch that the host or the virtual machine does not see."""

Ends = Mapping[str, Sequence[LinkEnd]]


def through_switches(ends: Ends, most: int, *, complete: bool) -> bool:
    """True if the far ends are certainly NVSwitches; no machine has both links to switches and to GPUs.

    Link numbers that no GPU has are a switch's, and so is a device with more links than a GPU has or without an
    address. Devices that every GPU of a complete listing sees are switches, because no GPU sees itself; in a machine
    of two boards (DGX-2) the GPUs of one board see the same ones.

    Args:
        ends: The links of each GPU.
        most: The most links that a GPU of these models has.
        complete: Whether all GPUs are shown with all their links.
    """
    every = [end for mine in ends.values() for end in mine]
    if any(HIDDEN.fullmatch(end.address) for end in every):
        return True
    beyond = {(end.address, end.port) for end in every if end.port is not None and end.port >= most}
    crowded = any(count > most for count in Counter(end.address for end in every).values())
    evident = len(beyond) > 1 or crowded  # a single number may be a misprint
    boards = Counter(frozenset(end.address for end in mine) for mine in ends.values() if mine)
    if not complete or boards.total() < 2:
        return evident
    if len(boards) == 1:
        return True
    apart = sum(map(len, boards)) == len(frozenset().union(*boards))
    return evident and apart and min(boards.values()) > 1


def gpu_addresses(ends: Ends) -> dict[str, str]:
    """The PCI address of every GPU with links, if both ends of every link agree on them; else empty.

    A GPU is none of the devices that it sees. Where that leaves more than one address, GPUs are taken in the order
    of their addresses, as the driver numbers them, and every link's number must be the one that its far end prints.
    """
    linked = [gpu for gpu, mine in ends.items() if mine]
    addresses = sorted({end.address for gpu in linked for end in ends[gpu]}, key=lambda text: (len(text), text))
    if len(linked) < 2 or len(addresses) != len(linked) or any(HIDDEN.fullmatch(address) for address in addresses):
        return {}
    left = {gpu: set(addresses) - {end.address for end in ends[gpu]} for gpu in linked}
    if all(len(own) == 1 for own in left.values()):
        found = {gpu: own.pop() for gpu, own in left.items()}
    elif all(end.port is not None for gpu in linked for end in ends[gpu]):
        found = dict(zip(linked, addresses, strict=True))
    else:
        return {}
    return found if len(set(found.values())) == len(found) and _ends_agree(ends, found) else {}


def _ends_agree(ends: Ends, addresses: Mapping[str, str]) -> bool:
    """True if the far end of every link has that link, too.

    The tool numbers only links that are up: the numbers that far ends print, in order, are those of a GPU's links in
    the order of the listing.
    """
    gpu_at = {address: gpu for gpu, address in addresses.items()}
    count = Counter((gpu, gpu_at[end.address]) for gpu in addresses for end in ends[gpu])
    if any(there != count[b, a] for (a, b), there in count.items()):
        return False
    if any(a == b for a, b in count):
        return False
    if any(end.port is None for gpu in addresses for end in ends[gpu]):
        return True
    number: dict[str, list[int]] = {gpu: [] for gpu in addresses}
    for gpu in addresses:
        for end in ends[gpu]:
            number[gpu_at[end.address]].append(end.port or 0)
    if any(len(set(number[gpu])) != len(ends[gpu]) for gpu in addresses):
        return False
    printed = {gpu: sorted(number[gpu]) for gpu in addresses}
    joins = {
        (gpu, own, gpu_at[end.address], end.port)
        for gpu in addresses
        for own, end in zip(printed[gpu], ends[gpu], strict=True)
    }
    return all((b, port, a, own) in joins for a, own, b, port in joins)
