"""Takes off what stands around every line of a text: quote marks of a mail, a launcher's label, times of a log, markup.

Readers of tables and logs do much of this line by line (`paste`); XML, JSON and trees, whose first column counts, need
it for the whole text at once. Line numbers stay: line i of the result is line i of the text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_FRAME = re.compile(r"</?(?:pre|code)\b[^<>\n]{0,200}>", re.IGNORECASE)
_SPELLED_OUT = re.compile(r"&lt;(?:system|cpu|graphs|topology|object)\b|&(?:quot|#34);gpu&")
_MARKUP = re.compile(r"<(?:system|cpu|graphs|topology|object)\b")

_QUOTE = re.compile(r" {0,3}(?:> ?)*>")
_LEAST_LINES = 3
_LEAST_QUOTED = 0.5
"""Of a mail, the answer above the quoted text has no marks."""
_LEAST_LABELLED = 0.9

_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] )?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@/-]{1,64}(?:\[\d{1,10}\])?: "
)
"""Of containers, of CI and of the system's journal."""
_LABEL = re.compile(
    r"\[\d{1,6},\d{1,6}\]<std(?:out|err)>:"  # mpirun --tag-output
    r"|\[pod/[^\s\]]{1,200}\] "
    r"|\(\w{1,64} pid=\d{1,10}(?:, ip=[\w.:]{1,64})?\) "
    r"|\[?rank ?\d{1,6}\]?: "
    r"| {0,5}\d{1,6}: "  # srun --label
    r"|[A-Za-z][\w.-]{0,63}: "  # pdsh
)


def unwrapped(text: str) -> str:
    """The text without escapes, frames of a web page, quote marks and labels that all its lines have."""
    if "\x1b[" in text:
        text = _ESCAPE.sub("", text)
    if "\u00a0" in text:
        text = text.replace("\u00a0", " ")
    if "<" in text and (_FRAME.search(text) is not None):
        text = _FRAME.sub("", text)
    if "&" in text and _SPELLED_OUT.search(text) and not _MARKUP.search(text):
        text = html.unescape(text)
    return _unlabelled(_unquoted(text))


def _unquoted(text: str) -> str:
    """Without the quote marks of a mail."""
    if ">" not in text:
        return text
    lines = text.split("\n")
    marks = [_QUOTE.match(line) for line in lines]
    quoted = sum(mark is not None for mark in marks)
    if quoted < _LEAST_LINES or quoted < _LEAST_QUOTED * sum(bool(line.strip()) for line in lines):
        return text
    return _without(lines, marks)


def _unlabelled(text: str) -> str:
    """Without times and without a label, if (nearly) every line has it and it is the same: one writer's output."""
    for pattern in (_TIMES, _LABEL, _TIMES):
        if not _has_most(pattern, text[:4000].split("\n")):
            continue
        lines = text.split("\n")
        marks = [pattern.match(line) for line in lines]
        labels = {mark.group() for mark in marks if mark} if pattern is _LABEL else set()
        if len(labels) > 1 or not _has_most(pattern, lines):
            continue
        text = _without(lines, marks)
    return text


def _has_most(pattern: re.Pattern[str], lines: list[str]) -> bool:
    full = [line for line in lines if line.strip()]
    count = sum(pattern.match(line) is not None for line in full)
    return count >= max(_LEAST_LINES, _LEAST_LABELLED * len(full))


def _without(lines: list[str], marks: Sequence[re.Match[str] | None]) -> str:
    """The lines without their marks, and without one blank behind them where all have one."""
    rests = [line[mark.end() :] if mark else line for line, mark in zip(lines, marks, strict=True)]
    blank = all(not rest.strip() or rest[0] == " " for rest, mark in zip(rests, marks, strict=True) if mark)
    return "\n".join(rest[1:] if mark and blank else rest for rest, mark in zip(rests, marks, strict=True))
