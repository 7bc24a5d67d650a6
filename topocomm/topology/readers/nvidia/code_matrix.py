"""The matrix of `nvidia-smi topo -m` as text: header, rows of codes, affinity columns, legends.

Every driver prints it a little differently, and most copies went through a terminal, a mail or a web page. Cells are
split by tabs where there are tabs, else by blanks (a code is never blank); affinity cells, which can be blank, by
their place under the header. A damaged cell is read from its mirror cell, with a warning; what would have to be
guessed is an error that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from topocomm.topology.inference.host_tree import PairKey, group_words
from topocomm.topology.readers.nvidia import matrix_header
from topocomm.topology.readers.nvidia.matrix_header import BY_TAB, CODE, CODES, CPU, GPU, NAME, SLACK, UNALIGNED
from topocomm.topology.readers.plain.paste import ELISIONS, LineReader

NOT_AVAILABLE = "N/A"

_LEGEND = re.compile(r"\s*(?:NIC\s+)?Legend\b", re.IGNORECASE)
_LEGEND_LINE = re.compile(r"\s*(X|NV#|PIX|PXB|PHB|NODE|SYS|SOC)\s*=")
_NIC_LINE = re.compile(r"\s*(NIC\d+)\s*[:=]\s*(\S+)")
_P2P_CELLS = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
_AFFINITY = re.compile(r"[\d,-]+|N/A")


class Row(NamedTuple):
    """One row: a code per column of the header, None where it was lost, and the affinity cells by column."""

    label: str
    line: int
    codes: tuple[str | None, ...]
    affinity: dict[str, str]


class MatrixParser(LineReader):
    """The matrix in the lines of a pasted text (`paste.plain_lines`).

    `codes` are as printed, by pair in column order; where it is `damaged`, affinity needs a closer check.

    Raises:
        TopologyError: It is cut short, damaged beyond repair, not symmetric, or another matrix.
    """

    remedy = "give the whole output of `nvidia-smi topo -m`"

    def __init__(self, lines: Sequence[str], file: str) -> None:
        super().__init__(lines, file)
        self.damaged = False
        self.wrapped: list[tuple[int, str]] = []
        header = matrix_header.find_header(lines)
        if header is None:
            first = matrix_header.first_row_of_a_gpu(lines) or 0
            self.refuse(first, "no header row that starts with GPU0 above the rows")
        if header.first_row == header.line:
            self.damage(header.line, "the header row is missing; columns are named after the rows")
        if elided := [name for name in header.names if name in ELISIONS]:
            self.refuse(header.line, f"columns were left out ({elided[0]!r})")
        self.header = header
        self.rows: dict[str, Row] = {}
        self._read_rows()
        self._check_missing()
        names = dict.fromkeys((*header.names, *self.rows))
        self.gpus = tuple(name for name in names if GPU.fullmatch(name))
        self.nics = tuple(name for name in names if name not in self.gpus)
        self.codes = self._codes((*self.gpus, *self.nics))
        self.legend, self.nic_names = self._legends()

    def damage(self, index: int, message: str) -> None:
        """Add a warning, after which affinity is checked more closely."""
        self.warn(index, message)
        self.damaged = True

    def _read_rows(self) -> None:
        rows, legend = self.rows, False
        for index in range(self.header.first_row, len(self.lines)):
            if not (line := self.lines[index]):
                continue
            legend = legend or _LEGEND.match(line) is not None
            if rows and "GPU" in line and matrix_header.header_at(self.lines, index) is not None:
                self.warn(index, "a second matrix starts here; only the first was read")
                break
            if not legend and (row := self._row(index)) is not None:
                if row.label in rows:
                    self.fail(index, f"row {row.label} is there twice, first on line {rows[row.label].line + 1}")
                rows[row.label] = row
        if self.wrapped:
            words = group_words([label for _, label in self.wrapped])
            self.damage(self.wrapped[0][0], f"{words}: rows go on below, cut by a narrow window; affinity is not used")
        self._check_last(list(rows.values()))
        if lost := [row for row in rows.values() if row.label not in self.header.names]:
            words = group_words([row.label for row in lost])
            self.damage(lost[0].line, f"no column for {words} in the header; pairs are read from the rows alone")

    def _row(self, index: int) -> Row | None:
        """Return the row on a line; None for another line, and for a NIC row that the end of the text cuts."""
        tokens = self.lines[index].split()
        if not tokens or not _is_label(tokens, self.header.names):
            return None
        label, names, count = tokens[0], self.header.names, len(self.header.names)
        if label not in names and GPU.fullmatch(label):
            self.refuse(index, f"row {label} has no column in the header of line {self.header.line + 1}")
        codes, rest, offset = self._cells(index)
        if len(codes) < count and index == self.last:
            ends = f"the text ends inside row {label} ({len(codes)} of {count} cells)"
            if GPU.fullmatch(label):
                self.refuse(index, ends)
            self.damage(index, f"{ends}; the row is passed over")
            return None
        affinity = {}
        if GPU.fullmatch(label):
            below = self.lines[index + 1].split() if index < self.last else []
            if any(c.isdigit() for c in "".join(below)) and all(map(_AFFINITY.fullmatch, below)):
                self.wrapped.append((index, label))  # a terminal cut the row in two, maybe in a cell
            else:
                affinity = matrix_header.split_affinity(self.header.affinity, rest, offset)
                if rest.split() and not affinity:
                    words = f"{rest.split()[0]!r} and what follows fit no column of the header"
                    self.damage(index, f"row {label}: {words}")
        if len(codes) > count:
            self.fail(index, f"row {label} has {len(codes)} cells, the header (line {self.header.line + 1}) {count}")
        if len(codes) < count:
            got = f"{len(codes)} of {count} cells"
            self.damage(index, f"row {label} has {got}; lost ones are read from their mirror cells")
            codes = matrix_header.whole_side(codes, count, names.index(label) if label in names else -1)
        elif None in codes:
            self.damage(index, f"row {label} has empty cells; they are read from their mirror cells")
        return Row(label, index, tuple(codes), affinity)

    def _check_last(self, rows: list[Row]) -> None:
        """Refuse a text that ends right after a GPU row with less affinity than all rows above: it was cut there."""
        if len(rows) < 2 or rows[-1].line != self.last or not GPU.fullmatch(rows[-1].label):
            return
        least, affinity = min(len(row.affinity) for row in rows[:-1]), rows[-1].affinity
        cpus = affinity.get(CPU, "")
        longer = [t for row in rows if (t := row.affinity.get(CPU, "")) != cpus and t.startswith(cpus)]
        got = ""
        if len(affinity) < least:
            got = f"{len(affinity)} affinity cells, the rows above have {least}"
        elif cpus and longer and self.lines[-1]:  # no line end either
            got = f"{cpus!r} of {longer[0]!r}"
        if got:
            self.refuse(self.last, f"the text ends inside row {rows[-1].label} ({got})")

    def _cells(self, index: int) -> tuple[list[str | None], str, int]:
        """Return the codes of a row's line, what follows them, and its offset as `split_affinity` takes it."""
        line, count = self.lines[index].lstrip(), len(self.header.names)
        cells = [cell.strip() for cell in line.split("\t")]
        crowded = f"more cells than the {count} columns of the header (line {self.header.line + 1})"
        codes: list[str | None] = []
        aligned = all(CODE.fullmatch(cell) for cell in line.split()[1 : count + 1])  # by several tabs, maybe
        known = (NOT_AVAILABLE,) if aligned else (NOT_AVAILABLE, "")
        if len(cells) > count and all(CODE.fullmatch(cell) or cell in known for cell in cells[1 : count + 1]):
            rest = "\t".join(line.split("\t")[count + 1 :])
            if matrix_header.are_codes(rest.split()[:1]):
                self.fail(index, crowded)
            return [cell or None for cell in cells[1 : count + 1]], rest, BY_TAB
        text = self.lines[index].expandtabs(8)
        tokens = list(re.finditer(r"\S+", text))
        for i, token in enumerate(tokens[1:], 1):
            if len(codes) >= count or not self._take(index, token.group(), codes, tokens[i + 1 :]):
                if CODES.fullmatch(token.group()) and len(codes) >= count:
                    self.fail(index, crowded)
                drift = tokens[min(count, i - 1)].start() - tokens[1].start() - self.header.width
                offset = token.start() - tokens[1].start() if abs(drift) <= SLACK else UNALIGNED
                return codes, text[token.start() :], offset
        return codes, "", 0

    def _take(self, index: int, token: str, codes: list[str | None], later: Sequence[re.Match[str]]) -> bool:
        """Add the codes of one token; False where the affinity columns begin."""
        if CODES.fullmatch(token):
            run = CODE.findall(token)
            if len(run) > 1:
                self.damage(index, f"cells run together: {token!r} is read as {' '.join(run)}")
            codes += run
        elif token == NOT_AVAILABLE and any(CODES.fullmatch(t.group()) for t in later):
            codes.append(token)
        elif token in ELISIONS:
            self.refuse(index, f"cells were left out ({token!r})")
        elif token in _P2P_CELLS:
            tool = "`nvidia-smi topo -p2p`, which says who reaches whom but not how"
            self.refuse(index, f"{token!r} is of {tool}")
        elif (index == self.last and not later) or (  # a code that the end of the text cuts short
            _AFFINITY.fullmatch(token) and not any(CODES.fullmatch(t[0]) for t in later)
        ):
            return False
        else:
            column = self.header.names[len(codes)]
            self.fail(index, f"column {column}: unknown code {token!r}; known are X NV# PIX PXB PHB NODE SYS SOC")
        return True

    def _check_missing(self) -> None:
        missing = [name for name in self.header.names if name not in self.rows]
        gpus = [name for name in missing if GPU.fullmatch(name)]
        where = max((row.line for row in self.rows.values()), default=self.header.line)
        below = f"below line {self.header.line + 1}, whose header names {len(self.header.names)} devices"
        if gpus:
            cut = where == self.last and missing == list(self.header.names[-len(missing) :])
            ends = "the text ends here: " if cut else ""
            self.refuse(where, f"{ends}no row for {group_words(gpus)} {below}")
        elif missing:
            self.warn(where, f"no row for {group_words(missing)} {below}; the text may be cut")

    def _codes(self, names: Sequence[str]) -> dict[PairKey, str]:
        rows = self.rows
        columns = {name: i for i, name in enumerate(self.header.names)}

        def cell(row: str, column: str) -> str | None:
            return rows[row].codes[columns[column]] if row in rows and column in columns else None

        for name, row in rows.items():
            own = cell(name, name)
            if own not in (None, "X"):
                self.fail(row.line, f"row {name} has {own!r} in its own column; expected X")
        codes = {}
        unknown: list[tuple[str, str, str | None]] = []
        for a, b in combinations(names, 2):
            code, mirror = cell(a, b), cell(b, a)
            if code and mirror and code != mirror:
                lines = f"{code!r} on line {rows[a].line + 1} but {mirror!r} on line {rows[b].line + 1}"
                self.fail(rows[b].line, f"not symmetric: {a}-{b} is {lines}")
            code = code or mirror
            if code == "X":
                self.fail((rows.get(a) or rows[b]).line, f"{a}-{b} is 'X', which only a device's own cell can be")
            if code is not None and code != NOT_AVAILABLE:
                codes[a, b] = code
            elif GPU.fullmatch(a) and (b in rows or code is not None):
                unknown.append((a, b, code))
        for a, b, code in unknown:  # the tool said N/A, or the cells were lost
            if code is None and GPU.fullmatch(b):
                lines = f"lines {rows[a].line + 1} and {rows[b].line + 1}"
                self.refuse(rows[b].line, f"the code of {a}-{b} is lost in both rows ({lines})")
        if unknown:
            words = group_words([f"{a}-{b}" for a, b, _ in unknown])
            self.warn(rows[unknown[0][0]].line, f"no code for {words}")
        return codes

    def _legends(self) -> tuple[frozenset[str], dict[str, str]]:
        """Return the codes that the legend explains, and the NIC legend; warn of a legend that stops short."""
        below = self.lines[self.header.line :]
        legend = frozenset(m.group(1) for line in below if (m := _LEGEND_LINE.match(line)))
        names = [m.groups() for line in below if (m := _NIC_LINE.match(line))]
        nic_names = {nic: name for nic, name in names if nic in self.nics}
        used = {"NV#" if code.startswith("NV") else code for code in self.codes.values()}
        if legend and used - legend:
            words = ", ".join(sorted(used - legend))
            self.warn(self.last, f"the legend does not explain {words}; the text may be cut")
        if unnamed := [nic for nic in self.nics if nic_names and nic not in nic_names]:
            self.warn(self.last, f"the NIC legend has no name for {group_words(unnamed)}")
        return legend, nic_names


def _is_label(tokens: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a line with these tokens is a row: it starts with a device, and cells follow or are cut off."""
    if tokens[1:2] in (["="], [":"]):
        return False
    if tokens[0] in names:
        return True
    torn = CODES.fullmatch(tokens[0]) or any(CODES.fullmatch(tokens[0].removeprefix(name)) for name in names)
    return not torn and NAME.fullmatch(tokens[0]) is not None and matrix_header.are_codes(tokens[1:3])
