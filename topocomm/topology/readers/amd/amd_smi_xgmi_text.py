"""The tables of `amd-smi xgmi` as text.

A cell of traffic is a number and a unit with a blank between, and a wide number runs into the next cell
(`65535 Gb/s4294967295 Gb/sN/A`): rows are read by what a cell looks like, not by blanks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.readers.amd.amd_smi import BUS_ID
from topocomm.topology.readers.amd.amd_tables import MAX_GPUS, fail
from topocomm.topology.readers.amd.xgmi_listing import Listing, Metrics, figure
from topocomm.topology.readers.plain.paste import plain_lines

_TITLES = {
    "LINK METRIC TABLE": "metrics",
    "GPU LINK PORT STATUS": "ports",
    "XGMI LINK STATUS": "status",
    "LEGEND": "legend",
}
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,6})?"
_GPU = re.compile(r"GPU[0-9]{1,4}")
_HEADER = re.compile(r"\s*bdf\s+(?:bit_rate\s+max_bandwidth\s+link_type|port_num)?(.*)")
_ROW = re.compile(rf"\s*(GPU[0-9]{{1,4}})\s+({BUS_ID.pattern})(.*)")
_RATES = re.compile(rf"\s*({_NUMBER}|N/A)(?:\s*Gb/s)?\s*({_NUMBER}|N/A)(?:\s*Gb/s)?\s*(XGMI|PCIE|UNKNOWN|N/A)\s*")
_TRAFFIC = re.compile(r"\s*(Read|Write)(.*)")
_AMOUNT = re.compile(rf"\s*((?:{_NUMBER}|N/A)\s*[KMGTPE]?B|N/A)")
_STATUS = re.compile(r"[UDX](?:/[UDX]){0,15}|N/A|SELF")
_PORT = re.compile(r"[UDX]|N/A")
_REMEDY = "give the whole output of `amd-smi xgmi`"


def is_text(text: str) -> bool:
    """True if the text has the title of one of the tables."""
    return any(title in text for title, section in _TITLES.items() if section != "legend")


def parse_text(text: str, file: str) -> Listing:
    """The tables in a text.

    Raises:
        TopologyError: A table is cut short, has lost cells, or names other GPUs than the first; names the line.
    """
    return _Parser(plain_lines(text), file).parse()


def _section(line: str) -> str | None:
    return _TITLES.get(line.strip().rstrip(":").strip().upper())


class _Parser:
    def __init__(self, lines: Sequence[str], file: str) -> None:
        self.lines, self.file = lines, file
        self.listing = Listing((), {}, {}, {}, {}, {}, [])
        self.section: str | None = None
        self.axis: list[str] = []
        self.axes: list[list[str]] = []
        self.rows: dict[str, dict[str, str]] = {}
        """Bus ids by GPU, for each table that was read."""
        self.writes: list[str] = []

    def parse(self) -> Listing:
        for index, line in enumerate(self.lines):
            section = _section(line)
            if section in self.rows:
                where = f"{PurePath(self.file).name}:{index + 1}"
                self.listing.warnings.append(f"{where}: a second listing starts here; it was not read")
                break
            if section == "legend":
                self.listing.facts["legend"] = True
            elif section is not None:
                self.rows[section] = {}
            if section is not None:
                self.section, self.axis = section, []
            elif self.section not in (None, "legend") and line.strip():
                self._take(f"{self.file}:{index + 1}", line)
        return self._checked()

    def _take(self, place: str, line: str) -> None:
        rows = self.rows[self.section or ""]
        header, row, traffic = _HEADER.fullmatch(line), _ROW.fullmatch(line), _TRAFFIC.fullmatch(line)
        if header is not None and not self.axis and not rows:
            self.axis = header.group(1).split()
            self.axes += [self.axis] if self.axis else []
            for label in self.axis:
                if not (_GPU.fullmatch(label) or BUS_ID.fullmatch(label)):
                    fail(place, f"column {label[:20]!r} is neither a GPU nor a bus id; {_REMEDY}")
        elif row is not None:
            gpu, bus_id, rest = row.groups()
            if gpu in rows:
                fail(place, f"{gpu} is there twice; {_REMEDY}")
            if len(rows) == MAX_GPUS:
                fail(place, f"more than {MAX_GPUS} GPUs; a host has fewer")
            rows[gpu] = bus_id
            self._row(place, gpu, rest)
        elif traffic is not None and self.section == "metrics":
            self._traffic(place, traffic.group(1), traffic.group(2))
        elif line.strip(" .…[]") == "" or "truncated" in line:
            self.listing.warnings.append(f"{PurePath(self.file).name}:{place.rsplit(':', 1)[1]}: lines were left out")

    def _row(self, place: str, gpu: str, rest: str) -> None:
        if self.section == "metrics":
            rates = _RATES.fullmatch(rest)
            if rates is None:
                expected = "bit_rate, max_bandwidth and link_type (`32 Gb/s 512 Gb/s XGMI`)"
                fail(place, f"{gpu}: {rest.strip()[:60]!r} where {expected} was expected; {_REMEDY}")
            bit_rate, most, link_type = rates.groups()
            known = [None if text == "N/A" else figure(float(text)) for text in (bit_rate, most)]
            if None in known and "N/A" not in (bit_rate, most):
                where = f"{PurePath(self.file).name}:{place.rsplit(':', 1)[1]}"
                self.listing.warnings.append(f"{where}: {gpu}: all bits set ({bit_rate} Gb/s): the rate is unknown")
            self.listing.metrics[gpu] = Metrics(known[0], known[1], link_type, ())
            return
        cells = rest.split()
        wrong = [c for c in cells if not (_PORT if self.section == "ports" else _STATUS).fullmatch(c)]
        if wrong:
            fail(place, f"{gpu}: unknown state {wrong[0][:20]!r}; expected U, D, X, N/A; {_REMEDY}")
        if self.section == "ports":
            self.listing.ports[gpu] = cells
        elif len(cells) != len(self.axis):
            fail(place, f"row {gpu} has {len(cells)} cells, the header {len(self.axis)} columns; {_REMEDY}")
        else:
            states = zip(self.axis, cells, strict=True)
            self.listing.status.update({(gpu, end): state for end, state in states if state != "SELF"})

    def _traffic(self, place: str, word: str, rest: str) -> None:
        if not self.listing.metrics:
            fail(place, f"a {word} row without a GPU above; {_REMEDY}")
        gpu = next(reversed(self.listing.metrics))
        cells: list[str] = []
        at = 0
        while (cell := _AMOUNT.match(rest, at)) is not None:
            cells.append(" ".join(cell.group(1).split()))
            at = cell.end()
        if rest[at:].strip():
            fail(place, f"{gpu}: {word}: {rest[at:].strip()[:20]!r} is no amount such as `2 KB`; {_REMEDY}")
        if len(cells) != len(self.axis):
            fail(place, f"{gpu}: {word} has {len(cells)} cells, the header {len(self.axis)} columns; {_REMEDY}")
        if gpu in self.writes or (word == "Read" and self.listing.metrics[gpu].read):
            fail(place, f"{gpu}: another {word} row, or one below its Write row; {_REMEDY}")
        if word == "Read":
            self.listing.metrics[gpu] = self.listing.metrics[gpu]._replace(read=tuple(cells))
        else:
            self.writes.append(gpu)

    def _checked(self) -> Listing:
        """The listing with its GPUs, if every table is whole and names the same ones."""
        end = f"{self.file}:{len(self.lines)}"
        tables = [rows for name, rows in self.rows.items() if rows]
        if not tables:
            fail(f"{self.file}:1", f"no row of a GPU; {_REMEDY}")
        bus_ids = tables[0]
        for rows in tables[1:]:
            if rows != bus_ids:
                fail(end, f"the tables name different GPUs ({group_words(list(rows))}); {_REMEDY}")
        whole = [gpu for gpu, row in self.listing.metrics.items() if row.read]
        if whole and (len(whole) < len(bus_ids) or len(self.writes) < len(whole)):
            fail(end, f"{list(bus_ids)[-1]} or another GPU has no Read and Write row: the text is cut; {_REMEDY}")
        return self._named(bus_ids, end)

    def _named(self, bus_ids: dict[str, str], end: str) -> Listing:
        gpus = tuple(bus_ids)
        for axis in self.axes:
            if axis not in (list(gpus), list(bus_ids.values())):
                fail(end, f"{len(gpus)} GPUs have rows, {len(axis)} columns: a row is missing or misplaced; {_REMEDY}")
        return self.listing._replace(gpus=gpus, bus_ids=dict(bus_ids))
