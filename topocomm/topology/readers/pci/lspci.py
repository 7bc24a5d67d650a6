"""`lspci -tv` (also with `-nn`): a drawn tree of bridges, buses and names.

There are no NUMA nodes and no classes: the names of the PCI database tell GPUs and NICs, and devices below different
host bridges have no code, because NODE and SYS cannot be told apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from topocomm.errors import TopologyError
from topocomm.topology.inference.pci_tree import MAX_BRIDGES, Bridge, Leaf, bus_key, check_size, pci_graph, pci_pairs
from topocomm.topology.model import Device, DeviceKind, Topology
from topocomm.topology.readers.plain.paste import LineReader, plain_lines, strip_prefix

SOURCE = "lspci -tv"

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
"""Start of the tree in a line, whatever stands before it."""

_NVIDIA = re.compile(r"nvidia corporation\b", re.IGNORECASE)
_AMD = re.compile(r"(?:advanced micro devices|ati technologies).*?(?:\[amd/ati\]|\[ati\]|\bati\b)", re.IGNORECASE)
_AMD_GPU = re.compile(r"\[AMD\].*\b(?:Instinct|Radeon|MI[1-9]\d\d?[AX]?)\b")
_INTEL_GPU = re.compile(r"intel corporation.*\b(?:data center gpu|arc\b.*graphics|\[arc|ponte vecchio)", re.IGNORECASE)
_NO_GPU = re.compile(
    r"audio|hdmi|\busb|ucsi|type-c|nvswitch|bridge|smbus|\bsata\b|\bide\b|ethernet|azalia|memory controller|\biommu\b"
    r"|upstream|downstream|pci express|root port|\blpc\b|host controller|\bS?MU\b|nforce|\bmcp\d|\bck804|\bsb\d00|sbx00"
    r"|\br[sd]\d{3}\b.*(?:host|northbridge|pci)|(?:\bDevice |\[10de:)(?:1ac[0-2]|1af1|22a3)\b|connectx|bluefield",
    re.IGNORECASE,
)
"""Other devices of these vendors. 1ac0 to 1ac2, 1af1 and 22a3 are NVSwitches that old databases do not name."""
_INSIDE_CPU = re.compile(
    r"\b(?:Raven|Picasso|Renoir|Lucienne|Cezanne|Barcelo|Rembrandt|Raphael|Phoenix|Granite Ridge|Strix|Mendocino)\b"
)
_CPU_VENDORS = (
    (re.compile(r"intel corporation\b", re.IGNORECASE), "GenuineIntel"),
    (re.compile(r"advanced micro devices, inc\. \[amd\](?!.*\bati\b)", re.IGNORECASE), "AuthenticAMD"),
)

_NIC = re.compile(
    r"\bethernet\b|mellanox technologies device|connectx|infiniband"
    r"|network connection|netxtreme|omni-path|\bhfi silicon|gigabit|\bgbe\b|nbase-t"
    r"|elastic (?:network|fabric) adapter|virtio network|slingshot|cassini|\bbcm57\d{2,3}|10gbase"
    r"|\bmt(?:27|28|29|41|43)\d{2,3}|terminator 5|\bt[4-7]\d{2}-|solarflare|\bsf[cn]\d{4}|aqtion|\baqc\d"
    r"|\be8[123]\d-|\bx[57]\d\d\b|\b8259\d|vmxnet|fastlinq",
    re.IGNORECASE,
)
_NO_NIC = re.compile(
    r"wireless|wi-?fi|bluetooth|virtual function|bridge|dma controller|\bsoc management|management interface|audio"
    r"|\bsas\b|\braid\b|non-volatile|nvme|\bpcie switch|crypto|serial|\busb\b|management topology|thunderbolt",
    re.IGNORECASE,
)
_IDS = re.compile(r"\s*\[[0-9a-f]{4}:[0-9a-f]{4}\]")
_MODEL = re.compile(r"\b(?:[A-Z]{1,4}\d{3,5}[A-Z]{0,3}(?:-[A-Z0-9]+)?|\d{5}[A-Z]{0,3}|Device [0-9a-f]{4})\b")


class _Function(NamedTuple):
    """One PCI function that is no bridge."""

    bus_id: str
    name: str
    path: tuple[Bridge, ...]
    line: int


@dataclass(eq=False, slots=True)
class _Branch:
    """A bus being drawn: the column of its devices' marks, its address, and the bridges above it.

    Without an address it is a bridge with several buses, which stand in the place of devices.
    """

    column: int
    bus: str
    path: tuple[Bridge, ...]
    last: tuple[int, int] = (-1, -1)
    highest: int = 255


def matches(text: str) -> bool:
    """Return whether the text has a root bus as the tool draws it."""
    return "]-" in text and any("]-" in line and _BEGINS.match(line) for line in _lines(text))


def read(text: str, name: str) -> Topology:
    """Return the GPUs and NICs of a host in its PCI tree; functions of one card are one NIC."""
    parser = _Parser([line.expandtabs(8) for line in _lines(text)], name)
    parser.parse()
    functions = sorted(parser.functions, key=lambda f: bus_key(f.bus_id))
    if functions and all(re.fullmatch(r"(?:[0-9a-f]{4}:[0-9a-f]{4})?", f.name) for f in functions):
        raise TopologyError(f"{name}:{functions[0].line}: devices without names; use `lspci -tv` without -n")
    gpu_functions = _gpus(functions)
    gpus = [_leaf(f, f"GPU{i}", "gpu") for i, f in enumerate(gpu_functions)]
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
    # The processors' own first devices are on the root buses; CPUID spells the vendor so.
    firsts = [f.name for f in functions if len(f.path) == 1 and f.bus_id.endswith(":00.0")]
    vendors = {next((v for pattern, v in _CPU_VENDORS if pattern.match(first)), None) for first in firsts}
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
            "gpu_root": {f.bus_id: f.path[0].bus_id for f in gpu_functions},
            "nic_functions": len(nics),
            "nic_busids": models,
            **({"cpu_vendor": vendor} if len(vendors) == 1 and (vendor := vendors.pop()) else {}),
        },
    )


def _leaf(function: _Function, ident: str, kind: DeviceKind) -> Leaf:
    return Leaf(Device(ident, kind, name=plain_name(function.name), bus_id=function.bus_id), function.path)


def _gpus(functions: list[_Function]) -> list[_Function]:
    """Return function 0 of each GPU: others are its audio and USB, or virtual functions, which have the GPU's name."""
    gpus = [f for f in functions if is_gpu(f.name)]
    # Graphics inside a desktop CPU of AMD are passed over where there is another GPU.
    gpus = [f for f in gpus if not (_AMD.match(f.name) and _INSIDE_CPU.search(f.name))] or gpus
    virtual = {(f.bus_id[:-5], f.name) for f in gpus if not f.bus_id.endswith(".0")}
    first = [f for f in gpus if f.bus_id.endswith(".0")]
    return [f for f in first if (f.bus_id[:-5], f.name) not in virtual or ":00.0" in f.bus_id]


def _lines(text: str) -> list[str]:
    """Return the lines of a pasted text, whose columns count.

    `plain_lines` takes bars for a table of a web page, and blanks along with the marks of a quote: in a tree, bars are
    the drawing, and marks are a prefix.
    """
    lines = strip_prefix(re.split(r"\r\n?|\n", text.replace("|", "\x01")), _FIRST_LINE)
    return [line.replace("\x01", "|").rstrip() for line in plain_lines("\n".join(lines))]


class _Parser(LineReader):
    remedy = "give the whole output of `lspci -tv`, its blanks included"

    def __init__(self, lines: list[str], name: str) -> None:
        super().__init__(lines, name)
        self.functions: list[_Function] = []
        self.roots: list[str] = []
        self.open: list[_Branch] = []
        self.top: int | None = None
        """Column of the marks of host bridges; None where there is one alone."""

    def parse(self) -> None:
        first = next((i for i, line in enumerate(self.lines) if _ROOT.match(line.lstrip())), None)
        if first is None:
            self.refuse(0, "no root bus such as `-[0000:00]-+-`")
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
                self.refuse(index, f"{line[start:][:40]!r} is no branch of the tree (`+-` or `\\-`)")
            self._line(index, line, start)
            last = index
        if self.open or not self.closed:
            self.refuse(last, "the tree ends here, but branches are open: the text is cut")

    def _line(self, index: int, line: str, start: int) -> None:
        if not self.roots:  # `-+-[0000:00]-+-...` with several host bridges, `-[0000:00]-+-...` with one
            if line.startswith("-+-[", start):
                self.top = start + 1
            elif line.startswith("-[", start):
                self.closed = True
            else:
                self.refuse(index, f"{line.strip()[:40]!r} does not begin a tree")
            self._root(index, line, start - 1 if self.closed else start + 1)
            return
        if self.open and self.open[-1].column > start:
            self.refuse(index, f"a branch opened at column {self.open[-1].column + 1} is not closed")
        if self.top == start and not self.open:
            self._root(index, line, start)
            return
        if not self.open or self.open[-1].column != start:
            self.refuse(index, f"nothing above branches at column {start + 1}: the drawing is damaged")
        bars = {branch.column for branch in self.open[:-1]}
        bars |= {self.top} if self.top is not None and not self.closed else set()
        if {i for i in range(start) if line[i] == "|"} != bars:
            self.refuse(index, f"the bars left of column {start + 1} are not those of the branches above")
        branch = self.open[-1]
        if line[start] == "\\":
            self.open.pop()
        if not branch.bus:
            self._nested(index, line, start, branch)
        else:
            self._device(index, line, start + 2, branch)

    def _root(self, index: int, line: str, column: int) -> None:
        match = _ROOT_BUS.match(line, column + 1)
        if match is None:
            self.refuse(index, f"{line[column:][:30]!r} is no root bus such as `+-[0000:40]-`")
        if column >= 0 and line[column] == "\\":
            self.closed = True
        root = f"{match.group(1) or '0000'}:{match.group(2)}"
        if root in self.roots:
            self.refuse(index, f"root bus {root} is there twice")
        self.roots.append(root)
        self._bus(index, line, match.end(), root, (Bridge(root),), 255)

    def _bus(self, index: int, line: str, at: int, bus: str, path: tuple[Bridge, ...], highest: int) -> None:
        """Take what follows a bus: several devices (`+-`), one (`--`), or none."""
        if len(path) > MAX_BRIDGES:
            self.fail(index, f"more than {MAX_BRIDGES} bridges above one another; this is no machine")
        branch = _Branch(at, bus, path, highest=highest)
        if line.startswith("+-", at):
            self.open.append(branch)
            self._device(index, line, at + 2, branch)
        elif line.startswith("--", at):
            self._device(index, line, at + 2, branch)
        elif line[at:].strip("- "):
            self.refuse(index, f"{line[at:][:30]!r} at column {at + 1} is no device")

    def _nested(self, index: int, line: str, start: int, branch: _Branch) -> None:
        match = _BUS.match(line, start)
        if match is None:
            self.refuse(index, f"{line[start:][:30]!r} at column {start + 1} is no bus")
        self._bus(index, line, match.end(), f"{match.group(2)}:{match.group(3)}", branch.path, branch.highest)

    def _device(self, index: int, line: str, at: int, branch: _Branch) -> None:
        match = _DEVICE.match(line, at)
        if match is None:
            self.refuse(index, f"{line[at:][:30]!r} at column {at + 1} is no device such as `01.1`")
        place = (int(match.group(1), 16), int(match.group(2)))
        if place <= branch.last or place[0] > 31:
            self.refuse(index, f"device {match.group()} on bus {branch.bus} is out of order")
        branch.last = place
        bus_id = f"{branch.bus}:{match.group()}"
        below = _SECONDARY.match(line, match.end())
        if below is None:
            name = line[match.end() :].strip()
            if _DRAWN.search(name):
                self.refuse(index, f"the line of {bus_id} has two branches: lines run together")
            self.functions.append(_Function(bus_id, name, branch.path, index + 1))
            return
        first = int(below.group(1), 16)
        highest = int(below.group(2) or below.group(1), 16)
        bus = f"{branch.bus.rsplit(':', 1)[0]}:{below.group(1)}"
        path = (*branch.path, Bridge(bus_id))
        at = below.end()
        if first > highest or highest > branch.highest:
            self.refuse(index, f"bridge {bus_id} has buses {below.group()[1:-1]}, outside of its parent's")
        if line.startswith("-+-[", at):
            # Each of several buses below is drawn like a root bus, one bridge lower.
            self.open.append(_Branch(at + 1, "", path, highest=highest))
            self._nested(index, line, at + 1, self.open[-1])
        else:
            self._bus(index, line, at + 1 if line.startswith("-", at) else at, bus, path, highest)


def is_gpu(name: str) -> bool:
    """Return whether this is a GPU of NVIDIA, AMD or Intel that computes, and not a board's graphics chip."""
    vendor = _NVIDIA.match(name) or _AMD.match(name) or _AMD_GPU.search(name) or _INTEL_GPU.match(name)
    return vendor is not None and _NO_GPU.search(name) is None


def is_nic(name: str) -> bool:
    """Return whether this is an Ethernet or InfiniBand port, and not Wi-Fi or a virtual function."""
    return _NIC.search(name) is not None and _NO_NIC.search(name) is None


def nic_model(name: str) -> str:
    """Return the short name of a NIC: its last word in brackets (`ConnectX-7`), else its type number (`X710`)."""
    bare = plain_name(name)
    model = re.search(r"(?<=\[)[^\[\]]+(?=\]$)", bare) or _MODEL.search(bare)
    return model.group() if model else bare


def plain_name(name: str) -> str:
    """Return the name without the ids that `-nn` adds."""
    return _IDS.sub("", name).strip()
