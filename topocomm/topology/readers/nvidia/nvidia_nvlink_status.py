"""`nvidia-smi nvlink -s` (also `--status`): which NVLinks of each GPU are up, and their rate.

Where the links lead, the tool does not say: there are no links and no pairs. Facts: `links_per_gpu` counts the links
listed, `active_links_per_gpu` and `nvlink_total_per_gpu` those that are up, by GPU; a GPU is absent where its lines
were left out. `inactive_gpus` have no link that is up, `inactive_links` has the numbers of links that are down.
`link_gb_per_s` is the raw rate of one link in one direction, GB/s, as printed; where links differ,
`link_gb_per_s_per_gpu` has it by GPU instead. `uuids` by GPU.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from topocomm.topology.model import Topology
from topocomm.topology.readers.nvidia.nvlink_listing import (
    INACTIVE,
    RATE,
    REMOTE,
    Block,
    Entry,
    ListingReader,
    listing_kind,
)
from topocomm.topology.readers.plain.paste import LISTED_GPU, plain_lines

SOURCE = "nvidia-smi nvlink -s"


def matches(text: str) -> bool:
    """Return whether the text holds a listing of link rates below GPU names, be it damaged."""
    return "GPU" in text and "link" in text.lower() and listing_kind(plain_lines(text, LISTED_GPU)) == "status"


def read(text: str, name: str) -> Topology:
    """Return the GPUs of a listing, and in `facts` their links."""
    reader = _Reader(text, name)
    facts = reader.facts()
    return Topology(
        name=PurePath(name).stem,
        source=SOURCE,
        devices=tuple(reader.gpus()),
        links=(),
        warnings=tuple(reader.warnings),
        facts=facts,
    )


class _Reader(ListingReader):
    remedy = f"give the whole output of `{SOURCE}`"

    def facts(self) -> dict[str, Any]:
        rates = {block.id: [self._rate(block, entry) for entry in block.entries] for block in self.known}
        for block in self.known:  # the tool lists every link, up or down
            best = self.fullest(block.name)
            if block.entries and len(block.entries) < len(best.entries):
                line = block.entries[-1].line
                ends = "the text ends inside the listing: " if line == self.last_link else ""
                counts = f"{block.id} has {len(block.entries)} links, {best.id} of its model {len(best.entries)}"
                self.refuse(line, f"{ends}{counts}")
        active = {gpu: sum(rate is not None for rate in of_gpu) for gpu, of_gpu in rates.items()}
        down = {
            block.id: numbers
            for block in self.known
            if (numbers := [e.link for e, rate in zip(block.entries, rates[block.id], strict=True) if rate is None])
        }
        return {
            "links_per_gpu": {gpu: len(of_gpu) for gpu, of_gpu in rates.items()},
            "active_links_per_gpu": active,
            "nvlink_total_per_gpu": dict(active),
            "inactive_gpus": [gpu for gpu, count in active.items() if not count],
            **self._rates({gpu: sorted({r for r in of_gpu if r is not None}) for gpu, of_gpu in rates.items()}),
            **({"inactive_links": down} if down else {}),
            **self.gpu_facts(),
        }

    def _rate(self, block: Block, entry: Entry) -> float | None:
        """Return GB/s of a link; None for one that is down."""
        if (rate := RATE.fullmatch(entry.text)) is not None and float(rate[1]) > 0:
            return float(rate[1])
        if not INACTIVE.fullmatch(entry.text):
            is_remote = REMOTE.fullmatch(entry.text) is not None
            what = "a remote device, as of `nvidia-smi nvlink -R`" if is_remote else "no state of a link"
            self.refuse_link(block, entry, f"{entry.text[:40]!r} is {what}; expected `25.781 GB/s` or `<inactive>`")
        return None

    def _rates(self, rates: dict[str, list[float]]) -> dict[str, Any]:
        """Return the rate of all links, or by GPU where GPUs differ; None where the links of one GPU differ."""
        every = {rate for of_gpu in rates.values() for rate in of_gpu}
        if len(every) <= 1:
            return {"link_gb_per_s": every.pop()} if every else {}
        for block in self.known:
            if len(rates[block.id]) > 1:
                words = " and ".join(f"{rate:g}" for rate in rates[block.id][:4])
                self.warn(block.line, f"links of {block.id} have different rates: {words} GB/s; none of them is used")
        return {"link_gb_per_s_per_gpu": {gpu: r[0] if len(r) == 1 else None for gpu, r in rates.items()}}
