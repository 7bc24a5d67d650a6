"""Lines of an NCCL or RCCL log by writer, where several processes wrote into one file.

A line begins `host:pid:tid [cudaDev] NCCL INFO `, behind whatever a launcher or a timestamp puts before it. Writers
that share a file cut lines into each other: a prefix in the middle of a line ends what stands before it. NCCL cuts
its lines at 1023 characters.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from topocomm.topology.readers.plain.paste import plain_lines

Thread = tuple[str, str, str, str]
"""Host, process id, thread id and CUDA device, as printed; empty where a copy lost them."""

_WHERE = r"(?<![\w.-])(?P<host>[\w.-]{1,64}):(?P<pid>\d{1,10}):(?P<tid>\d{1,20}) \[(?P<dev>-?\d{1,4})\] "
_LEVEL = r"NCCL (?:INFO|WARN|TRACE|CALL|ABORT|VERSION)(?: |$)"
_FULL = re.compile(rf"{_WHERE}(?:[^\[\]]{{0,120}}? )?{_LEVEL}")
_SHORT = re.compile(rf"(?:\[(?P<dev>-?\d{{1,4}})\] )?(?<!\w){_LEVEL}")
_BARE = re.compile(r"=== System : max(?:Bw|Width) ")
_AGAIN = re.compile(r" \[repeated \d{1,9}x across .*")
"""Ray's note on lines that it left out, because they differ in numbers alone."""
_NUMBERS = re.compile(r" *\d[ \d]*")
_TREES_GO_ON = re.compile(r"\s*(?:\[\d{1,4}\] )?[-\d/>]{1,60}(?: \[\d{1,4}\] [-\d/>|]{1,120})*\s*")
_LONGEST_TREES = 8192
"""Characters; NCCL itself cuts at 1023."""
_MOST_LOOSE = 40
"""Lines into which a terminal may have wrapped a list of ranks. Of lines without prefix these and those with the
library's version are of use."""

_CUT_AT = 1015
"""Lines of this length and more may have been cut: 1023 characters less the line end and what a host name varies."""


class Part(NamedTuple):
    """Text of one thread on one line."""

    thread: Thread | None
    """None: no prefix on this line, so its writer is unknown."""
    text: str
    cut: bool
    """True if the end may be missing."""
    line: int
    """Counted from 1."""


def is_log(text: str) -> bool:
    """Return whether the text holds a line of the logger, or the title of its system tree."""
    return ("NCCL" in text and _SHORT.search(text) is not None) or _BARE.search(text) is not None


def parts(text: str) -> list[Part]:
    """Return the parts of all lines, in order. A text without any prefix is taken as of one thread."""
    lines = [_AGAIN.sub("", line) if "repeated" in line else line for line in plain_lines(text)]
    marks_of = [list(_FULL.finditer(line)) if "NCCL" in line else [] for line in lines]
    if not any(marks_of):
        marks_of = [list(_SHORT.finditer(line)) if "NCCL" in line else [] for line in lines]
    hosts = _Hosts(marks_of)
    alone = None if any(marks_of) else ("", "", "", "")
    whole = text.endswith(("\n", "\r"))
    result: list[Part] = []
    loose = 0
    for index, (line, marks) in enumerate(zip(lines, marks_of, strict=True)):
        last = index == len(lines) - 1 and not whole
        loose = 0 if marks else loose + 1
        if not marks and "->" in line and result and _is_wrapped_tree(result[-1], line):
            result[-1] = result[-1]._replace(text=f"{result[-1].text.rstrip()} {line.strip()}")
            continue
        if not marks:
            if alone is not None or " version" in line or (loose <= _MOST_LOOSE and _NUMBERS.fullmatch(line)):
                result.append(Part(alone, line, last, index + 1))
            continue
        starts = [hosts.start(mark, mark is marks[0]) for mark in marks]
        if " version" in line[: starts[0]]:
            result.append(Part(None, line[: starts[0]], True, index + 1))
        for i, mark in enumerate(marks):
            end = starts[i + 1] if i + 1 < len(marks) else len(line)
            cut = i + 1 < len(marks) or last or end - starts[i] >= _CUT_AT
            result.append(Part(hosts.thread(mark, i == 0), line[mark.end() : end], cut, index + 1))
    return result


def _is_wrapped_tree(before: Part, line: str) -> bool:
    is_tree = len(before.text) < _LONGEST_TREES and before.text.lstrip().startswith("Trees [")
    return is_tree and _TREES_GO_ON.fullmatch(line) is not None


class _Hosts:
    """Tells host names from host names that another line's end is glued to (`nNodesnode0`)."""

    def __init__(self, found: list[list[re.Match[str]]]) -> None:
        self.known = Counter(_process(marks[0]) for marks in found if marks)
        self.names = Counter(host for host, _ in self.known.elements())
        self.longer: dict[tuple[str, str], str] = {}
        for host, pid in self.known:
            for i in range(1, len(host)):
                other = self.longer.setdefault((host[i:], pid), host)
                if self.known[host, pid] > self.known[other, pid]:
                    self.longer[host[i:], pid] = host
        self.settled: dict[tuple[str, str, bool], str] = {}

    def host(self, mark: re.Match[str], first: bool) -> str:
        """Return the host of a prefix.

        Of the first prefix on a line that is as printed, unless this process is mostly known by an end of it, or by a
        name whose beginning is lost here. Within a line it is the longest end that is a name where lines begin.
        """
        key = (*_process(mark), first)
        if key not in self.settled:
            printed, pid = _process(mark)
            ends = [printed[i:] for i in range(len(printed))]
            if first:
                ends += [self.longer[printed, pid]] if (printed, pid) in self.longer else []
                counts = {end: self.known[end, pid] for end in ends}
                best = max(ends, key=lambda end: (counts[end], counts[end] and self.names[end]), default=printed)
            else:
                best = next((end for end in ends if end in self.names), printed)
            self.settled[key] = best
        return self.settled[key]

    def start(self, mark: re.Match[str], first: bool) -> int:
        """Return the start of the prefix, behind a glued end."""
        return mark.start() + max(0, len(_process(mark)[0]) - len(self.host(mark, first)))

    def thread(self, mark: re.Match[str], first: bool) -> Thread:
        """Return the writer of the text behind the prefix."""
        groups = mark.groupdict(default="")
        return self.host(mark, first), groups.get("pid", ""), groups.get("tid", ""), groups["dev"]


def _process(mark: re.Match[str]) -> tuple[str, str]:
    groups = mark.groupdict(default="")
    return groups.get("host", ""), groups.get("pid", "")
