"""What `nvidia-smi nvlink -s`, `-R` and `-p` have in common: a header per GPU, below it a line per link.

What follows `Link k:` tells the three apart. A lost line is an error where the other GPUs of the same model show that
there was one; lines that somebody replaced by "..." leave their GPU without figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.model import Device
from topocomm.topology.readers.plain.paste import ELISIONS, LISTED_GPU, LineReader, plain_lines

MAX_GPUS = 1024
"""More than one host has; a larger number is damage."""
MAX_LINKS = 64
"""Lines per GPU; no GPU has more than 18 links."""

RATE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*GB/s", re.IGNORECASE)
INACTIVE = re.compile(r"<?\s*inactive\s*>?", re.IGNORECASE)
REMOTE = re.compile(
    r"(?:Remote Device\s+)?((?:[0-9a-f]{4}){1,2}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?:\s*:\s*Link\s+(\d{1,3}))?",
    re.IGNORECASE,
)
_NO_LINKS = re.compile(
    r"all links are inactive|does not (?:have|support)\b.{0,20}\bnvlink|nvlink (?:is )?not supported", re.IGNORECASE
)
_ABOUT_LINKS = re.compile(r"Unable to retrieve NVLink", re.IGNORECASE)

_HEADER = re.compile(r"GPU\s+(\d+)\s*:\s*(\S.*)?$")
_UUID = re.compile(r"\(UUID:\s*([^()\s]+)\s*\)")
_LINK = re.compile(r"Link\s+(\d{1,3})\s*:\s*(\S.*)$")
_LINK_BEGINS = re.compile(r"Link\s*(?:$|\d+\b(?!\s*,))")
_CUT = re.compile(r"GP?|GPU\s*\d*|L|Li|Lin")


class Entry(NamedTuple):
    """A line `Link k: text`; lines count from 0."""

    link: int
    text: str
    line: int


@dataclass
class Block:
    """The lines of one GPU."""

    number: int
    name: str | None
    uuid: str | None
    line: int
    entries: list[Entry] = field(default_factory=list)
    no_links: bool = False
    """True where the tool wrote that no link is active, or that there are none."""
    known: bool = True
    """False where lines were left out, or where the tool printed nothing: no figure of the GPU is certain."""

    @property
    def id(self) -> str:
        """Device id."""
        return f"GPU{self.number}"


def listing_kind(lines: Sequence[str]) -> Literal["status", "remote"] | None:
    """Return which listing begins in the text, by the first link line that tells; None for other texts."""
    header = silent = False
    for line in lines:
        text = line.strip()
        if not text:
            continue
        if header_line := _HEADER.match(text):
            header, text = True, header_line[2] or ""
        if not header:
            continue
        if (entry := _LINK.match(text)) is not None:
            if RATE.fullmatch(entry[2]):
                return "status"
            if REMOTE.fullmatch(entry[2]):
                return "remote"
            silent = silent or INACTIVE.fullmatch(entry[2]) is not None
        silent = silent or _NO_LINKS.search(text) is not None
    return "status" if silent else None


class ListingReader(LineReader):
    """Base of readers of a listing. Lines count from 0.

    Attributes:
        blocks: The GPUs in order of their numbers.
        left_out: Numbers between them that the text does not show.
        cut: Whether the text lacks its last line end, so that the last line may be cut.
        last_link: The last line of a link, -1 without any.
    """

    def __init__(self, text: str, file: str) -> None:
        super().__init__(plain_lines(text, LISTED_GPU), file)
        self.by_number: dict[int, Block] = {}
        self.uuids: dict[str, Block] = {}
        self.elided: int | None = None
        """Line of dots that nothing has followed yet."""
        self.blocks = self._parse()
        self._check_blocks()
        last = self.blocks[-1]
        self.left_out = sorted(set(range(self.blocks[0].number, last.number)) - set(self.by_number))
        if self.left_out:
            words = group_words([f"GPU{i}" for i in self.left_out])
            self.warn(last.line, f"no lines for {words}; they exist, because the GPUs around them are shown")
        self.cut = bool(self.lines[-1].strip())
        self.last_link = max((entry.line for block in self.blocks for entry in block.entries), default=-1)

    @property
    def known(self) -> list[Block]:
        """Blocks whose figures are certain."""
        return [block for block in self.blocks if block.known]

    @property
    def complete(self) -> bool:
        """Whether GPU 0 to the last are shown with all their links."""
        return not self.left_out and self.blocks[0].number == 0 and self.known == self.blocks

    def fullest(self, model: str | None) -> Block:
        """Return the GPU of a model with the most links, the first of several; one whose figures are certain if any."""
        return max((b for b in self.blocks if b.name == model), key=lambda b: b.known and len(b.entries) + 1)

    def gpu_facts(self) -> dict[str, Any]:
        """Return `gpus_listed`, where GPUs were left out, and `uuids` by GPU."""
        uuids = {block.id: block.uuid for block in self.blocks if block.uuid}
        return {
            **({"gpus_listed": len(self.blocks)} if self.left_out else {}),
            **({"uuids": uuids} if uuids else {}),
        }

    def gpus(self) -> list[Device]:
        """Return all GPUs, shown or left out, in order of their numbers."""
        names = dict.fromkeys(self.left_out) | {block.number: block.name for block in self.blocks}
        return [Device(f"GPU{number}", "gpu", name=names[number]) for number in sorted(names)]

    def refuse_link(self, block: Block, entry: Entry, message: str) -> NoReturn:
        """Raise the error of a link whose text is of no known form; the last line may be cut."""
        words = f"Link {entry.link} of {block.id}: {message}"
        if entry.line == self.last_link and self.cut:
            words = f"the text ends inside Link {entry.link} of {block.id}"
        self.refuse(entry.line, f"{words}")

    def _parse(self) -> list[Block]:
        current: Block | None = None
        for index, line in enumerate(map(str.strip, self.lines)):
            if line in ELISIONS:
                self.elided = self.elided if current is None else index
            elif header := _HEADER.match(line):
                current = self._header(index, header, current)
                if current is None:
                    break
            elif _LINK_BEGINS.match(line):
                self._link(index, line, current)
            elif current is not None:
                self._sentence(index, line, current)
        if _CUT.fullmatch(self.lines[-1].strip()):
            self.refuse(self.last, "the text ends inside a line")
        if not self.by_number:
            self.refuse(0, "no line `GPU 0: NAME (UUID: ...)`")
        if self.elided is not None:
            self.refuse(self.elided, "the text ends with lines left out: how many GPUs follow is lost")
        return [self.by_number[number] for number in sorted(self.by_number)]

    def _header(self, index: int, header: re.Match[str], above: Block | None) -> Block | None:
        """Return the GPU that begins here; None where a second listing does."""
        rest, uuid = header[2] or "", None
        if (match := _UUID.search(rest)) is not None:
            uuid, sentence, rest = match[1], rest[match.end() :], rest[: match.start()]
        elif "(UUID" in rest or not rest:
            what = "the text ends inside the line" if index == self.last else "damage in the line"
            self.refuse(index, f"{what} of a GPU; expected `GPU 0: NAME (UUID: ...)`")
        else:
            sentence = rest
        if len(header[1]) > 5 or int(header[1]) >= MAX_GPUS:
            self.fail(index, f"GPU number {header[1][:12]}: a host has at most {MAX_GPUS} GPUs; the line is damaged")
        block = Block(int(header[1]), rest.strip() or None, uuid, index)
        known = self.by_number.get(block.number)
        if known is not None:
            if uuid != known.uuid:
                words = f"GPU {block.number} has another UUID than on line {known.line + 1}: two machines, or damage"
                self.fail(index, f"{words}; give one file per machine")
            if known.entries or known.no_links:
                self.warn(index, "a second listing starts here; only the first was read")
                return None
        if uuid is not None and (twin := self.uuids.setdefault(uuid, block)).number != block.number:
            self.refuse(index, f"GPU {block.number} has the UUID of GPU {twin.number} (line {twin.line + 1})")
        if self.elided is not None and above is not None:
            if block.number == above.number + 1:  # else the lines of other GPUs were left out
                self._lose_lines(self.elided, above)
            self.elided = None
        self.by_number[block.number] = block
        self._sentence(index, sentence, block)
        return block

    def _lose_lines(self, index: int, block: Block) -> None:
        block.known = False
        self.warn(index, f"lines of {block.id} were left out; how many links it has is not known")

    def _link(self, index: int, line: str, current: Block | None) -> None:
        match = _LINK.match(line)
        if match is None or int(match[1]) >= MAX_LINKS:
            what = "the text ends inside a line" if index == self.last else f"{line[:60]!r} is damaged"
            self.refuse(index, f"{what}; expected `Link k: ...` with k below {MAX_LINKS}")
        if current is None:
            self.refuse(index, "a link above the first line `GPU 0: NAME (UUID: ...)`")
        if self.elided is not None:
            self.elided = None
            self._lose_lines(index - 1, current)
        link = int(match[1])
        if current.entries and link <= current.entries[-1].link:
            self.refuse(index, f"{current.id}: Link {link} follows Link {current.entries[-1].link}")
        current.entries.append(Entry(link, match[2], index))

    def _sentence(self, index: int, text: str, block: Block) -> None:
        """Take what the tool wrote of the GPU, after its header or below."""
        if _NO_LINKS.search(text):
            block.no_links = True
        elif _ABOUT_LINKS.search(text):
            if index == self.last:
                self.refuse(index, f"the text ends inside a sentence of {block.id}")
            block.known = False
            self.warn(index, f"{block.id}: {text[:100]!r}: whether it has links is not known")

    def _check_blocks(self) -> None:
        for block in self.blocks:
            if block.no_links and block.entries:
                self.fail(block.entries[0].line, f"{block.id} has links and a line that says that it has none")
            if block.known and not block.entries and not block.no_links:
                if block.line == self.last:
                    self.refuse(block.line, f"the text ends after the line of {block.id}")
                block.known = False
                self.warn(block.line, f"nothing is said of the links of {block.id}; how many it has is not known")
        for block in self.blocks:
            shown = {entry.link for entry in block.entries}
            gap = sorted(set(range(max(shown, default=0))) - shown)
            if not gap or not block.known:
                continue
            fullest = self.fullest(block.name)  # a number that another GPU of the model has is of a lost line
            if set(gap) <= {entry.link for entry in fullest.entries}:
                words = f"no line for Link {gap[0]}, which {fullest.id} of its model has"
                self.refuse(block.line, f"{block.id}: {words}")
            if fullest is block:
                self.warn(block.line, f"{block.id}: no line for Link {gap[0]}; the text may have lost it")
