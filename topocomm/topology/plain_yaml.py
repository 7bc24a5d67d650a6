"""The part of YAML that topology files are written in: nested mappings and lists, lists in brackets, plain words.

No anchors, tags, several documents, multi-line texts or mappings in braces: those are refused, never guessed at. Every
scalar is a text.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NoReturn

MAX_DEPTH = 50
MAX_LINES = 200_000
_KEY = re.compile(r"""("[^"]*"\s*|'[^']*'\s*|[^\s"'\[\]{}#&*!|>%@`,:][^:#]*+):(?:\s+(.*)|$)""")
_ODD = "&*!|>%@`{"


class PlainYamlError(ValueError):
    """The text is no such YAML; `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def loads(text: str) -> Any:
    """The document: mappings are dicts, lists are lists, everything else is text; None for an empty one.

    Raises:
        PlainYamlError: It is no YAML, or more of it than is read here.
    """
    lines: list[_Line] = []
    for number, raw in enumerate(text.splitlines(), 1):
        if number > MAX_LINES:
            raise PlainYamlError(number, f"more than {MAX_LINES} lines")
        line = _without_comment(raw).rstrip()
        if not line.strip() or (line.strip() == "---" and not lines):
            continue
        indent = len(line) - len(line.lstrip(" "))
        if line[indent] == "\t":
            raise PlainYamlError(number, "a tab in front; expected blanks")
        lines.append(_Line(number, indent, line[indent:]))
    if not lines:
        return None
    reader = _Reader(lines)
    found = reader.block(lines[0].indent, 0)
    if reader.at < len(lines):
        reader.fail("does not line up with what is above it")
    return found


def _without_comment(line: str) -> str:
    """The line up to a `#` at its start or after a blank, outside quotes."""
    if "#" not in line:
        return line
    quote = ""
    for i, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and (i == 0 or line[i - 1] in " [,"):
            quote = character
        elif character == "#" and (i == 0 or line[i - 1] in " \t"):
            return line[:i]
    return line


class _Reader:
    def __init__(self, lines: list[_Line]) -> None:
        self.lines = lines
        self.at = 0

    def fail(self, what: str) -> NoReturn:
        line = self.lines[min(self.at, len(self.lines) - 1)]
        shown = line.text if len(line.text) <= 40 else line.text[:37] + "..."
        raise PlainYamlError(line.number, f"{shown!r}: {what}")

    def block(self, indent: int, depth: int) -> Any:
        """What starts at the current line, which has this indent."""
        if depth > MAX_DEPTH:
            self.fail("nested too deep")
        return self._list(indent, depth) if self._is_item() else self._mapping(indent, depth)

    def _is_item(self) -> bool:
        text = self.lines[self.at].text
        return text == "-" or text.startswith("- ")

    def _here(self, indent: int) -> bool:
        return self.at < len(self.lines) and self.lines[self.at].indent == indent

    def _list(self, indent: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while self._here(indent) and self._is_item():
            line = self.lines[self.at]
            rest = line.text[1:].lstrip(" ")
            if not rest:
                self.at += 1
                found.append(self._below(indent, depth))
            elif rest == "-" or rest.startswith("- ") or _KEY.fullmatch(rest):
                inner = indent + len(line.text) - len(rest)
                self.lines[self.at] = _Line(line.number, inner, rest)
                found.append(self.block(inner, depth + 1))
            else:
                found.append(self._scalar(rest))
                self.at += 1
        return found

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._here(indent) and not self._is_item():
            match = _KEY.fullmatch(self.lines[self.at].text)
            if match is None:
                self.fail("expected `key: value` or `- item`")
            key = match[1].strip().strip("\"'")
            if key in found:
                self.fail(f"the key {key!r} is there twice")
            if match[2]:
                found[key] = self._scalar(match[2].strip())
                self.at += 1
            else:
                self.at += 1
                # Lists may stand as far left as their key.
                level = self.at < len(self.lines) and self._here(indent) and self._is_item()
                found[key] = self._list(indent, depth + 1) if level else self._below(indent, depth)
        return found

    def _below(self, indent: int, depth: int) -> Any:
        """The block that is further in, or None where there is none."""
        if self.at < len(self.lines) and self.lines[self.at].indent > indent:
            return self.block(self.lines[self.at].indent, depth + 1)
        return None

    def _scalar(self, text: str) -> Any:
        if text[0] == "[":
            if text[-1] != "]" or "[" in text[1:].replace("[]", ""):
                return self._bracketed(text)
            inside = text[1:-1].strip()
            return [self._word(word.strip()) for word in inside.split(",")] if inside else []
        return self._word(text)

    def _bracketed(self, text: str) -> list[Any]:
        """A list whose names have ranges, `[node[1-2], node4]`."""
        words, depth, start = [], 0, 1
        for i, character in enumerate(text):
            depth += (character == "[") - (character == "]")
            if depth < 0 or (depth == 0 and i < len(text) - 1):
                self.fail("brackets do not match")
            if (character == "," and depth == 1) or i == len(text) - 1:
                words.append(self._word(text[start:i].strip()))
                start = i + 1
        if depth:
            self.fail("a bracket is not closed; lists end on their line")
        return words

    def _word(self, text: str) -> str:
        if not text:
            self.fail("an empty word")
        if text[0] in "\"'":
            if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1]:
                self.fail("a quote is not closed")
            return text[1:-1]
        if text[0] in _ODD:
            self.fail("YAML that is not read here; expected plain words, lists and mappings")
        return text
