"""Undoes what terminals, mails and web pages do to a tool's text on its way into a file."""

from __future__ import annotations

import html
import re

_ESCAPE = re.compile(
    r"(?:\x1b|\^\[|\\033|\\e|\\x1b)\[[0-9;?]*[A-Za-z]|\[[0-9;]{1,8}m|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]"
)
"""Terminal escapes; colour and underline codes also where a copy lost the ESC or spells it out."""

_TAG = re.compile(r"</?(?:p|br|pre|code|div|span|tt|td|tr|b|i|u|font|blockquote)\b[^<>]*>", re.IGNORECASE)
_QUOTE = re.compile(r"^\s*>[>\s]{0,8}(?=\s|GPU|NIC|Legend)")

_BLANK = re.compile(r"[\u00a0\u2000-\u200b\u202f\u3000]")


def plain_lines(text: str) -> list[str]:
    """The lines of a pasted text, one for one, without escapes, tags, quote marks, table bars and line ends.

    Tabs stay: they separate cells. Line numbers stay: `lines[i]` is line i + 1 of the text.
    """
    return [_plain(line) for line in text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")]


def markup_line(text: str) -> int | None:
    """Number of the first line with HTML tags or entities, counted from 1; None without such."""
    found = re.search(rf"{_TAG.pattern}|&(?:nbsp|lt|gt|amp|#\d+);", text, re.IGNORECASE)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def _plain(line: str) -> str:
    if not line:
        return line
    if "[" in line or "\x1b" in line:
        line = _ESCAPE.sub("", line)
    if "<" in line or "&" in line:
        line = _TAG.sub("", html.unescape(_TAG.sub("", line)))
    if ">" in line:
        line = _QUOTE.sub("", line)
    if line.count("|") >= 3:  # a table of a web page
        line = line.replace("|", "\t")
    return (line if line.isascii() else _BLANK.sub(" ", line)).rstrip(" |\t")
