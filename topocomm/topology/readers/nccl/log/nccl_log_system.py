"""The system tree, path matrix and search results that NCCL prints for NCCL_DEBUG_SUBSYS=GRAPH.

    === System : maxBw 24.0 totalBw 24.0 ===           (maxWidth totalWidth before 2.11)
    CPU/0-1 (1/2/-1)                                   type/system-id (arch/vendor/model)
    + PCI[24.0] - PCI/0-1000 (102243f41b213328)        [GB/s as NCCL reckons them]
                  + PCI[24.0] - GPU/0-3000 (0)         (rank)
                                + NVL[240.0] - NVS/0-0
    ==========================================
    GPU/0-3000 :GPU/0-3000 (0/5000.0/LOC) CPU/0-1 (2/24.0/PHB)     (hops/GB/s/type)
    Pattern 4, crossNic 0, nChannels 1, bw 15.000000/15.000000, type SYS/PIX, sameChannels 1
     0 : GPU/0-3000 GPU/0-d000

Ids are bus ids in hexadecimal without leading zeros, NUMA numbers for CPU, device numbers for NET. The system number
before the dash is there since 2.20; capitals came before. A child stands under the name of its parent.

The title of 2.6 has no total. That of 2.5 has `maxSpeed` instead; there figures are whole numbers (`[ 8]`), links
between CPUs are `QPI`, and matrix and searches have numbers for types, which do not tell PHB from SYS and are not used.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from topocomm.topology.readers.nccl.log.nccl_log_comms import Session
from topocomm.topology.readers.nccl.log.nccl_log_lines import Part

_ID = r"([A-Z]{2,5})/([0-9A-Fa-f]{1,16}(?:-[0-9A-Fa-f]{1,16}){0,2})"
_TITLE = re.compile(
    r"=== System : max(?:Bw|Width) +(\d{1,9}\.?\d*)(?: total(?:Bw|Width) +(\d{1,9}\.?\d*)| maxSpeed +\d{1,9})? ==="
)
_ROOT = re.compile(rf"{_ID}(?: \(([-\w/.]*)\))?$")
_LINK = re.compile(rf"( *)\+ ([A-Z0-9]{{2,5}})\[ ?(\d{{1,9}}(?:\.\d+)?)\] - {_ID}(?: \(([^()]*)\))?$")
_END = re.compile(r"={20,}$")
_ROW = re.compile(rf"{_ID} :(?={_ID} \()")
_PATH = re.compile(rf"{_ID} \((\d{{1,6}})/(\d{{1,9}}(?:\.\d+)?)/([A-Z0-9]{{2,5}})\)")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic (\d+), nChannels (\d+), (?:bw|speed) (\d{1,9}(?:\.\d+)?)/(\d{1,9}(?:\.\d+)?), "
    r"(?:nvlink \d+, )?type (\w+)(?:/(\w+))?, sameChannels (\d+)"
)
_CHANNEL = re.compile(r"(\d+) :((?: [A-Z]{3}/[-0-9A-Fa-f]+)+)$")
_PARENTS = {
    "NET": {"NIC"},
    "SYS": {"CPU"},
    "NVL": {"GPU", "DEV", "CPU", "NVS"},
    "C2C": {"GPU", "DEV", "CPU"},
    "XGMI": {"GPU", "DEV", "CPU"},
    "PCI": {"CPU", "PCI", "DEV", "GPU"},
}
"""What a link of each type hangs on; anything else means that the indentation was lost."""


class Key(NamedTuple):
    """One node: its type, the number of its system, its id in lower case."""

    type: str
    system: str
    id: str


class Branch(NamedTuple):
    """One line of the tree: a link from a parent to a node."""

    parent: Key
    type: str
    gb_per_s: float
    node: Key


class Path(NamedTuple):
    """One cell of the path matrix."""

    hops: int
    gb_per_s: float
    type: str


class Search(NamedTuple):
    """One pattern that NCCL searched for, and its channels as nodes (a GPU may be given by its rank: `GPU/3`)."""

    pattern: int
    crossnic: int
    nchannels: int
    speeds: tuple[float, float]
    types: tuple[str | None, str | None]
    """Inside the machine and to the network; the second is not printed before NCCL 2.6, the first as a number."""
    samechannels: int
    channels: tuple[tuple[str, ...], ...]


class System(NamedTuple):
    """What one rank printed of its machine."""

    line: int
    whole: bool
    """False if lines of the tree were cut or lost."""
    placed: bool
    """True if the indentation tells which node hangs on which."""
    max_bw: float
    total_bw: float | None
    roots: tuple[Key, ...]
    branches: tuple[Branch, ...]
    """In the order printed; without those whose parent is not certain."""
    root_of: dict[Key, Key]
    """The CPU that each node was printed under; empty where CPU lines are lost."""
    ranks: dict[Key, int]
    """Of GPUs."""
    printed: dict[Key, str]
    """Ids as printed, without the system's number."""
    about: dict[Key, str]
    """What stands in brackets behind a CPU (`1/2/-1`: architecture, vendor, model) or a PCIe switch (its ids)."""


def system(session: Session) -> System | None:
    """The first tree that a session printed, whole or not; None where there is none."""
    texts = iter(session.parts)
    for part in texts:
        if title := _TITLE.search(part.text):
            reader = _Tree(part.line)
            for below in texts:
                if not reader.take(below):
                    break
            total_bw = title.group(2)
            return reader.system(float(title.group(1)), None if total_bw is None else float(total_bw))
    return None


def paths(session: Session) -> dict[tuple[Key, Key], Path]:
    """The cells of the path matrix. Of a cell printed twice (a NIC listed twice) the first counts."""
    found: dict[tuple[Key, Key], Path] = {}
    for part in session.parts:
        text = part.text.strip()
        row = _ROW.match(text) if "/" in text[:12] else None
        if row is None:
            continue
        mine = key(row.group(1), row.group(2))
        for cell in _PATH.finditer(text, row.end()):
            kind, printed, hops, gb_per_s, code = cell.groups()
            found.setdefault((mine, key(kind, printed)), Path(int(hops), float(gb_per_s), code))
    return found


def searches(session: Session) -> list[Search]:
    """The patterns that a session printed with all their channels."""
    found: list[Search] = []
    open_one: Search | None = None
    for part in session.parts:
        text = part.text.strip()
        if match := _PATTERN.match(text):
            groups = match.groups()
            speeds = float(groups[3]), float(groups[4])
            types = None if groups[5].isdecimal() else groups[5], groups[6]
            numbers = [int(group[:6]) for group in (*groups[:3], groups[7])]
            open_one = Search(numbers[0], numbers[1], numbers[2], speeds, types, numbers[3], ())
            found.append(open_one)
        elif open_one is not None and (row := _CHANNEL.match(text)):
            if not part.cut and int(row.group(1)[:6]) == len(open_one.channels):
                open_one = open_one._replace(channels=(*open_one.channels, tuple(row.group(2).split())))
                found[-1] = open_one
            else:
                open_one = None
    return found


@lru_cache(maxsize=100_000)
def key(kind: str, printed: str) -> Key:
    """The node that a printed type and id name: `GPU/0-3000`, `GPU/3000`, `NVS/0-0-0`."""
    *systems, own = printed.lower().split("-")
    return Key(kind, "-".join(systems).lstrip("0") or "0", own.lstrip("0") or "0")


class _Tree:
    """Takes a tree line by line."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.whole = False
        self.hurt = False
        self.misplaced = False
        self.roots: list[Key] = []
        self.branches: list[Branch] = []
        self.root_of: dict[Key, Key] = {}
        self.ranks: dict[Key, int] = {}
        self.printed: dict[Key, str] = {}
        self.about: dict[Key, str] = {}
        self.indents: set[int] = set()
        self.exact: set[bool] = set()
        self.stack: list[tuple[int, int, Key]] = []

    def take(self, part: Part) -> bool:
        """Takes a line; False at the end of the tree."""
        text = part.text.rstrip()
        if _END.match(text.strip()):
            self.whole = True
            return False
        if _TITLE.search(text) or _ROW.match(text) or _PATTERN.match(text):
            return False
        if link := _LINK.match(text):
            self._link(link, part)
        elif (root := _ROOT.match(text.strip())) and root.group(1) == "CPU":
            self.hurt = self.hurt or part.cut
            if not part.cut:
                cpu = key(root.group(1), root.group(2))
                self.roots.append(cpu)
                self.printed[cpu] = root.group(2).rpartition("-")[2]
                self.root_of[cpu] = cpu
                self.about[cpu] = root.group(3) or ""
                self.stack = [(-1, 0, cpu)]
        elif text.lstrip().startswith(("+ ", "CPU/")):
            self.hurt = True
        return True

    def _link(self, link: re.Match[str], part: Part) -> None:
        spaces, kind, gb_per_s, node_type, printed, about = link.groups()
        kind = "SYS" if kind == "QPI" else kind
        if part.cut or not self.stack:
            self.hurt = True
            return
        node = key(node_type, printed)
        column = len(spaces)
        while column <= self.stack[-1][0]:
            self.stack.pop()
        parent = self.stack[-1][2]
        self.indents.add(column)
        if len(self.stack) > 1:
            self.exact.add(column == self.stack[-1][1])
        odd = parent.type not in _PARENTS.get(kind, {parent.type}) or (kind == "NET") != (node_type == "NET")
        self.misplaced = self.misplaced or odd
        self.stack.append((column, link.start(4), node))
        self.branches.append(Branch(parent, kind, float(gb_per_s), node))
        if kind in ("PCI", "LOC", "NET"):
            self.root_of.setdefault(node, self.stack[0][2])
            self.printed.setdefault(node, printed.rpartition("-")[2])
        if node_type == "PCI" and about:
            self.about[node] = about
        if node_type == "GPU" and kind in ("PCI", "LOC") and (about or "").isdecimal():
            self.ranks[node] = int((about or "0")[:9])

    def system(self, max_bw: float, total_bw: float | None) -> System:
        """What was taken."""
        spoken = {b.node for b in self.branches if b.type == "SYS"}
        own = any(b.type == "SYS" and b.node == b.parent for b in self.branches)
        if own or not spoken <= set(self.roots) or len(set(self.roots)) < len(self.roots):
            self.hurt, self.root_of = True, {}  # the line of a CPU is lost, so what it heads counts to another
        deep = any(b.node.type == "PCI" or b.type in ("NET", "NVL", "XGMI", "C2C", "LOC") for b in self.branches)
        whole = self.whole and not self.hurt and bool(self.roots)
        flat = deep and len(self.indents) == 1
        placed = whole and not flat and not self.misplaced and len(self.exact) < 2
        return System(
            self.line,
            whole,
            placed,
            max_bw,
            total_bw,
            tuple(self.roots),
            tuple(self.branches),
            self.root_of,
            self.ranks,
            self.printed,
            self.about,
        )
