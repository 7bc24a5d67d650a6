"""Takes off what terminals, mails, launchers, loggers and web pages put around a tool's text on its way into a file.

`unwrap` works on a whole text at once, as XML, JSON and trees need it, whose first column counts; `plain_lines` and
`strip_prefix` on the lines of tables and listings. Line numbers stay: line i of a result is line i of the text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NoReturn

from topocomm.errors import TopologyError

ELISIONS = {"..", "...", "....", "…", "[...]", "⋮"}
"""What people write for cells and lines that they left out."""
MATRIX_ROW = re.compile(r"\bGPU\d{1,5}\s+X(?=\s|$)")
"""The row of the first GPU in a matrix: its own cell comes first."""
LISTED_GPU = re.compile(r"\bGPU \d{1,5}: \S")
"""The line that begins a GPU in listings of links."""

_SPELLED_ESCAPE = re.compile(
    r"(?:\x1b|\^\[|\\033|\\e|\\x1b)\[[0-9;?]*[A-Za-z]|\[[0-9;]{1,8}m|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]"
)
"""Terminal escapes; colour and underline codes also where a copy lost the ESC or spells it out."""
_TAG = re.compile(r"</?(?:p|br|pre|code|div|span|tt|td|tr|b|i|u|font|blockquote)\b[^<>]*>", re.IGNORECASE)
_QUOTED_ROW = re.compile(r"^\s*>[>\s]{0,8}(?=\s|GPU|NIC|Legend)")
_BLANK = re.compile(r"[\u00a0\u2000-\u200b\u202f\u3000]")
_MAX_PREFIX = 200
"""Characters; what is longer is text, not a prefix."""

_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_FRAME = re.compile(r"</?(?:pre|code)\b[^<>\n]{0,200}>", re.IGNORECASE)
_SPELLED_OUT = re.compile(r"&lt;(?:system|cpu|graphs|topology|object)\b|&(?:quot|#34);gpu&")
_MARKUP = re.compile(r"<(?:system|cpu|graphs|topology|object)\b")
_QUOTE = re.compile(r" {0,3}(?:> ?)*>")
_LEAST_LINES = 3
_LEAST_QUOTED = 0.5
"""Share of the lines of a mail: the answer above the quoted text has no marks."""
_LEAST_LABELLED = 0.9
"""Share of the lines of a log."""
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] )?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@/-]{1,64}(?:\[\d{1,10}\])?: "
)
"""Times as containers, CI and the system's journal print them."""
_LABEL = re.compile(
    r"\[\d{1,6},\d{1,6}\]<std(?:out|err)>:"  # mpirun --tag-output
    r"|\[pod/[^\s\]]{1,200}\] "
    r"|\(\w{1,64} pid=\d{1,10}(?:, ip=[\w.:]{1,64})?\) "
    r"|\[?rank ?\d{1,6}\]?: "
    r"| {0,5}\d{1,6}: "  # srun --label
    r"|[A-Za-z][\w.-]{0,63}: "  # pdsh
)


class LineReader:
    """Base of readers of lines: the lines, warnings about them, and errors that name one. Indices count from 0."""

    remedy: str
    """What to give instead of a text that is cut or damaged."""

    def __init__(self, lines: Sequence[str], file: str) -> None:
        self.lines, self.file = lines, file
        self.warnings: list[str] = []
        self.last = max((i for i, line in enumerate(lines) if line.strip()), default=0)

    def fail(self, index: int, message: str) -> NoReturn:
        """Raise the error of a line."""
        raise TopologyError(f"{self.file}:{index + 1}: {message}")

    def refuse(self, index: int, message: str) -> NoReturn:
        """Raise the error of a line that is cut or damaged, with the remedy."""
        self.fail(index, f"{message}; {self.remedy}")

    def warn(self, index: int, message: str) -> None:
        """Add a warning of a line. Warnings travel with the topology, so they name no folders of this machine."""
        self.warnings.append(f"{PurePath(self.file).name}:{index + 1}: {message}")


def same_or_all(values: dict[str, Any]) -> Any:
    """Return the value that all have, else the values by name."""
    first = next(iter(values.values()), None)
    return first if values and all(value == first for value in values.values()) else values


def filled_lines(lines: Sequence[str], start: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Return index and tokens of the lines that are not blank, from an index on."""
    return ((index, tokens) for index in range(start, len(lines)) if (tokens := lines[index].split()))


def plain_lines(text: str, row: re.Pattern[str] | None = None) -> list[str]:
    """Return the lines of a pasted text without escapes, tags, quote marks, table bars and line ends.

    Tabs stay, because they separate cells. With `row`, lines lose their prefixes as by `strip_prefix`.
    """
    lines = [_plain(line) for line in re.split(r"\r\n?|\n", text.lstrip("\ufeff"))]
    return lines if row is None else strip_prefix(lines, row)


def markup_line(text: str) -> int | None:
    """Return the number of the first line with HTML tags or entities, counted from 1."""
    mark = re.search(rf"{_TAG.pattern}|&(?:nbsp|lt|gt|amp|#\d+);", text, re.IGNORECASE)
    return None if mark is None else text.count("\n", 0, mark.start()) + 1


def _plain(line: str) -> str:
    if not line:
        return line
    if "[" in line or "\x1b" in line:
        line = _SPELLED_ESCAPE.sub("", line)
    if "<" in line or "&" in line:
        line = _TAG.sub("", html.unescape(_TAG.sub("", line)))
    if ">" in line:
        line = _QUOTED_ROW.sub("", line)
    if line.count("|") >= 3:  # a table of a web page
        line = line.replace("|", "\t")
    return (line if line.isascii() else _BLANK.sub(" ", line)).rstrip(" |\t")


def strip_prefix(lines: Sequence[str], row: re.Pattern[str]) -> list[str]:
    """Return the lines without the rank, host name, time or number that each of them starts with.

    `2024-06-01 12:00:00 INFO GPU0     X      NV4` has such a prefix; its numbers may differ from line to line. Blanks
    after it stay, because columns count, and lines without it stay whole.

    `row` finds a line of the tool where that line begins.
    """
    for index, line in enumerate(lines):
        match = row.search(line[: _MAX_PREFIX + 100])
        if match is None:
            continue
        words = line[: match.start()].strip()
        if not words or len(words) > _MAX_PREFIX:
            break
        parts = (r"\d+" if part.isdigit() else re.escape(part) for part in re.split(r"([0-9]+)", words))
        prefix = re.compile(r"\s*" + "".join(parts) + (r"(?=\s|$)" if words[-1].isalnum() else ""))
        near = (*lines[max(index - 3, 0) : index], *lines[index + 1 : index + 4])
        if any(prefix.match(text) for text in near):
            return [line[mark.end() :] if (mark := prefix.match(line)) else line for line in lines]
    return list(lines)


def unwrap(text: str) -> str:
    """Return the text without escapes, frames of a web page, quote marks and labels that all its lines have."""
    if "\x1b[" in text:
        text = _ESCAPE.sub("", text)
    if "\u00a0" in text:
        text = text.replace("\u00a0", " ")
    if "<" in text and _FRAME.search(text) is not None:
        text = _FRAME.sub("", text)
    if "&" in text and _SPELLED_OUT.search(text) and not _MARKUP.search(text):
        text = html.unescape(text)
    if ">" in text:  # quote marks of a mail
        lines = text.split("\n")
        marks = [_QUOTE.match(line) for line in lines]
        quoted = sum(mark is not None for mark in marks)
        if quoted >= max(_LEAST_LINES, _LEAST_QUOTED * sum(bool(line.strip()) for line in lines)):
            text = _strip_marks(lines, marks)
    # Times, and a label that (nearly) every line has and that is the same: one writer's output.
    for pattern in (_TIMES, _LABEL, _TIMES):
        if not _is_on_most(pattern, text[:4000].split("\n")):
            continue
        lines = text.split("\n")
        marks = [pattern.match(line) for line in lines]
        labels = {mark.group() for mark in marks if mark} if pattern is _LABEL else set()
        if len(labels) <= 1 and _is_on_most(pattern, lines):
            text = _strip_marks(lines, marks)
    return text


def _is_on_most(pattern: re.Pattern[str], lines: list[str]) -> bool:
    full = [line for line in lines if line.strip()]
    count = sum(pattern.match(line) is not None for line in full)
    return count >= max(_LEAST_LINES, _LEAST_LABELLED * len(full))


def _strip_marks(lines: list[str], marks: Sequence[re.Match[str] | None]) -> str:
    """Join the lines without their marks, and without one blank behind them where all have one."""
    rests = [line[mark.end() :] if mark else line for line, mark in zip(lines, marks, strict=True)]
    blank = all(not rest.strip() or rest[0] == " " for rest, mark in zip(rests, marks, strict=True) if mark)
    return "\n".join(rest[1:] if mark and blank else rest for rest, mark in zip(rests, marks, strict=True))
