"""Lines of an NCCL or RCCL log by writer, where several processes wrote into one file.

A line begins `host:pid:tid [cudaDev] NCCL INFO `, behind whatever a launcher or a timestamp puts before it. Writers
that share a file cut lines into each other: a prefix in the middle of a line ends what stands before it. NCCL cuts
its lines at 1023 characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from topocomm.topology.readers.plain.paste import plain_lines

Thread = tuple[str, str, str, str]
"""Host, process id, thread id and CUDA device, as printed; empty where a copy lost them."""

Warn = Callable[[str], None]
"""Takes a warning, `line 3: ...` where it is about a line."""

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


def matches(text: str) -> bool:
    """Return whether the text holds lines of NCCL's logger, or its system tree without them."""
    return ("NCCL" in text and _SHORT.search(text) is not None) or _BARE.search(text) is not None


def parts(text: str) -> list[Part]:
    """Return the parts of all lines, in order. A text without any prefix is taken as of one thread."""
    lines = [_AGAIN.sub("", line) if "repeated" in line else line for line in plain_lines(text)]
    marks_of = [list(_FULL.finditer(line)) if "NCCL" in line else [] for line in lines]
    if not any(marks_of):
        marks_of = [list(_SHORT.finditer(line)) if "NCCL" in line else [] for line in lines]
    host_of = _host_finder(marks_of)
    alone = None if any(marks_of) else ("", "", "", "")
    whole = text.endswith(("\n", "\r"))
    result: list[Part] = []
    loose = 0
    for index, (line, marks) in enumerate(zip(lines, marks_of, strict=True)):
        last = index == len(lines) - 1 and not whole
        loose = 0 if marks else loose + 1
        if not marks and "->" in line and result:
            before = result[-1].text
            if len(before) < _LONGEST_TREES and before.lstrip().startswith("Trees [") and _TREES_GO_ON.fullmatch(line):
                result[-1] = result[-1]._replace(text=f"{before.rstrip()} {line.strip()}")
                continue
        if not marks:
            if alone is not None or " version" in line or (loose <= _MOST_LOOSE and _NUMBERS.fullmatch(line)):
                result.append(Part(alone, line, last, index + 1))
            continue
        hosts = [host_of(*_process(mark), mark is marks[0]) for mark in marks]
        starts = [
            mark.start() + max(0, len(_process(mark)[0]) - len(host)) for mark, host in zip(marks, hosts, strict=True)
        ]
        if " version" in line[: starts[0]]:
            result.append(Part(None, line[: starts[0]], True, index + 1))
        for mark, host, start, end in zip(marks, hosts, starts, [*starts[1:], len(line)], strict=True):
            groups = mark.groupdict(default="")
            thread = host, groups.get("pid", ""), groups.get("tid", ""), groups["dev"]
            cut = mark is not marks[-1] or last or end - start >= _CUT_AT
            result.append(Part(thread, line[mark.end() : end], cut, index + 1))
    return result


def _host_finder(marks_of: list[list[re.Match[str]]]) -> Callable[[str, str, bool], str]:
    """Return a function that tells host names from host names that another line's end is glued to (`nNodesnode0`).

    Its arguments are the printed name, the process, and whether the prefix is the first on its line. The name is then
    as printed, unless this process is mostly known by an end of it, or by a name whose beginning is lost here. Within a
    line it is the longest end that is a name where lines begin.
    """
    known = Counter(_process(marks[0]) for marks in marks_of if marks)
    names = Counter(host for host, _ in known.elements())
    longer: dict[tuple[str, str], str] = {}
    for host, pid in known:
        for i in range(1, len(host)):
            other = longer.setdefault((host[i:], pid), host)
            if known[host, pid] > known[other, pid]:
                longer[host[i:], pid] = host

    @cache
    def host_of(printed: str, pid: str, first: bool) -> str:
        ends = [printed[i:] for i in range(len(printed))]
        if not first:
            return next((end for end in ends if end in names), printed)
        if (printed, pid) in longer:
            ends.append(longer[printed, pid])
        counts = {end: known[end, pid] for end in ends}
        return max(ends, key=lambda end: (counts[end], counts[end] and names[end]), default=printed)

    return host_of


def _process(mark: re.Match[str]) -> tuple[str, str]:
    groups = mark.groupdict(default="")
    return groups.get("host", ""), groups.get("pid", "")
