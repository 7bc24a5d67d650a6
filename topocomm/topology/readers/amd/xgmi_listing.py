"""The tables of `amd-smi xgmi`, as text and as JSON.

In the text a cell of traffic is a number and a unit with a blank between, and a wide number runs into the next cell
(`65535 Gb/s4294967295 Gb/sN/A`): rows are read by what a cell looks like, not by blanks. The JSON is a list of GPUs,
since ROCm 6.4 inside an object with a list per table; its shapes are those of the tool's source, because no output of a
machine was at hand to check them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from topocomm.topology.inference.host_tree import PairKey, group_words
from topocomm.topology.readers.amd.amd_smi import BUS_ID
from topocomm.topology.readers.amd.amd_smi_json import bus_id, document_in, document_start, gpu_number, objects
from topocomm.topology.readers.amd.amd_tables import MAX_GPUS, NOT_AVAILABLE, fail
from topocomm.topology.readers.plain.paste import LineReader, plain_lines

_SENTINELS = {65535, 4294967295, 2**64 - 1}
"""All bits set: what the tool prints of a figure that the hardware does not have."""
_STATE = re.compile(r"[UDX](?:/[UDX]){0,15}|N/A|SELF")

TITLES = {"LINK METRIC TABLE": "metrics", "GPU LINK PORT STATUS": "ports", "XGMI LINK STATUS": "status"}
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,6})?"
_GPU = re.compile(r"GPU[0-9]{1,4}")
_HEADER = re.compile(r"\s*bdf\s+(?:bit_rate\s+max_bandwidth\s+link_type|port_num)?(.*)")
_ROW = re.compile(rf"\s*(GPU[0-9]{{1,4}})\s+({BUS_ID.pattern})(.*)")
_RATES = re.compile(rf"\s*({_NUMBER}|N/A)(?:\s*Gb/s)?\s*({_NUMBER}|N/A)(?:\s*Gb/s)?\s*(XGMI|PCIE|UNKNOWN|N/A)\s*")
_TRAFFIC = re.compile(r"\s*(Read|Write)(.*)")
_AMOUNT = re.compile(rf"\s*((?:{_NUMBER}|N/A)\s*[KMGTPE]?B|N/A)")
_PORT = re.compile(r"[UDX]|N/A")

_KEYS = ("xgmi_metric", "source_status", "link_status")
_MARK = re.compile(r'"(?:link_metrics|xgmi_metric)"\s{0,9}:')
_LINK_TYPES = ("XGMI", "PCIE", "UNKNOWN", NOT_AVAILABLE)


class Metrics(NamedTuple):
    """One GPU of the link metric table. Figures in Gb/s, None if unknown; `read` has a cell per GPU, none if absent."""

    bit_rate: float | None
    max_bandwidth: float | None
    link_type: str
    read: tuple[str, ...]


class Listing(NamedTuple):
    """The three tables; one that was not printed is empty."""

    gpus: tuple[str, ...]
    bus_ids: dict[str, str | None]
    metrics: dict[str, Metrics]
    status: dict[PairKey, str]
    """Directed; `U`, `D` and `X` (up, down, disabled) for each link, between slashes. Own cells are left out."""
    ports: dict[str, list[str]]
    facts: dict[str, Any]
    warnings: list[str]

    def add_states(self, gpu: str, ends: Sequence[str], states: list[str]) -> None:
        """Add the status of a GPU's links."""
        self.status.update({(gpu, end): state for end, state in zip(ends, states, strict=True) if state != "SELF"})


def _figure(number: float) -> float | None:
    """Return a figure in Gb/s, whole numbers as such; None for a sentinel."""
    if number in _SENTINELS:
        return None
    return int(number) if number == int(number) else number


class TextParser(LineReader):
    """Parses the tables in a text."""

    remedy = "give the whole output of `amd-smi xgmi`"

    def __init__(self, text: str, file: str) -> None:
        super().__init__(plain_lines(text), file)
        self.listing = Listing((), {}, {}, {}, {}, {}, self.warnings)
        self.section = ""
        self.axis: list[str] = []
        self.axes: list[list[str]] = []
        self.rows: dict[str, dict[str, str]] = {}
        """Bus ids by GPU, for each table that was read."""
        self.writes: list[str] = []

    def parse(self) -> Listing:
        """Return the tables.

        Raises:
            TopologyError: A table is cut short, has lost cells, or names other GPUs than the first; names the line.
        """
        for index, line in enumerate(self.lines):
            title = line.strip().rstrip(":").strip().upper()
            section = TITLES.get(title)
            if section in self.rows:
                self.warn(index, "a second listing starts here; it was not read")
                break
            if title == "LEGEND":
                self.section = ""
                self.listing.facts["legend"] = True
            elif section is not None:
                self.section, self.axis = section, []
                self.rows[section] = {}
            elif self.section in self.rows and line.strip():
                self._take(index, line, self.rows[self.section])
        return self._checked()

    def _take(self, index: int, line: str, rows: dict[str, str]) -> None:
        header, row, traffic = _HEADER.fullmatch(line), _ROW.fullmatch(line), _TRAFFIC.fullmatch(line)
        if header is not None and not self.axis and not rows:
            self.axis = header.group(1).split()
            self.axes += [self.axis] if self.axis else []
            for label in self.axis:
                if not (_GPU.fullmatch(label) or BUS_ID.fullmatch(label)):
                    self.refuse(index, f"column {label[:20]!r} is neither a GPU nor a bus id")
        elif row is not None:
            gpu, rows_bus_id, rest = row.groups()
            if gpu in rows:
                self.refuse(index, f"{gpu} is there twice")
            if len(rows) == MAX_GPUS:
                self.fail(index, f"more than {MAX_GPUS} GPUs; a host has fewer")
            rows[gpu] = rows_bus_id
            if self.section == "metrics":
                self._metrics(index, gpu, rest)
            else:
                self._states(index, gpu, rest.split())
        elif traffic is not None and self.section == "metrics":
            self._traffic(index, *traffic.groups())
        elif line.strip(" .…[]") == "" or "truncated" in line:
            self.warn(index, "lines were left out")

    def _metrics(self, index: int, gpu: str, rest: str) -> None:
        rates = _RATES.fullmatch(rest)
        if rates is None:
            expected = "bit_rate, max_bandwidth and link_type (`32 Gb/s 512 Gb/s XGMI`)"
            self.refuse(index, f"{gpu}: {rest.strip()[:60]!r} where {expected} was expected")
        bit_rate, most, link_type = rates.groups()
        known = [None if text == "N/A" else _figure(float(text)) for text in (bit_rate, most)]
        if None in known and "N/A" not in (bit_rate, most):
            self.warn(index, f"{gpu}: all bits set ({bit_rate} Gb/s): the rate is unknown")
        self.listing.metrics[gpu] = Metrics(known[0], known[1], link_type, ())

    def _states(self, index: int, gpu: str, cells: list[str]) -> None:
        if wrong := [c for c in cells if not (_PORT if self.section == "ports" else _STATE).fullmatch(c)]:
            self.refuse(index, f"{gpu}: unknown state {wrong[0][:20]!r}; expected U, D, X, N/A")
        if self.section == "ports":
            self.listing.ports[gpu] = cells
        elif len(cells) != len(self.axis):
            self.refuse(index, f"row {gpu} has {len(cells)} cells, the header {len(self.axis)} columns")
        else:
            self.listing.add_states(gpu, self.axis, cells)

    def _traffic(self, index: int, word: str, rest: str) -> None:
        metrics = self.listing.metrics
        if not metrics:
            self.refuse(index, f"a {word} row without a GPU above")
        gpu = next(reversed(metrics))
        cells: list[str] = []
        at = 0
        while (cell := _AMOUNT.match(rest, at)) is not None:
            cells.append(" ".join(cell.group(1).split()))
            at = cell.end()
        if rest[at:].strip():
            self.refuse(index, f"{gpu}: {word}: {rest[at:].strip()[:20]!r} is no amount such as `2 KB`")
        if len(cells) != len(self.axis):
            self.refuse(index, f"{gpu}: {word} has {len(cells)} cells, the header {len(self.axis)} columns")
        if gpu in self.writes or (word == "Read" and metrics[gpu].read):
            self.refuse(index, f"{gpu}: another {word} row, or one below its Write row")
        if word == "Write":
            self.writes.append(gpu)
        else:
            metrics[gpu] = metrics[gpu]._replace(read=tuple(cells))

    def _checked(self) -> Listing:
        """Return the listing with its GPUs, if every table is whole and names the same ones."""
        end = len(self.lines) - 1
        tables = [rows for rows in self.rows.values() if rows]
        if not tables:
            self.refuse(0, "no row of a GPU")
        bus_ids = tables[0]
        if other := next((rows for rows in tables if rows != bus_ids), None):
            self.refuse(end, f"the tables name different GPUs ({group_words(list(other))})")
        whole = [gpu for gpu, row in self.listing.metrics.items() if row.read]
        if whole and (len(whole) < len(bus_ids) or len(self.writes) < len(whole)):
            self.refuse(end, f"{list(bus_ids)[-1]} or another GPU has no Read and Write row: the text is cut")
        for axis in self.axes:
            if axis not in (list(bus_ids), list(bus_ids.values())):
                words = f"{len(bus_ids)} GPUs have rows, {len(axis)} columns"
                self.refuse(end, f"{words}: a row is missing or misplaced")
        return self.listing._replace(gpus=tuple(bus_ids), bus_ids=dict(bus_ids))


def is_json(text: str) -> bool:
    """Return whether the text has a JSON document with the tool's keys, be it damaged."""
    return _MARK.search(text) is not None and document_start(text, "[{") is not None


def parse_json(text: str, name: str) -> Listing:
    """Return the tables in a JSON document.

    Raises:
        TopologyError: Not JSON, or a key that is missing or breaks its type; names the JSON path.
    """
    document = document_in(text, name)
    tables = document if isinstance(document, dict) else {"xgmi_metric": document}
    listing = Listing((), {}, {}, {}, {}, {}, [])
    gpus: tuple[str, ...] = ()
    for key in _KEYS:
        value = tables.get(key)
        if not value:
            continue
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]  # the tool wraps this list twice
        place = f"{name}: {key}"
        items = objects(value, place)
        if len(items) > MAX_GPUS:
            fail(place, f"{len(items)} GPUs; a host has at most {MAX_GPUS}")
        named = tuple(f"GPU{gpu_number(item, f'{place}[{i}]')}" for i, item in enumerate(items))
        if len(set(named)) < len(named) or (gpus and named != gpus):
            fail(place, "the GPUs are not those of the list before, or one is there twice; give the whole output")
        gpus = named
        for i, (gpu, item) in enumerate(zip(gpus, items, strict=True)):
            listing.bus_ids.setdefault(gpu, bus_id(item, f"{place}[{i}]"))
            _take_item(listing, key, gpu, gpus, item, f"{place}[{i}]")
    if not gpus:
        fail(f"{name}:1", f"no GPU under {', '.join(_KEYS)}; give the whole output of `amd-smi xgmi --json`")
    return listing._replace(gpus=gpus)


def _take_item(listing: Listing, key: str, gpu: str, gpus: tuple[str, ...], item: dict[str, Any], place: str) -> None:
    if key == "xgmi_metric":
        metrics = item.get("link_metrics")
        if not isinstance(metrics, dict):
            fail(f"{place}.link_metrics", "expected an object")
        listing.metrics[gpu] = _json_metrics(metrics, gpus, f"{place}.link_metrics")
        return
    states = item.get("link_status")
    if not isinstance(states, list) or not all(isinstance(s, str) and _STATE.fullmatch(s) for s in states):
        fail(f"{place}.link_status", "expected a list of U, D, X and N/A")
    if key == "source_status":
        listing.ports[gpu] = states
    elif len(states) != len(gpus):
        fail(f"{place}.link_status", f"{len(states)} states for {len(gpus)} GPUs; give the whole output")
    else:
        listing.add_states(gpu, gpus, states)


def _json_metrics(metrics: dict[str, Any], gpus: tuple[str, ...], place: str) -> Metrics:
    link_type = metrics.get("link_type")
    if link_type not in _LINK_TYPES:
        fail(f"{place}.link_type", f"expected one of {', '.join(_LINK_TYPES)}")
    reads = {}
    for i, link in enumerate(objects(metrics.get("links"), f"{place}.links")):
        amount = link.get("read")  # as the table prints it; only whether it has a number counts
        words = f"{amount.get('value')} {amount.get('unit')}" if isinstance(amount, dict) else "counted"
        end = f"GPU{gpu_number(link, f'{place}.links[{i}]')}"
        reads[end] = NOT_AVAILABLE if amount in (None, NOT_AVAILABLE) else words
    if set(reads) != set(gpus):
        fail(f"{place}.links", "not one link for each GPU of the list; give the whole output")
    rates: list[float | None] = []
    for key in ("bit_rate", "max_bandwidth"):
        figure = metrics.get(key)
        number = figure.get("value") if isinstance(figure, dict) else figure
        if number in (None, NOT_AVAILABLE):
            rates.append(None)
        elif isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 2**64:
            fail(f"{place}.{key}", "expected a number of Gb/s, alone or as an object with 'value' and 'unit'")
        else:
            rates.append(_figure(number))
    return Metrics(rates[0], rates[1], link_type, tuple(reads[gpu] for gpu in gpus))
