"""`lspci -tv` (also with `-nn`): a drawn tree in, Topology out.

The tool draws bridges, buses and names, but no NUMA nodes and no classes: what devices are is read from their names,
and devices below different host bridges have no code, because NODE and SYS cannot be told apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple, NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.inference.pci_tree import MAX_BRIDGES, Bridge, Leaf, bus_key, check_size, pci_graph, pci_pairs
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.pci.pci_names import cpu_vendor, is_gpu, is_inside_cpu, is_nic, nic_model, plain_name
from topocomm.topology.readers.plain.log_prefix import without_prefix
from topocomm.topology.readers.plain.paste import plain_lines

SOURCE = "lspci -tv"
CPU_VENDOR = "cpu_vendor"
"""The fact that holds the maker of all processors of a machine, `GenuineIntel` or `AuthenticAMD`: both are x86-64."""

_ROOT = re.compile(r"(?:-?[+\\])?-\[(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}\]-(?=[-+\\]|$)")
_ROOT_BUS = re.compile(r"-\[(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2})\]-")
_BUS = re.compile(r"([+\\]?-)?\[([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2})\]-")
_DEVICE = re.compile(r"([0-9a-fA-F]{2})\.([0-7])(?=-\[|  |$)")
_SECONDARY = re.compile(r"-\[(?:[0-9a-fA-F]{4,8}:)?([0-9a-fA-F]{2})(?:-([0-9a-fA-F]{2}))?\]-")
_DRAWN = re.compile(r"[+\\]-[0-9a-fA-F]{2}\.[0-7](?=-\[|  |$)")
"""A branch inside a name."""
_DETAIL = re.compile(r"(?:Region \d|Memory at|I/O ports at|\[(?:virtual|enhanced)\])")
_BEGINS = re.compile(r"[ \t]*[-+\\][-+\\ ]*-?\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}\]-[-+]")
_FIRST_LINE = re.compile(r"(?<![^\s>:\]\x01])-(?:\+-)?\[[0-9a-f]{4,8}:[0-9a-f]{2}\]-")
"""Where the tree begins in a line, whatever stands before it."""
_WHOLE = "give the whole output of `lspci -tv`, its blanks included"


class _Function(NamedTuple):
    """One PCI function that is no bridge."""

    bus_id: str
    name: str
    path: tuple[Bridge, ...]
    root: str
    line: int


@dataclass(eq=False, slots=True)
class _Branch:
    """A bus being drawn: where its devices' marks stand, its address, and the bridges above it.

    Without an address it is a bridge with several buses, which stand where devices would.
    """

    column: int
    bus: str
    path: tuple[Bridge, ...]
    root: str
    last: tuple[int, int] = (-1, -1)
    highest: int = 255


def matches(text: str) -> bool:
    """True if the text has a root bus as the tool draws it."""
    return "]-" in text and any("]-" in line and _BEGINS.match(line) for line in _lines(text))


def read(text: str, name: str) -> Topology:
    """The GPUs and NICs of a host in its PCI tree; functions of one card are one NIC.

    Args:
        text: What the tool printed, or a copy of it.
        name: Its file name, for messages; its stem names the topology.

    Raises:
        TopologyError: The drawing is cut or damaged, or has no names; names the line.
    """
    parser = _Parser([line.expandtabs(8) for line in _lines(text)], name)
    parser.parse()
    functions = sorted(parser.functions, key=lambda f: bus_key(f.bus_id))
    if functions and all(re.fullmatch(r"(?:[0-9a-f]{4}:[0-9a-f]{4})?", f.name) for f in functions):
        raise TopologyError(f"{name}:{functions[0].line}: devices without names; use `lspci -tv` without -n")
    gpus = [_leaf(f, f"GPU{i}", "gpu") for i, f in enumerate(_gpus(functions))]
    nics = [f for f in functions if is_nic(f.name)]
    cards = list({f.bus_id.rsplit(".", 1)[0]: f for f in reversed(nics)}.values())[::-1]
    check_size(name, len(gpus), len(cards))
    leaves = [_leaf(f, f.bus_id, "nic") for f in cards]
    forwarding, links = pci_graph([*gpus, *leaves], ())
    pairs = pci_pairs(gpus, leaves, {})
    base = PurePath(name).name
    warnings = []
    if any(pair.code is None for pair in pairs):
        warnings.append(f"{base}: no NUMA nodes in this text; devices below different host bridges have no code")
    if not gpus:
        warnings.append(f"{base}: no GPU by the names of NVIDIA, AMD and Intel")
    models: dict[str, list[str]] = {}
    for card in cards:
        models.setdefault(nic_model(card.name), []).append(card.bus_id)
    return Topology(
        name=PurePath(name).stem,
        source=SOURCE,
        devices=(*(leaf.device for leaf in (*gpus, *leaves)), *forwarding),
        links=links,
        pairs=pairs,
        warnings=tuple(warnings),
        facts={
            "host_bridges": len(parser.roots),
            "gpu_busids": [gpu.device.bus_id for gpu in gpus],
            "gpu_root": {f.bus_id: f.root for f in _gpus(functions)},
            "nic_functions": len(nics),
            "nic_busids": models,
            **_cpu(functions),
        },
    )


def _cpu(functions: list[_Function]) -> dict[str, str]:
    """The fact `cpu_vendor`: every processor's own first device on its root bus is of the same maker."""
    found = {cpu_vendor(f.name) for f in functions if len(f.path) == 1 and f.bus_id.endswith(":00.0")}
    vendor = found.pop() if len(found) == 1 else None
    return {CPU_VENDOR: vendor} if vendor else {}


def _leaf(function: _Function, id: str, kind: str) -> Leaf:
    device = Device(id, "gpu" if kind == "gpu" else "nic", name=plain_name(function.name), bus_id=function.bus_id)
    return Leaf(device, function.path)


def _gpus(functions: list[_Function]) -> list[_Function]:
    """Function 0 of each GPU: others are its audio and USB, or virtual functions, which have the GPU's name."""
    found = [f for f in functions if is_gpu(f.name)]
    found = [f for f in found if not is_inside_cpu(f.name)] or found
    virtual = {(_bus(f), f.name) for f in found if not f.bus_id.endswith(".0")}
    return [f for f in found if f.bus_id.endswith(".0") and ((_bus(f), f.name) not in virtual or ":00.0" in f.bus_id)]


def _bus(function: _Function) -> str:
    return function.bus_id[:-5]


def _lines(text: str) -> list[str]:
    """The lines of a pasted text, whose columns count.

    `plain_lines` takes bars for a table of a web page, and blanks along with the marks of a quote: here bars are the
    drawing, and marks are a prefix.
    """
    lines = without_prefix(re.split(r"\r\n?|\n", text.replace("|", "\x01")), _FIRST_LINE)
    return [line.replace("\x01", "|").rstrip() for line in plain_lines("\n".join(lines))]


class _Parser:
    def __init__(self, lines: list[str], name: str) -> None:
        self.lines, self.name = lines, name
        self.functions: list[_Function] = []
        self.roots: list[str] = []
        self.open: list[_Branch] = []
        self.top: int | None = None
        """Column of the marks of host bridges; None where there is one alone."""

    def fail(self, index: int, message: str) -> NoReturn:
        raise TopologyError(f"{self.name}:{index + 1}: {message}")

    def parse(self) -> None:
        first = next((i for i, line in enumerate(self.lines) if _ROOT.match(line.lstrip())), None)
        if first is None:
            self.fail(0, f"no root bus such as `-[0000:00]-+-`; {_WHOLE}")
        last = first
        self.closed = False
        for index in range(first, len(self.lines)):
            line = self.lines[index]
            start = len(line) - len(line.lstrip(" |"))
            if not line.strip():
                if self.closed and not self.open:
                    break
                continue
            if start == len(line) or _DETAIL.match(line[start:]):
                continue
            if index > first and not re.match(r"[+\\]-", line[start:]):
                if self.closed and not self.open:
                    break
                self.fail(index, f"{line[start:][:40]!r} is no branch of the tree (`+-` or `\\-`); {_WHOLE}")
            self._line(index, line, start)
            last = index
        if self.open or not self.closed:
            self.fail(last, f"the tree ends here, but branches are open: the text is cut; {_WHOLE}")

    def _line(self, index: int, line: str, start: int) -> None:
        if not self.roots:
            self._first(index, line, start)
            return
        while self.open and self.open[-1].column > start:
            self.fail(index, f"a branch opened at column {self.open[-1].column + 1} is not closed; {_WHOLE}")
        if self.top == start and not self.open:
            self._root(index, line, start)
            return
        if not self.open or self.open[-1].column != start:
            self.fail(index, f"nothing above branches at column {start + 1}: the drawing is damaged; {_WHOLE}")
        bars = {branch.column for branch in self.open[:-1]}
        bars |= {self.top} if self.top is not None and not self.closed else set()
        if {i for i in range(start) if line[i] == "|"} != bars:
            self.fail(index, f"the bars left of column {start + 1} are not those of the branches above; {_WHOLE}")
        branch = self.open[-1]
        if line[start] == "\\":
            self.open.pop()
        if not branch.bus:
            self._nested(index, line, start, branch)
        else:
            self._device(index, line, start + 2, branch)

    def _first(self, index: int, line: str, start: int) -> None:
        """`-+-[0000:00]-+-...`: several host bridges; `-[0000:00]-+-...`: one."""
        column = line.find("+-[", start)
        if column == start + 1 and line[start] == "-":
            self.top = column
            self._root(index, line, column)
        elif line.startswith("-[", start):
            self.closed = True
            self._root(index, line, start - 1)
        else:
            self.fail(index, f"{line.strip()[:40]!r} does not begin a tree; {_WHOLE}")

    def _root(self, index: int, line: str, column: int) -> None:
        match = _ROOT_BUS.match(line, column + 1)
        if match is None:
            self.fail(index, f"{line[column:][:30]!r} is no root bus such as `+-[0000:40]-`; {_WHOLE}")
        if column >= 0 and line[column] == "\\":
            self.closed = True
        root = f"{match.group(1) or '0000'}:{match.group(2)}"
        if root in self.roots:
            self.fail(index, f"root bus {root} is there twice; {_WHOLE}")
        self.roots.append(root)
        self._bus(index, line, match.end(), root, (Bridge(root),), root, 255)

    def _bus(self, index: int, line: str, at: int, bus: str, path: tuple[Bridge, ...], root: str, highest: int) -> None:
        """What follows a bus: several devices (`+-`), one (`--`), or none."""
        if len(path) > MAX_BRIDGES:
            self.fail(index, f"more than {MAX_BRIDGES} bridges above one another; this is no machine")
        branch = _Branch(at, bus, path, root, highest=highest)
        if line.startswith("+-", at):
            self.open.append(branch)
            self._device(index, line, at + 2, branch)
        elif line.startswith("--", at):
            self._device(index, line, at + 2, branch)
        elif line[at:].strip("- "):
            self.fail(index, f"{line[at:][:30]!r} at column {at + 1} is no device; {_WHOLE}")

    def _nested(self, index: int, line: str, start: int, branch: _Branch) -> None:
        match = _BUS.match(line, start)
        if match is None:
            self.fail(index, f"{line[start:][:30]!r} at column {start + 1} is no bus; {_WHOLE}")
        bus = f"{match.group(2)}:{match.group(3)}"
        self._bus(index, line, match.end(), bus, branch.path, branch.root, branch.highest)

    def _device(self, index: int, line: str, at: int, branch: _Branch) -> None:
        match = _DEVICE.match(line, at)
        if match is None:
            self.fail(index, f"{line[at:][:30]!r} at column {at + 1} is no device such as `01.1`; {_WHOLE}")
        place = (int(match.group(1), 16), int(match.group(2)))
        if place <= branch.last or place[0] > 31:
            self.fail(index, f"device {match.group()} on bus {branch.bus} is out of order; {_WHOLE}")
        branch.last = place
        bus_id = f"{branch.bus}:{match.group()}"
        below = _SECONDARY.match(line, match.end())
        if below is None:
            name = line[match.end() :].strip()
            if _DRAWN.search(name):
                self.fail(index, f"the line of {bus_id} has two branches: lines run together; {_WHOLE}")
            self.functions.append(_Function(bus_id, name, branch.path, branch.root, index + 1))
            return
        first = int(below.group(1), 16)
        highest = int(below.group(2) or below.group(1), 16)
        bus = f"{branch.bus.rsplit(':', 1)[0]}:{below.group(1)}"
        path = (*branch.path, Bridge(bus_id))
        at = below.end()
        if first > highest or highest > branch.highest:
            self.fail(index, f"bridge {bus_id} has buses {below.group()[1:-1]}, outside of its parent's; {_WHOLE}")
        if line.startswith("-+-[", at):
            self._several(index, line, at + 1, path, branch.root, highest)
        else:
            self._bus(index, line, at + 1 if line.startswith("-", at) else at, bus, path, branch.root, highest)

    def _several(self, index: int, line: str, at: int, path: tuple[Bridge, ...], root: str, highest: int) -> None:
        """A bridge with several buses below: each is drawn like a root bus, one bridge lower."""
        branch = _Branch(at, "", path, root, highest=highest)
        self.open.append(branch)
        self._nested(index, line, at, branch)
