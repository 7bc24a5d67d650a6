"""`nvidia-smi topo -p2p r|w|n|a|p`: which GPUs may read, write, ... each other's memory; text in, Topology out.

The matrix looks like that of `topo -m`, but its cells say whether peers reach each other, not over what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import PurePath
from typing import NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.plain.log_prefix import MATRIX_ROW, without_prefix
from topocomm.topology.readers.plain.paste import plain_lines

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
_ELISIONS = {"..", "...", "....", "…", "[...]", "⋮"}
_WHOLE = f"give the whole output of `{SOURCE} r`"


def matches(text: str) -> bool:
    """True if the first matrix of GPU names in the text has states of peers for cells, be it damaged."""
    return "GPU" in text and _find_header(_lines(text)) is not None


def read(text: str, name: str) -> Topology:
    """The GPUs of a matrix and what they may do to each other; over what, the tool does not say: no links, no pairs.

    Facts: `p2p` has the state of every pair as printed (`GPU0-GPU1`; where the two directions differ, also
    `GPU1-GPU0`). `capability` is the letter of the command (r read, w write, n NVLink, a atomics, p PCIe) if the text
    shows the command, `legend` whether a legend follows.

    Args:
        text: What the tool printed, or a copy of it.
        name: Its file name, for messages; its stem names the topology.

    Raises:
        TopologyError: The text is cut short or damaged beyond repair; names file and line.
    """
    parser = _Parser(_lines(text), name)
    gpus, p2p = parser.parse()
    capability = parser.capability()
    return Topology(
        name=PurePath(name).stem,
        source=SOURCE if capability is None else f"{SOURCE} {capability}",
        devices=tuple(Device(gpu, "gpu") for gpu in gpus),
        links=(),
        warnings=tuple(parser.warnings),
        facts={
            **({"capability": capability} if capability is not None else {}),
            "p2p": p2p,
            "legend": parser.legend,
        },
    )


def _lines(text: str) -> list[str]:
    return without_prefix(plain_lines(text), MATRIX_ROW)


Cells = list[str | None]


class _Parser:
    def __init__(self, lines: Sequence[str], file: str) -> None:
        self.lines, self.file = lines, file
        self.warnings: list[str] = []
        self.last = max((i for i, line in enumerate(lines) if line.strip()), default=0)
        self.legend = False

    def fail(self, index: int, message: str) -> NoReturn:
        raise TopologyError(f"{self.file}:{index + 1}: {message}")

    def warn(self, index: int, message: str) -> None:
        self.warnings.append(f"{PurePath(self.file).name}:{index + 1}: {message}")

    def parse(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """The GPUs in column order, and states by pair."""
        header = _find_header(self.lines)
        if header is None:
            self.fail(0, f"no header row of GPU names with rows of states ({' '.join(STATES)}) below; {_WHOLE}")
        self.header, self.gpus = header
        if len(self.gpus) > MAX_GPUS:
            self.fail(self.header, f"{len(self.gpus)} GPUs; a host has at most {MAX_GPUS}")
        self.where: dict[str, int] = {}
        rows: dict[str, Cells] = {}
        for index, tokens in _filled(self.lines, self.header + 1):
            self.legend = self.legend or _LEGEND.match(self.lines[index]) is not None
            if tokens[0] in _ELISIONS and len(rows) < len(self.gpus) and not self.legend:
                self.fail(index, f"rows were left out ({tokens[0]!r}); {_WHOLE}")
            if len(rows) == len(self.gpus) and all(_GPU.fullmatch(token) for token in tokens[:2]) and len(tokens) > 1:
                self.warn(index, "a second matrix starts here; only the first was read")
                break
            if _GPU.fullmatch(tokens[0]) and not self.legend:
                self._row(index, tokens, rows)
        missing = [gpu for gpu in self.gpus if gpu not in rows]
        if missing:
            where = max(self.where.values(), default=self.header)
            words = f"no row for {group_words(missing)}, which the header on line {self.header + 1} names"
            self.fail(where, f"{words}; {_WHOLE}")
        return self.gpus, self._states(rows)

    def _row(self, index: int, tokens: list[str], rows: dict[str, Cells]) -> None:
        label = tokens[0]
        if label not in self.gpus:
            self.fail(index, f"row {label} has no column in the header of line {self.header + 1}; {_WHOLE}")
        if label in rows:
            self.fail(index, f"row {label} is there twice, first on line {self.where[label] + 1}; {_WHOLE}")
        cells: list[str] = []
        for token in tokens[1:]:
            if not _RUN.fullmatch(token):
                self._refuse(index, label, len(cells), token)
            found = _CELL.findall(token)
            if len(found) > 1:
                self.warn(index, f"cells run together: {token!r} is read as {' '.join(found)}")
            cells += found
        self.where[label] = index
        rows[label] = self._aligned(index, label, cells)

    def _refuse(self, index: int, label: str, column: int, token: str) -> NoReturn:
        if token in _ELISIONS:
            self.fail(index, f"cells were left out ({token!r}); {_WHOLE}")
        if index == self.last:
            self.fail(index, f"the text ends inside row {label} ({token[:20]!r}); {_WHOLE}")
        where = f"row {label}, column {self.gpus[column] if column < len(self.gpus) else column + 1}"
        if _PATH_CODE.fullmatch(token):
            self.fail(index, f"{where}: {token[:20]!r} is a code of `nvidia-smi topo -m`; give one matrix per file")
        self.fail(index, f"{where}: unknown state {token[:20]!r}; known are X {' '.join(STATES)}")

    def _aligned(self, index: int, label: str, cells: list[str]) -> Cells:
        """The states by column. Of a row that lost cells, the side of its X that is whole; None elsewhere."""
        count, here = len(self.gpus), self.gpus.index(label)
        if len(cells) > count:
            self.fail(index, f"row {label} has {len(cells)} cells, the header (line {self.header + 1}) {count}")
        if len(cells) == count:
            if cells[here] != "X" or cells.count("X") > 1:
                self.fail(index, f"row {label} has {cells[here]!r} in its own column; expected X there and only there")
            return list(cells)
        if index == self.last:
            self.fail(index, f"the text ends inside row {label} ({len(cells)} of {count} cells); {_WHOLE}")
        self.warn(index, f"row {label} has {len(cells)} of {count} cells; lost ones are read from their mirror cells")
        found: Cells = [None] * count
        if cells.count("X") == 1:
            self_at = cells.index("X")
            if self_at == here:
                found[: here + 1] = cells[: here + 1]
            if len(cells) - self_at == count - here:
                found[here:] = cells[self_at:]
        return found

    def _states(self, rows: dict[str, Cells]) -> dict[str, str]:
        states: dict[str, str] = {}
        uneven = []
        for (i, a), (j, b) in combinations(enumerate(self.gpus), 2):
            there, back = rows[a][j], rows[b][i]
            state = there or back
            if state is None:
                lines = f"lines {self.where[a] + 1} and {self.where[b] + 1}"
                self.fail(self.where[b], f"the state of {a}-{b} is lost in both rows ({lines}); {_WHOLE}")
            states[f"{a}-{b}"] = state
            if back is not None and back != state:
                states[f"{b}-{a}"] = back
                uneven.append(f"{a}-{b} is {state}, {b}-{a} {back}")
        if uneven:
            self.warn(self.header, f"the two directions of a pair differ: {group_words(uneven)}")
        return states

    def capability(self) -> str | None:
        """The letter of the last command above the matrix."""
        for line in reversed(self.lines[: self.header]):
            if (found := _COMMAND.search(line)) is not None:
                return found[1]
        return None


def _find_header(lines: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
    """Line and names of the first header with rows of states below; None where the matrix of another tool is first."""
    filled = list(_filled(lines, 0))
    for place, (index, tokens) in enumerate(filled):
        if not _GPU.fullmatch(tokens[0]):
            continue
        rows = [row for _, row in filled[place + 1 : place + 4] if _GPU.fullmatch(row[0]) and len(row) > 1]
        below = [cell for row in rows if not _GPU.fullmatch(row[1]) for cell in row[1:] if cell.strip("X")]
        states = sum(_RUN.fullmatch(cell) is not None for cell in below)
        paths = sum(_PATH_CODE.fullmatch(cell) is not None for cell in below)
        if paths > states:
            return None
        if states * 2 > len(below) and _are_gpus(tokens):
            return index, tuple(tokens)
    return None


def _are_gpus(tokens: Sequence[str]) -> bool:
    return len(set(tokens)) == len(tokens) and all(_GPU.fullmatch(token) for token in tokens)


def _filled(lines: Sequence[str], start: int) -> Iterator[tuple[int, list[str]]]:
    for index in range(start, len(lines)):
        tokens = lines[index].split()
        if tokens:
            yield index, tokens
