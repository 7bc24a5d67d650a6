"""`nvidia-smi nvlink -R` (also `--remotelinkinfo`) and the older `-p`: where each NVLink ends.

The tool names the far end of a link by its PCI address, and does not say whether that is a GPU or an NVSwitch, nor
which address each GPU has. Both follow from the addresses and link numbers that both ends print, where the listing is
whole. NVSwitches become one switch device, as everywhere here (a path uses all of them); links between GPUs become
links and pairs, and the GPUs get the PCI addresses that their peers print.

Facts: `remote` counts links by far end, `remote_ports` lists `[link, far end, its link]` as printed (not in listings of
`-p`), `nvlink_total_per_gpu` counts links, all by GPU; `nvswitches` is the number of switches (0: GPUs are linked to
each other; absent: not certain, or hidden by the driver), `nvswitch_busids` counts links by switch; `uuids` by GPU.
Addresses are in lower case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import PurePath
from typing import Any, NamedTuple

from topocomm.topology.inference.nvlink import MAX_LINKS_PER_GPU, GpuFabric, nvlink_fabric
from topocomm.topology.model import Topology
from topocomm.topology.readers.nvidia.nvlink_listing import (
    INACTIVE,
    RATE,
    REMOTE,
    Block,
    ListingReader,
    listing_kind,
)
from topocomm.topology.readers.plain.paste import LISTED_GPU, plain_lines

SOURCE = "nvidia-smi nvlink -R"

_HIDDEN = re.compile(r"(?:ffff){1,2}:ff:ff\.[0-7]")
"""Address that the driver gives for an NVSwitch that the host or the virtual machine does not see."""
_MODELS = (
    (re.compile(r"\bP100\b"), "nvlink1", 4),
    (re.compile(r"\bV100\b"), "nvlink2", 6),
    (re.compile(r"\b(?:A100|A800|A30)\b"), "nvlink3", 12),
    (re.compile(r"\bRTX (?:A[456]\d00|3090)\b"), "nvlink3-rtx", 4),
    (re.compile(r"\bG?H(?:100|200|800|20)\b"), "nvlink4", 18),
    (re.compile(r"\bG?B[123]00\b"), "nvlink5", 18),
)
"""Row of `links.KINDS`, and the most links of a GPU, by model (vendor's datasheets)."""


class LinkEnd(NamedTuple):
    """One NVLink of a GPU: its number as printed, and the far end's PCI address and link number."""

    link: int
    address: str
    port: int | None


Ends = Mapping[str, Sequence[LinkEnd]]


def matches(text: str) -> bool:
    """Return whether the text holds a listing of remote devices below GPU names, be it damaged."""
    return "GPU" in text and "Link" in text and listing_kind(plain_lines(text, LISTED_GPU)) == "remote"


def read(text: str, name: str) -> Topology:
    """Return the GPUs of a listing and, where it is whole, what their NVLinks lead to."""
    return _Reader(text, name).topology()


def nvlink_kind(model: str | None) -> str:
    """Return the row of `links.KINDS` for NVLinks of a GPU model; the family where the model is not known."""
    return next((kind for pattern, kind, _ in _MODELS if model and pattern.search(model)), "nvlink")


def links_of_model(model: str | None) -> int:
    """Return the most NVLinks that a GPU of this model can have."""
    return next((most for pattern, _, most in _MODELS if model and pattern.search(model)), MAX_LINKS_PER_GPU)


class _Reader(ListingReader):
    remedy = f"give the whole output of `{SOURCE}`"

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, name)
        self.ends = {block.id: self._ends(block) for block in self.known}
        self._check_counts()

    def topology(self) -> Topology:
        gpus = self.gpus()
        with_ports = {gpu: [list(end) for end in ends if end.port is not None] for gpu, ends in self.ends.items()}
        facts: dict[str, Any] = {
            "remote": {gpu: dict(Counter(end.address for end in ends)) for gpu, ends in self.ends.items()},
            **({"remote_ports": with_ports} if any(with_ports.values()) else {}),
            "nvlink_total_per_gpu": {gpu: len(ends) for gpu, ends in self.ends.items()},
            **self.gpu_facts(),
        }
        most = max((links_of_model(block.name) for block in self.known), default=MAX_LINKS_PER_GPU)
        kinds = {block.id: nvlink_kind(block.name) for block in self.known}
        fabric = GpuFabric((), (), {}, ())
        addresses = gpu_addresses(self.ends) if self.complete else {}
        if addresses:
            gpus = [gpu._replace(bus_id=addresses.get(gpu.id)) for gpu in gpus]
            counts = {(a, b): facts["remote"][a].get(addresses[b], 0) for a, b in combinations(addresses, 2)}
            fabric = nvlink_fabric(kinds, {}, {pair: lanes for pair, lanes in counts.items() if lanes})
            facts["nvswitches"] = 0
        elif through_switches(self.ends, most, complete=self.complete):
            self._count_switches(facts)
            full = all(len(ends) == MAX_LINKS_PER_GPU for ends in self.ends.values())
            into = {gpu: len(ends) for gpu, ends in self.ends.items() if ends}
            fabric = nvlink_fabric(kinds, into, {}, reduces=full)._replace(pairs={})
        elif any(self.ends.values()):
            self.note("whether the far ends are GPUs or NVSwitches does not follow from this listing: no links")
        return Topology(
            name=PurePath(self.file).stem,
            source=SOURCE,
            devices=(*gpus, *fabric.devices),
            links=fabric.links,
            pairs=tuple(fabric.pairs.values()),
            warnings=tuple(self.warnings),
            facts=facts,
        )

    def note(self, message: str) -> None:
        self.warnings.append(f"{PurePath(self.file).name}: {message}")

    def _ends(self, block: Block) -> list[LinkEnd]:
        ends = []
        for entry in block.entries:
            remote = REMOTE.fullmatch(entry.text)
            if remote and not (self.cut and entry.line == self.last_link and not remote[2] and "Remote" in entry.text):
                ends.append(LinkEnd(entry.link, remote[1].lower(), None if remote[2] is None else int(remote[2])))
            elif not INACTIVE.fullmatch(entry.text):
                what = "a rate, as of `nvidia-smi nvlink -s`" if RATE.fullmatch(entry.text) else "no far end of a link"
                expected = "expected `Remote Device 00000000:0F:00.0: Link 3`"
                self.refuse_link(block, entry, f"{entry.text[:60]!r} is {what}; {expected}")
        return ends

    def _check_counts(self) -> None:
        """Refuse more links than a GPU has; a last GPU with fewer than others of its model may be cut."""
        for block in self.known:
            ports = [(end.address, end.port) for end in self.ends[block.id] if end.port is not None]
            counts = Counter(port for port in ports if not _HIDDEN.fullmatch(port[0]))
            twice = next((port for port, count in counts.items() if count > 1), None)
            if twice is not None:
                self.refuse(block.line, f"{block.id} has two links to Link {twice[1]} of {twice[0]}")
            if len(ports) > MAX_LINKS_PER_GPU:
                words = f"no GPU has more than {MAX_LINKS_PER_GPU}"
                self.refuse(block.line, f"{block.id} has {len(ports)} links; {words}")
        last = next((block for block in self.known if block.entries and block.entries[-1].line == self.last_link), None)
        if last is not None and len(last.entries) < (most := len(self.fullest(last.name).entries)):
            words = f"{last.id} has {len(last.entries)} links, others of its model {most}"
            if self.cut:
                self.refuse(self.last_link, f"the text ends inside the listing: {words}")
            self.warn(self.last_link, f"{words}; the text may be cut")

    def _count_switches(self, facts: dict[str, Any]) -> None:
        total = Counter(end.address for ends in self.ends.values() for end in ends)
        if any(_HIDDEN.fullmatch(address) for address in total):
            self.note("the driver hides the addresses of the NVSwitches (FFFFFFFF:FF:FF.0): how many is not known")
        elif self.complete or any(len(self.ends[block.id]) >= links_of_model(block.name) for block in self.known):
            # A GPU with all links of its model reaches every switch.
            facts["nvswitches"] = len(total)
            facts["nvswitch_busids"] = dict(total)
        else:
            self.note("no GPU here is shown with all links of its model: how many NVSwitches there are is not known")


def through_switches(ends: Ends, most: int, *, complete: bool) -> bool:
    """Return whether the far ends are certainly NVSwitches; no machine has both links to switches and to GPUs.

    Link numbers that no GPU has are a switch's, and so is a device with more links than a GPU has or without an
    address. Devices that every GPU of a complete listing sees are switches, because no GPU sees itself; in a machine
    of two boards (DGX-2) the GPUs of one board see the same ones. `most` is the most links of a GPU of these models.
    """
    every = [end for of_gpu in ends.values() for end in of_gpu]
    if any(_HIDDEN.fullmatch(end.address) for end in every):
        return True
    beyond = {(end.address, end.port) for end in every if end.port is not None and end.port >= most}
    crowded = any(count > most for count in Counter(end.address for end in every).values())
    evident = len(beyond) > 1 or crowded  # a single number may be a misprint
    boards = Counter(frozenset(end.address for end in of_gpu) for of_gpu in ends.values() if of_gpu)
    if not complete or boards.total() < 2:
        return evident
    if len(boards) == 1:
        return True
    apart = sum(map(len, boards)) == len(frozenset().union(*boards))
    return evident and apart and min(boards.values()) > 1


def gpu_addresses(ends: Ends) -> dict[str, str]:
    """Return the PCI address of every GPU with links, if both ends of every link agree on them; else empty.

    A GPU is none of the devices that it sees. Where that leaves more than one address, GPUs are taken in the order
    of their addresses, as the driver numbers them, and every link's number must be the one that its far end prints.
    """
    linked = [gpu for gpu, of_gpu in ends.items() if of_gpu]
    addresses = sorted({end.address for gpu in linked for end in ends[gpu]}, key=lambda text: (len(text), text))
    if len(linked) < 2 or len(addresses) != len(linked) or any(_HIDDEN.fullmatch(address) for address in addresses):
        return {}
    left = {gpu: set(addresses) - {end.address for end in ends[gpu]} for gpu in linked}
    if all(len(own) == 1 for own in left.values()):
        by_gpu = {gpu: own.pop() for gpu, own in left.items()}
    elif all(end.port is not None for gpu in linked for end in ends[gpu]):
        by_gpu = dict(zip(linked, addresses, strict=True))
    else:
        return {}
    return by_gpu if len(set(by_gpu.values())) == len(by_gpu) and _ends_agree(ends, by_gpu) else {}


def _ends_agree(ends: Ends, addresses: Mapping[str, str]) -> bool:
    """Return whether the far end of every link has that link, too.

    The tool numbers only links that are up: the numbers that far ends print, in order, are those of a GPU's links in
    the order of the listing.
    """
    gpu_at = {address: gpu for gpu, address in addresses.items()}
    count = Counter((gpu, gpu_at[end.address]) for gpu in addresses for end in ends[gpu])
    if any(a == b or n != count[b, a] for (a, b), n in count.items()):
        return False
    if any(end.port is None for gpu in addresses for end in ends[gpu]):
        return True
    ports: dict[str, list[int]] = {gpu: [] for gpu in addresses}
    for gpu in addresses:
        for end in ends[gpu]:
            ports[gpu_at[end.address]].append(end.port or 0)
    if any(len(set(ports[gpu])) != len(ends[gpu]) for gpu in addresses):
        return False
    joins = {
        (gpu, own, gpu_at[end.address], end.port)
        for gpu in addresses
        for own, end in zip(sorted(ports[gpu]), ends[gpu], strict=True)
    }
    return all((b, port, a, own) in joins for a, own, b, port in joins)
