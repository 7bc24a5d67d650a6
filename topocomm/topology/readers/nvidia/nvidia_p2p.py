"""`nvidia-smi topo -p2p r|w|n|a|p`: which GPUs may read, write, ... each other's memory.

The matrix looks like that of `topo -m`, but its cells say whether peers reach each other, not over what: there are no
links and no pairs. Facts: `p2p` has the state of every pair as printed (`GPU0-GPU1`; where the two directions differ,
also `GPU1-GPU0`). `capability` is the letter of the command (r read, w write, n NVLink, a atomics, p PCIe) if the text
shows the command, `legend` whether a legend follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import PurePath
from typing import NoReturn

from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.nvidia.matrix_header import whole_side
from topocomm.topology.readers.plain.paste import (
    ELISIONS,
    MATRIX_ROW,
    LineReader,
    filled_lines,
    plain_lines,
)

SOURCE = "nvidia-smi topo -p2p"
MAX_GPUS = 1024

STATES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""The tool's states: fine; not supported by chipset, GPU, topology, or for another reason; disabled; unknown."""

_CELL = re.compile("X|" + "|".join(STATES))
_RUN = re.compile(rf"(?:{_CELL.pattern})+")
_GPU = re.compile(r"GPU\d{1,5}")
_PATH_CODE = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")
_COMMAND = re.compile(r"\btopo\s+-{1,2}p2p[ _=]*([rwnap])\b")
_LEGEND = re.compile(r"\s*(?:Legend\b|OK\s*=)", re.IGNORECASE)


def matches(text: str) -> bool:
    """Return whether the first matrix of GPU names in the text has states of peers for cells, be it damaged."""
    return "GPU" in text and _find_header(plain_lines(text, MATRIX_ROW)) is not None


def read(text: str, name: str) -> Topology:
    """Return the GPUs of a matrix, and in `facts` what they may do to each other."""
    parser = _Parser(plain_lines(text, MATRIX_ROW), name)
    above = reversed(parser.lines[: parser.header])
    capability = next((command[1] for line in above if (command := _COMMAND.search(line)) is not None), None)
    return Topology(
        name=PurePath(name).stem,
        source=SOURCE if capability is None else f"{SOURCE} {capability}",
        devices=tuple(Device(gpu, "gpu") for gpu in parser.gpus),
        links=(),
        warnings=tuple(parser.warnings),
        facts={
            **({"capability": capability} if capability is not None else {}),
            "p2p": parser.states,
            "legend": parser.legend,
        },
    )


Cells = list[str | None]


class _Parser(LineReader):
    remedy = f"give the whole output of `{SOURCE} r`"

    def __init__(self, lines: Sequence[str], file: str) -> None:
        super().__init__(lines, file)
        self.legend = False
        self.line_of: dict[str, int] = {}
        header = _find_header(lines)
        if header is None:
            self.refuse(0, f"no header row of GPU names with rows of states ({' '.join(STATES)}) below")
        self.header, self.gpus = header
        if len(self.gpus) > MAX_GPUS:
            self.fail(self.header, f"{len(self.gpus)} GPUs; a host has at most {MAX_GPUS}")
        rows: dict[str, Cells] = {}
        for index, tokens in filled_lines(self.lines, self.header + 1):
            self.legend = self.legend or _LEGEND.match(self.lines[index]) is not None
            if tokens[0] in ELISIONS and len(rows) < len(self.gpus) and not self.legend:
                self.refuse(index, f"rows were left out ({tokens[0]!r})")
            if len(rows) == len(self.gpus) and all(_GPU.fullmatch(token) for token in tokens[:2]) and len(tokens) > 1:
                self.warn(index, "a second matrix starts here; only the first was read")
                break
            if _GPU.fullmatch(tokens[0]) and not self.legend:
                self._row(index, tokens, rows)
        if missing := [gpu for gpu in self.gpus if gpu not in rows]:
            last_row = max(self.line_of.values(), default=self.header)
            names = f"{group_words(missing)}, which the header on line {self.header + 1} names"
            self.refuse(last_row, f"no row for {names}")
        self.states = self._states(rows)

    def _row(self, index: int, tokens: list[str], rows: dict[str, Cells]) -> None:
        label = tokens[0]
        if label not in self.gpus:
            self.refuse(index, f"row {label} has no column in the header of line {self.header + 1}")
        if label in rows:
            self.refuse(index, f"row {label} is there twice, first on line {self.line_of[label] + 1}")
        cells: list[str] = []
        for token in tokens[1:]:
            if not _RUN.fullmatch(token):
                self._refuse(index, label, len(cells), token)
            run = _CELL.findall(token)
            if len(run) > 1:
                self.warn(index, f"cells run together: {token!r} is read as {' '.join(run)}")
            cells += run
        self.line_of[label] = index
        count, own = len(self.gpus), self.gpus.index(label)
        if len(cells) > count:
            self.fail(index, f"row {label} has {len(cells)} cells, the header (line {self.header + 1}) {count}")
        if len(cells) < count:
            if index == self.last:
                self.refuse(index, f"the text ends inside row {label} ({len(cells)} of {count} cells)")
            got = f"{len(cells)} of {count} cells"
            self.warn(index, f"row {label} has {got}; lost ones are read from their mirror cells")
        elif cells[own] != "X" or cells.count("X") > 1:
            self.fail(index, f"row {label} has {cells[own]!r} in its own column; expected X there and only there")
        rows[label] = list(cells) if len(cells) == count else whole_side(cells, count, own)

    def _refuse(self, index: int, label: str, column: int, token: str) -> NoReturn:
        if token in ELISIONS:
            self.refuse(index, f"cells were left out ({token!r})")
        if index == self.last:
            self.refuse(index, f"the text ends inside row {label} ({token[:20]!r})")
        place = f"row {label}, column {self.gpus[column] if column < len(self.gpus) else column + 1}"
        if _PATH_CODE.fullmatch(token):
            self.fail(index, f"{place}: {token[:20]!r} is a code of `nvidia-smi topo -m`; give one matrix per file")
        self.fail(index, f"{place}: unknown state {token[:20]!r}; known are X {' '.join(STATES)}")

    def _states(self, rows: dict[str, Cells]) -> dict[str, str]:
        states: dict[str, str] = {}
        uneven = []
        for (i, a), (j, b) in combinations(enumerate(self.gpus), 2):
            forward, back = rows[a][j], rows[b][i]
            state = forward or back
            if state is None:
                lines = f"lines {self.line_of[a] + 1} and {self.line_of[b] + 1}"
                self.refuse(self.line_of[b], f"the state of {a}-{b} is lost in both rows ({lines})")
            states[f"{a}-{b}"] = state
            if back is not None and back != state:
                states[f"{b}-{a}"] = back
                uneven.append(f"{a}-{b} is {state}, {b}-{a} {back}")
        if uneven:
            self.warn(self.header, f"the two directions of a pair differ: {group_words(uneven)}")
        return states


def _find_header(lines: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
    """Return line and names of the first header with states below; None where another tool's matrix is first."""
    filled = list(filled_lines(lines))
    for place, (index, tokens) in enumerate(filled):
        if not _GPU.fullmatch(tokens[0]):
            continue
        rows = [row for _, row in filled[place + 1 : place + 4] if _GPU.fullmatch(row[0]) and len(row) > 1]
        below = [cell for row in rows if not _GPU.fullmatch(row[1]) for cell in row[1:] if cell.strip("X")]
        states = sum(_RUN.fullmatch(cell) is not None for cell in below)
        paths = sum(_PATH_CODE.fullmatch(cell) is not None for cell in below)
        if paths > states:
            return None
        are_gpus = len(set(tokens)) == len(tokens) and all(_GPU.fullmatch(token) for token in tokens)
        if states * 2 > len(below) and are_gpus:
            return index, tuple(tokens)
    return None
