"""`nvidia-smi nvlink -R` (also `--remotelinkinfo`) and the older `-p`: where each NVLink ends; text in, Topology out.

The tool names the far end of a link by its PCI address, and does not say whether that is a GPU or an NVSwitch, nor
which address each GPU has. Both follow where the listing is whole: `remote_ends` has the rules.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import PurePath
from typing import Any, NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.inference.nvlink import MAX_LINKS_PER_GPU
from topocomm.topology.links import KINDS, NVSWITCH_HOP_US, both_ways
from topocomm.topology.model import Device, Link, Pair, Topology
from topocomm.topology.readers.nvidia.nvlink_listing import (
    INACTIVE,
    RATE,
    REMOTE,
    Block,
    Listing,
    listing_kind,
    listing_lines,
    parse_listing,
)
from topocomm.topology.readers.nvidia.remote_ends import (
    HIDDEN,
    LinkEnd,
    gpu_addresses,
    links_of_model,
    nvlink_kind,
    through_switches,
)

SOURCE = "nvidia-smi nvlink -R"


def matches(text: str) -> bool:
    """True if the text holds a listing of remote devices below GPU names, be it damaged."""
    return "GPU" in text and "Link" in text and listing_kind(listing_lines(text)) == "remote"


def read(text: str, name: str) -> Topology:
    """The GPUs of a listing and, where it is whole, what their NVLinks lead to.

    NVSwitches become one switch device, as everywhere here (a path uses all of them); links between GPUs become
    links and pairs, and the GPUs get the PCI addresses that their peers print. Facts: `remote` counts links by far
    end, `remote_ports` lists `[link, far end, its link]` as printed (not in listings of `-p`), `nvlink_total_per_gpu`
    counts links, all by GPU; `nvswitches` is how many switches there are (0: GPUs are linked to each other; absent:
    not certain, or hidden by the driver), `nvswitch_busids` counts links by switch; `uuids` by GPU. Addresses are in
    lower case.

    Args:
        text: What the tool printed, or a copy of it.
        name: Its file name, for messages; its stem names the topology.

    Raises:
        TopologyError: The text is cut short or damaged; names file and line.
    """
    lines = listing_lines(text)
    listing = parse_listing(lines, name, SOURCE)
    return _Reader(listing, name, cut=bool(lines[-1].strip())).topology()


class _Reader:
    """From the blocks of a listing to devices and links."""

    def __init__(self, listing: Listing, file: str, *, cut: bool) -> None:
        self.listing, self.file, self.cut = listing, file, cut
        self.known = [block for block in listing.blocks if block.known]
        self.last = max((entry.line for block in listing.blocks for entry in block.entries), default=-1)
        self.ends = {block.id: self._ends(block) for block in self.known}
        self._check_counts()

    def fail(self, line: int, message: str) -> NoReturn:
        raise TopologyError(f"{self.file}:{line + 1}: {message}; give the whole output of `{SOURCE}`")

    def warn(self, message: str, line: int | None = None) -> None:
        where = "" if line is None else f":{line + 1}"
        self.listing.warnings.append(f"{PurePath(self.file).name}{where}: {message}")

    def topology(self) -> Topology:
        shown = {block.id: block for block in self.listing.blocks}
        gpus = [Device(gpu, "gpu", name=shown[gpu].name if gpu in shown else None) for gpu in self.listing.ids]
        facts = self._facts()
        switch: tuple[Device, ...] = ()
        links: list[Link] = []
        pairs: list[Pair] = []
        addresses = gpu_addresses(self.ends) if self.listing.complete else {}
        if addresses:
            gpus = [gpu._replace(bus_id=addresses.get(gpu.id)) for gpu in gpus]
            links, pairs = self._direct(addresses, shown)
            facts["nvswitches"] = 0
        elif through_switches(self.ends, self._most(), complete=self.listing.complete):
            switch, links = self._to_switch(facts)
        elif any(self.ends.values()):
            self.warn("whether the far ends are GPUs or NVSwitches does not follow from this listing: no links")
        return Topology(
            name=PurePath(self.file).stem,
            source=SOURCE,
            devices=(*gpus, *switch),
            links=tuple(links),
            pairs=tuple(pairs),
            warnings=tuple(self.listing.warnings),
            facts=facts,
        )

    def _ends(self, block: Block) -> list[LinkEnd]:
        found = []
        for entry in block.entries:
            if (remote := REMOTE.fullmatch(entry.text)) is not None and not (
                self.cut and entry.line == self.last and remote[2] is None and "Remote" in entry.text
            ):
                port = None if remote[2] is None else int(remote[2])
                found.append(LinkEnd(entry.link, remote[1].lower(), port))
            elif not INACTIVE.fullmatch(entry.text):
                if entry.line == self.last and self.cut:
                    self.fail(entry.line, f"the text ends inside Link {entry.link} of {block.id}")
                what = "a rate, as of `nvidia-smi nvlink -s`" if RATE.fullmatch(entry.text) else "no far end of a link"
                self.fail(
                    entry.line,
                    f"Link {entry.link} of {block.id}: {entry.text[:60]!r} is {what}; "
                    "expected `Remote Device 00000000:0F:00.0: Link 3`",
                )
        return found

    def _check_counts(self) -> None:
        """Links per GPU cannot be more than a GPU has; a last GPU with fewer than its like may be cut."""
        for block in self.known:
            ports = [(end.address, end.port) for end in self.ends[block.id] if end.port is not None]
            seen = Counter(port for port in ports if not HIDDEN.fullmatch(port[0]))
            twice = next((port for port, count in seen.items() if count > 1), None)
            if twice is not None:
                self.fail(block.line, f"{block.id} has two links to Link {twice[1]} of {twice[0]}")
            if len(ports) > MAX_LINKS_PER_GPU:
                self.fail(block.line, f"{block.id} has {len(ports)} links; no GPU has more than {MAX_LINKS_PER_GPU}")
        last = next((block for block in self.known if block.entries and block.entries[-1].line == self.last), None)
        if last is None:
            return
        most = max(len(block.entries) for block in self.known if block.name == last.name)
        if len(last.entries) < most:
            counts = f"{last.id} has {len(last.entries)} links, others of its model {most}"
            if self.cut:
                self.fail(self.last, f"the text ends inside the listing: {counts}")
            self.warn(f"{counts}; the text may be cut", self.last)

    def _most(self) -> int:
        """The most links that a GPU of this listing can have."""
        return max((links_of_model(block.name) for block in self.known), default=MAX_LINKS_PER_GPU)

    def _facts(self) -> dict[str, Any]:
        with_ports = {gpu: [list(end) for end in ends if end.port is not None] for gpu, ends in self.ends.items()}
        uuids = {block.id: block.uuid for block in self.listing.blocks if block.uuid}
        return {
            "remote": {gpu: dict(Counter(end.address for end in ends)) for gpu, ends in self.ends.items()},
            **({"remote_ports": with_ports} if any(with_ports.values()) else {}),
            "nvlink_total_per_gpu": {gpu: len(ends) for gpu, ends in self.ends.items()},
            **({"gpus_listed": len(self.listing.blocks)} if self.listing.left_out else {}),
            **({"uuids": uuids} if uuids else {}),
        }

    def _to_switch(self, facts: dict[str, Any]) -> tuple[tuple[Device, ...], list[Link]]:
        total = Counter(end.address for ends in self.ends.values() for end in ends)
        if any(HIDDEN.fullmatch(address) for address in total):
            self.warn("the driver hides the addresses of the NVSwitches (FFFFFFFF:FF:FF.0): how many is not known")
        elif self._shows_all():
            facts["nvswitches"] = len(total)
            facts["nvswitch_busids"] = dict(total)
        else:
            self.warn("no GPU here is shown with all links of its model: how many NVSwitches there are is not known")
        kinds = {block.id: nvlink_kind(block.name) for block in self.known}
        full = all(len(ends) == MAX_LINKS_PER_GPU for ends in self.ends.values())
        switch = Device("nvswitch0", "switch", name="NVSwitch", in_network="nvls" if full else None)
        links: list[Link] = []
        for gpu, ends in self.ends.items():
            if ends:
                links += both_ways(gpu, switch.id, kinds[gpu], lanes=len(ends), latency_us=NVSWITCH_HOP_US)
        return (switch,), links

    def _shows_all(self) -> bool:
        """True if the listing is whole, or one GPU of it has all the links of its model, which reach every switch."""
        full = any(len(self.ends[block.id]) >= links_of_model(block.name) for block in self.known)
        return full or self.listing.complete

    def _direct(self, addresses: dict[str, str], shown: dict[str, Block]) -> tuple[list[Link], list[Pair]]:
        links: list[Link] = []
        pairs = []
        seen = {gpu: Counter(end.address for end in ends) for gpu, ends in self.ends.items()}
        for a, b in combinations(addresses, 2):
            if lanes := seen[a][addresses[b]]:
                kind = nvlink_kind(shown[a].name)
                there, back = both_ways(a, b, kind, lanes=lanes)
                links += (there, back)
                latency_us = KINDS["nvlink4"].latency_us
                source = there.gb_per_s_source
                pairs.append(Pair(a, b, f"NV{lanes}", there.gb_per_s, latency_us, source, "assumed"))
        return links, pairs
