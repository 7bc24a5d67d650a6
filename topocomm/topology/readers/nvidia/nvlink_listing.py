"""What `nvidia-smi nvlink -s`, `-R` and `-p` have in common: a header per GPU, below it a line per link.

Which of the three a text holds is told by what follows `Link k:`. A lost line is an error where the other GPUs of
the same model show that there was one; lines that somebody replaced by "..." leave their GPU without figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, NamedTuple, NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.readers.plain.log_prefix import LISTED_GPU, without_prefix
from topocomm.topology.readers.plain.paste import plain_lines

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
_ELISIONS = {"..", "...", "....", "…", "[...]", "⋮"}


class Entry(NamedTuple):
    """One line `Link k: text`; lines count from 0."""

    link: int
    text: str
    line: int


@dataclass
class Block:
    """What the text says of one GPU."""

    number: int
    name: str | None
    uuid: str | None
    line: int
    entries: list[Entry] = field(default_factory=list)
    no_links: bool = False
    """The tool said in a sentence that no link is active, or that there are none."""
    known: bool = True
    """False where lines of it were left out, or where the tool printed nothing: no figure of it is certain."""

    @property
    def id(self) -> str:
        """The device id."""
        return f"GPU{self.number}"


class Listing(NamedTuple):
    """The GPUs in order of their numbers; `left_out` are numbers between them that the text does not show."""

    blocks: tuple[Block, ...]
    left_out: tuple[int, ...]
    warnings: list[str]

    @property
    def ids(self) -> tuple[str, ...]:
        """All GPUs that there are, shown or not, in order of their numbers."""
        return tuple(f"GPU{i}" for i in sorted((*self.left_out, *(block.number for block in self.blocks))))

    @property
    def complete(self) -> bool:
        """True if GPU 0 to the last are shown with all their links."""
        return not self.left_out and self.blocks[0].number == 0 and all(block.known for block in self.blocks)


def listing_lines(text: str) -> list[str]:
    """The lines of a pasted text, one for one, as the functions here take them."""
    return without_prefix(plain_lines(text), LISTED_GPU)


def listing_kind(lines: Sequence[str]) -> Literal["status", "remote"] | None:
    """Which listing begins in the text: the first link line that tells decides; None for other texts."""
    header = silent = False
    for line in lines:
        text = line.strip()
        if not text:
            continue
        if found := _HEADER.match(text):
            header, text = True, found[2] or ""
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


def parse_listing(lines: Sequence[str], file: str, command: str) -> Listing:
    """The listing in the lines of a pasted text (`listing_lines`).

    Args:
        lines: The text.
        file: What messages call it.
        command: The command that prints it, for messages.

    Raises:
        TopologyError: It is cut short, lost lines, or speaks of more than one machine; names the line.
    """
    return _Parser(lines, file, command).parse()


class _Parser:
    def __init__(self, lines: Sequence[str], file: str, command: str) -> None:
        self.lines, self.file = lines, file
        self.whole = f"give the whole output of `{command}`"
        self.warnings: list[str] = []
        self.blocks: dict[int, Block] = {}
        self.uuids: dict[str, Block] = {}
        self.elided: int | None = None
        self.last = max((i for i, line in enumerate(lines) if line.strip()), default=0)

    def fail(self, index: int, message: str) -> NoReturn:
        raise TopologyError(f"{self.file}:{index + 1}: {message}")

    def warn(self, index: int, message: str) -> None:
        self.warnings.append(f"{PurePath(self.file).name}:{index + 1}: {message}")

    def parse(self) -> Listing:
        current: Block | None = None
        for index, line in self._filled():
            if line in _ELISIONS:
                self._elision(index, current)
            elif header := _HEADER.match(line):
                current = self._header(index, header, current)
                if current is None:
                    break
            elif _LINK_BEGINS.match(line):
                self._link(index, line, current)
            elif current is not None:
                self._sentence(index, line, current)
        if _CUT.fullmatch(self.lines[-1].strip() if self.lines else ""):
            self.fail(self.last, f"the text ends inside a line; {self.whole}")
        blocks = tuple(self.blocks[number] for number in sorted(self.blocks))
        if not blocks:
            self.fail(0, f"no line `GPU 0: NAME (UUID: ...)`; {self.whole}")
        if self.elided is not None:
            self.fail(self.elided, f"the text ends with lines left out: how many GPUs follow is lost; {self.whole}")
        self._check_blocks(blocks)
        left_out = sorted(set(range(blocks[0].number, blocks[-1].number)) - set(self.blocks))
        if left_out:
            words = group_words([f"GPU{i}" for i in left_out])
            self.warn(blocks[-1].line, f"no lines for {words}; they exist, because the GPUs around them are shown")
        return Listing(blocks, tuple(left_out), self.warnings)

    def _filled(self) -> Iterator[tuple[int, str]]:
        return ((index, text) for index, line in enumerate(self.lines) if (text := line.strip()))

    def _elision(self, index: int, current: Block | None) -> None:
        if current is not None:
            self.elided = index

    def _header(self, index: int, header: re.Match[str], above: Block | None) -> Block | None:
        """The GPU that begins here; None where a second listing does."""
        rest, uuid = header[2] or "", None
        if (found := _UUID.search(rest)) is not None:
            uuid, said, rest = found[1], rest[found.end() :], rest[: found.start()]
        elif "(UUID" in rest or not rest:
            what = "the text ends inside the line" if index == self.last else "damage in the line"
            self.fail(index, f"{what} of a GPU; expected `GPU 0: NAME (UUID: ...)`; {self.whole}")
        else:
            said = rest
        if len(header[1]) > 5 or int(header[1]) >= MAX_GPUS:
            self.fail(index, f"GPU number {header[1][:12]}: a host has at most {MAX_GPUS} GPUs; the line is damaged")
        block = Block(int(header[1]), rest.strip() or None, uuid, index)
        known = self.blocks.get(block.number)
        if known is not None:
            if uuid != known.uuid:
                self.fail(
                    index,
                    f"GPU {block.number} has another UUID than on line {known.line + 1}: two machines, or damage; "
                    "give one file per machine",
                )
            if known.entries or known.no_links:
                self.warn(index, "a second listing starts here; only the first was read")
                return None
        if uuid is not None and (twin := self.uuids.setdefault(uuid, block)).number != block.number:
            words = f"GPU {block.number} has the UUID of GPU {twin.number} (line {twin.line + 1})"
            self.fail(index, f"{words}; {self.whole}")
        if self.elided is not None and above is not None:
            self._close_elision(self.elided, above, block)
        self.blocks[block.number] = block
        self._sentence(index, said, block)
        return block

    def _close_elision(self, index: int, above: Block, block: Block) -> None:
        """Lines were left out between two GPUs: other GPUs where numbers are missing, else links of the upper one."""
        if block.number == above.number + 1:
            above.known = False
            self.warn(index, f"lines of {above.id} were left out; how many links it has is not known")
        self.elided = None

    def _link(self, index: int, line: str, current: Block | None) -> None:
        found = _LINK.match(line)
        if found is None or int(found[1]) >= MAX_LINKS:
            what = "the text ends inside a line" if index == self.last else f"{line[:60]!r} is damaged"
            self.fail(index, f"{what}; expected `Link k: ...` with k below {MAX_LINKS}; {self.whole}")
        if current is None:
            self.fail(index, f"a link above the first line `GPU 0: NAME (UUID: ...)`; {self.whole}")
        if self.elided is not None:
            current.known, self.elided = False, None
            self.warn(index - 1, f"lines of {current.id} were left out; how many links it has is not known")
        link = int(found[1])
        if current.entries and link <= current.entries[-1].link:
            self.fail(index, f"{current.id}: Link {link} follows Link {current.entries[-1].link}; {self.whole}")
        current.entries.append(Entry(link, found[2], index))

    def _sentence(self, index: int, text: str, block: Block) -> None:
        """A verdict of the tool on the GPU, after its header or below."""
        if _NO_LINKS.search(text):
            block.no_links = True
        elif _ABOUT_LINKS.search(text):
            if index == self.last:
                self.fail(index, f"the text ends inside a sentence of {block.id}; {self.whole}")
            block.known = False
            self.warn(index, f"{block.id}: {text[:100]!r}: whether it has links is not known")

    def _check_blocks(self, blocks: Sequence[Block]) -> None:
        fullest: dict[str | None, Block] = {}
        for block in blocks:
            if block.no_links and block.entries:
                self.fail(block.entries[0].line, f"{block.id} has links and a line that says that it has none")
            if block.known and not block.entries and not block.no_links:
                if block.line == self.last:
                    self.fail(block.line, f"the text ends after the line of {block.id}; {self.whole}")
                block.known = False
                self.warn(block.line, f"nothing is said of the links of {block.id}; how many it has is not known")
            best = fullest.setdefault(block.name, block)
            if block.known and (not best.known or len(block.entries) > len(best.entries)):
                fullest[block.name] = block
        for block in blocks:
            self._check_gap(block, fullest[block.name])

    def _check_gap(self, block: Block, fullest: Block) -> None:
        """A number left out among a GPU's links is a lost line where another of its model has that link."""
        shown = {entry.link for entry in block.entries}
        gap = [link for link in range(max(shown, default=-1)) if link not in shown]
        if not gap or not block.known:
            return
        if fullest.known and set(gap) <= {entry.link for entry in fullest.entries}:
            self.fail(
                block.line, f"{block.id}: no line for Link {gap[0]}, which {fullest.id} of its model has; {self.whole}"
            )
        if fullest is block:
            self.warn(block.line, f"{block.id}: no line for Link {gap[0]}; the text may have lost it")
