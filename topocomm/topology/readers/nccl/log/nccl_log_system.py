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
from collections import Counter
from functools import cached_property, lru_cache
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
"""Parents of a link of each type; any other parent means that the indentation was lost."""

FAST = ("NVL", "XGMI")
NO_LIMIT = 5000.0
"""GB/s that NCCL writes where a link is no limit, as between a GPU and its board, or for a NIC without a slot."""


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
    speedintra: float
    speedinter: float
    typeintra: str | None
    typeinter: str | None
    """Inside the machine and to the network; the second is not printed before NCCL 2.6, the first as a number."""
    samechannels: int
    channels: tuple[tuple[str, ...], ...]


class System:
    """The machine as one rank printed it: lines are taken one by one; close() says how far it can be trusted."""

    def __init__(self, line: int, max_bw: float, total_bw: float | None) -> None:
        self.line, self.max_bw, self.total_bw = line, max_bw, total_bw
        self.whole = False
        """False if lines of the tree were cut or lost."""
        self.placed = False
        """True if the indentation tells which node hangs on which."""
        self.roots: list[Key] = []
        self.branches: list[Branch] = []
        """In the order printed; without those whose parent is not certain."""
        self.root_of: dict[Key, Key] = {}
        """The CPU that each node was printed under; empty where CPU lines are lost."""
        self.ranks: dict[Key, int] = {}
        """Of GPUs."""
        self.printed: dict[Key, str] = {}
        """Ids as printed, without the system's number."""
        self.about: dict[Key, str] = {}
        """Text in brackets behind a CPU (`1/2/-1`: architecture, vendor, model) or a PCIe switch (its ids)."""
        self._hurt = False
        self._misplaced = False
        self._indents: set[int] = set()
        self._exact: set[bool] = set()
        """Whether children stand under the name of their parent."""
        self._stack: list[tuple[int, int, Key]] = []
        """Columns of the link and of the name, and the node, of each line above that may have children."""

    def take(self, part: Part) -> bool:
        """Take a line; False at the end of the tree."""
        text = part.text.rstrip()
        if _END.match(text.strip()):
            self.whole = True
            return False
        if _TITLE.search(text) or _ROW.match(text) or _PATTERN.match(text):
            return False
        if link := _LINK.match(text):
            self._link(link, part)
        elif (root := _ROOT.match(text.strip())) and root.group(1) == "CPU":
            if part.cut:
                self._hurt = True
            else:
                cpu = key("CPU", root.group(2))
                self.roots.append(cpu)
                self.printed[cpu] = root.group(2).rpartition("-")[2]
                self.root_of[cpu] = cpu
                self.about[cpu] = root.group(3) or ""
                self._stack = [(-1, 0, cpu)]
        elif text.lstrip().startswith(("+ ", "CPU/")):
            self._hurt = True
        return True

    def _link(self, link: re.Match[str], part: Part) -> None:
        spaces, kind, gb_per_s, node_type, printed, about = link.groups()
        kind = "SYS" if kind == "QPI" else kind
        if part.cut or not self._stack:
            self._hurt = True
            return
        node, column = key(node_type, printed), len(spaces)
        while column <= self._stack[-1][0]:
            self._stack.pop()
        parent = self._stack[-1][2]
        self._indents.add(column)
        if len(self._stack) > 1:
            self._exact.add(column == self._stack[-1][1])
        odd = parent.type not in _PARENTS.get(kind, {parent.type}) or (kind == "NET") != (node_type == "NET")
        self._misplaced = self._misplaced or odd
        self._stack.append((column, link.start(4), node))
        self.branches.append(Branch(parent, kind, float(gb_per_s), node))
        if kind in ("PCI", "LOC", "NET"):
            self.root_of.setdefault(node, self._stack[0][2])
            self.printed.setdefault(node, printed.rpartition("-")[2])
        if node_type == "PCI" and about:
            self.about[node] = about
        if node_type == "GPU" and kind in ("PCI", "LOC") and (about or "").isdecimal():
            self.ranks[node] = int((about or "0")[:9])

    def close(self) -> None:
        """Find out whether the tree is whole and placed."""
        roots = set(self.roots)
        joins = [b for b in self.branches if b.type == "SYS"]
        odd = any(b.node == b.parent or b.node not in roots for b in joins)
        if odd or len(roots) < len(self.roots):  # the line of a CPU is lost, so its nodes count to another
            self._hurt = True
            self.root_of = {}
        deep = any(b.node.type == "PCI" or b.type in ("NET", "NVL", "XGMI", "C2C", "LOC") for b in self.branches)
        flat = deep and len(self._indents) == 1
        self.whole = self.whole and not self._hurt and bool(roots)
        self.placed = self.whole and not flat and not self._misplaced and len(self._exact) < 2


def system(session: Session) -> System | None:
    """Return the first tree that a session printed, whole or not; None where there is none."""
    parts = iter(session.parts)
    for part in parts:
        if title := _TITLE.search(part.text):
            total_bw = None if title.group(2) is None else float(title.group(2))
            tree = System(part.line, float(title.group(1)), total_bw)
            for below in parts:
                if not tree.take(below):
                    break
            tree.close()
            return tree
    return None


def paths(session: Session) -> dict[tuple[Key, Key], Path]:
    """Return the cells of the path matrix. Of a cell printed twice (a NIC listed twice) the first counts."""
    cells: dict[tuple[Key, Key], Path] = {}
    for part in session.parts:
        text = part.text.strip()
        row = _ROW.match(text) if "/" in text[:12] else None
        if row is None:
            continue
        source = key(row.group(1), row.group(2))
        for cell in _PATH.finditer(text, row.end()):
            kind, printed, hops, gb_per_s, code = cell.groups()
            cells.setdefault((source, key(kind, printed)), Path(int(hops), float(gb_per_s), code))
    return cells


def searches(session: Session) -> list[Search]:
    """Return the patterns that a session printed with all their channels."""
    patterns: list[Search] = []
    is_open = False
    for part in session.parts:
        text = part.text.strip()
        if match := _PATTERN.match(text):
            *counts, intra, inter, kind, kind_inter, same = match.groups()
            pattern, crossnic, nchannels, same = (int(group[:6]) for group in (*counts, same))
            kind = None if kind.isdecimal() else kind
            search = Search(pattern, crossnic, nchannels, float(intra), float(inter), kind, kind_inter, same, ())
            patterns.append(search)
            is_open = True
        elif is_open and (row := _CHANNEL.match(text)):
            channels = patterns[-1].channels
            is_open = not part.cut and int(row.group(1)[:6]) == len(channels)
            if is_open:
                patterns[-1] = patterns[-1]._replace(channels=(*channels, tuple(row.group(2).split())))
    return patterns


@lru_cache(maxsize=100_000)
def key(kind: str, printed: str) -> Key:
    """Return the node that a printed type and id name: `GPU/0-3000`, `GPU/3000`, `NVS/0-0-0`."""
    *systems, own = printed.lower().split("-")
    return Key(kind, "-".join(systems).lstrip("0") or "0", own.lstrip("0") or "0")


class Tree:
    """Paths through a system whose lines are whole and placed, and their codes by NCCL's rules; of any other, none."""

    def __init__(self, system: System | None) -> None:
        self.branches: list[Branch] = list(dict.fromkeys(system.branches)) if system and system.placed else []
        self.up: dict[Key, tuple[Key, float]] = {}
        self.holders: dict[Key, list[Key]] = {}
        self._fast: dict[Key, dict[Key, str]] = {}
        for branch in self.branches:
            if branch.type in ("PCI", "LOC"):
                self.up.setdefault(branch.node, (branch.parent, branch.gb_per_s))
            elif branch.type == "NET":
                self.holders.setdefault(branch.node, []).append(branch.parent)
            elif branch.type in FAST:
                self._fast.setdefault(branch.parent, {})[branch.node] = branch.type

    @cached_property
    def board_gpu(self) -> dict[Key, Key]:
        """The GPU of each board (DEV) that holds one; a board with several stays a device of its own."""
        placed = [(board, gpu) for gpu, (board, _) in self.up.items() if gpu.type == "GPU" and board.type == "DEV"]
        counts = Counter(board for board, _ in placed)
        return {board: gpu for board, gpu in placed if counts[board] == 1}

    def path_up(self, node: Key) -> list[tuple[Key, float]]:
        """Return the nodes above a node with GB/s of the link to each, up to the CPU."""
        path: list[tuple[Key, float]] = []
        while node in self.up and len(path) < 50:
            node, gb_per_s = self.up[node]
            path.append((node, gb_per_s))
        return path

    def code(self, a: Key, b: Key) -> str | None:
        """Return the code of a GPU and another GPU or NET; None where the tree does not hold both."""
        paths = [self._nodes_up(a), self._nodes_up(b)]
        if not all(path and path[-1].type == "CPU" for path in paths):
            return None
        reach_a, reach_b = self._reach(a), self._reach(b)
        shared = (node for node in reach_a if node in reach_b and node.type == "NVS")
        if (fast := b if b in reach_a else next(shared, None)) is not None:
            return reach_a[fast]
        meet = next((node for node in paths[0] if node in paths[1]), None)
        if meet is None or meet.type == "CPU":
            return "SYS" if meet is None else "PHB"
        return "PIX" if paths[0].index(meet) == 1 and paths[1].index(meet) == 1 else "PXB"

    def _nodes_up(self, node: Key) -> list[Key]:
        """Return the nodes from a device on: a NET stands on its NIC, a GPU on its board."""
        if node.type == "NET":
            if len(holders := set(self.holders.get(node, ()))) != 1:
                return []
            node = holders.pop()
        nodes = [node, *(above for above, _ in self.path_up(node))]
        return nodes[1:] if len(nodes) > 1 and nodes[1] in self.board_gpu else nodes

    def _reach(self, node: Key) -> dict[Key, str]:
        """Return the nodes that a GPU, or the board it is alone on, reaches over one NVLink or xGMI, with codes."""
        board = self.up.get(node, (node, 0.0))[0]
        ends = {**self._fast.get(node, {}), **(self._fast.get(board, {}) if board in self.board_gpu else {})}
        return {self.board_gpu.get(end, end): code for end, code in ends.items()}
