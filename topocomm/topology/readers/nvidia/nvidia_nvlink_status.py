"""`nvidia-smi nvlink -s` (also `--status`): which NVLinks of each GPU are up, and their rate; text in, Topology out."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.nvidia.nvlink_listing import (
    INACTIVE,
    RATE,
    REMOTE,
    Block,
    Entry,
    Listing,
    listing_kind,
    listing_lines,
    parse_listing,
)

SOURCE = "nvidia-smi nvlink -s"


def matches(text: str) -> bool:
    """True if the text holds a listing of link rates below GPU names, be it damaged."""
    return "GPU" in text and "link" in text.lower() and listing_kind(listing_lines(text)) == "status"


def read(text: str, name: str) -> Topology:
    """The GPUs of a listing; where their links lead, the tool does not say, so there are no links and no pairs.

    Facts: `links_per_gpu` counts the links listed, `active_links_per_gpu` and `nvlink_total_per_gpu` those that are
    up, by GPU; a GPU is absent where its lines were left out. `inactive_gpus` have no link that is up,
    `inactive_links` has the numbers of links that are down. `link_gb_per_s` is the raw rate of one link in one
    direction, GB/s, as printed; where links differ, `link_gb_per_s_per_gpu` has it by GPU instead. `uuids` by GPU.

    Args:
        text: What the tool printed, or a copy of it.
        name: Its file name, for messages; its stem names the topology.

    Raises:
        TopologyError: The text is cut short or damaged; names file and line.
    """
    lines = listing_lines(text)
    listing = parse_listing(lines, name, SOURCE)
    reader = _Reader(listing, name, cut=bool(lines[-1].strip()))
    facts = reader.facts()
    shown = {block.id: block for block in listing.blocks}
    return Topology(
        name=PurePath(name).stem,
        source=SOURCE,
        devices=tuple(Device(gpu, "gpu", name=shown[gpu].name if gpu in shown else None) for gpu in listing.ids),
        links=(),
        warnings=tuple(listing.warnings),
        facts=facts,
    )


class _Reader:
    """From the blocks of a listing to its facts."""

    def __init__(self, listing: Listing, file: str, *, cut: bool) -> None:
        self.listing, self.file, self.cut = listing, file, cut
        self.last = max((entry.line for block in listing.blocks for entry in block.entries), default=-1)

    def fail(self, line: int, message: str) -> NoReturn:
        raise TopologyError(f"{self.file}:{line + 1}: {message}; give the whole output of `{SOURCE}`")

    def warn(self, line: int, message: str) -> None:
        self.listing.warnings.append(f"{PurePath(self.file).name}:{line + 1}: {message}")

    def facts(self) -> dict[str, Any]:
        rates: dict[str, list[float | None]] = {}
        for block in self.listing.blocks:
            if block.known:
                rates[block.id] = [self._rate(block, entry) for entry in block.entries]
        self._check_counts()
        active = {gpu: sum(rate is not None for rate in found) for gpu, found in rates.items()}
        down = {
            block.id: numbers
            for block in self.listing.blocks
            if block.known
            and (numbers := [e.link for e, rate in zip(block.entries, rates[block.id], strict=True) if rate is None])
        }
        uuids = {block.id: block.uuid for block in self.listing.blocks if block.uuid}
        return {
            "links_per_gpu": {gpu: len(found) for gpu, found in rates.items()},
            "active_links_per_gpu": active,
            "nvlink_total_per_gpu": dict(active),
            "inactive_gpus": [gpu for gpu, count in active.items() if not count],
            **self._rates({gpu: sorted({r for r in found if r is not None}) for gpu, found in rates.items()}),
            **({"inactive_links": down} if down else {}),
            **({"gpus_listed": len(self.listing.blocks)} if self.listing.left_out else {}),
            **({"uuids": uuids} if uuids else {}),
        }

    def _rate(self, block: Block, entry: Entry) -> float | None:
        """GB/s of a link; None for one that is down."""
        if (found := RATE.fullmatch(entry.text)) is not None and float(found[1]) > 0:
            return float(found[1])
        if not INACTIVE.fullmatch(entry.text):
            self._refuse(block, entry)
        return None

    def _refuse(self, block: Block, entry: Entry) -> NoReturn:
        if entry.line == self.last and self.cut:
            self.fail(entry.line, f"the text ends inside Link {entry.link} of {block.id}")
        what = "a remote device, as of `nvidia-smi nvlink -R`" if REMOTE.fullmatch(entry.text) else "no state of a link"
        self.fail(
            entry.line,
            f"Link {entry.link} of {block.id}: {entry.text[:40]!r} is {what}; expected `25.781 GB/s` or `<inactive>`",
        )

    def _check_counts(self) -> None:
        """The tool lists every link of a GPU, up or down: one with fewer than others of its model lost lines."""
        most: dict[str | None, Block] = {}
        for block in self.listing.blocks:
            if block.known and block.entries:
                best = most.setdefault(block.name, block)
                if len(block.entries) > len(best.entries):
                    most[block.name] = block
        for block in self.listing.blocks:
            best = most.get(block.name, block)
            if block.known and block.entries and len(block.entries) < len(best.entries):
                line = block.entries[-1].line
                ends = "the text ends inside the listing: " if line == self.last else ""
                counts = f"{block.id} has {len(block.entries)} links, {best.id} of its model {len(best.entries)}"
                self.fail(line, ends + counts)

    def _rates(self, rates: dict[str, list[float]]) -> dict[str, Any]:
        """The rate of all links, or by GPU where GPUs differ; None where the links of one GPU differ."""
        every = sorted({rate for found in rates.values() for rate in found})
        if not every:
            return {}
        if len(every) == 1:
            return {"link_gb_per_s": every[0]}
        mixed = [gpu for gpu, found in rates.items() if len(found) > 1]
        for block in self.listing.blocks:
            if block.id in mixed:
                words = " and ".join(f"{rate:g}" for rate in rates[block.id][:4])
                self.warn(block.line, f"links of {block.id} have different rates: {words} GB/s; none of them is used")
        return {"link_gb_per_s_per_gpu": {gpu: found[0] if len(found) == 1 else None for gpu, found in rates.items()}}
