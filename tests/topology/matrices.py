"""Renders `nvidia-smi topo -m` texts from facts, in the styles of drivers and of copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

LEGENDS = {
    "today": """
Legend:

  X    = Self
  SYS  = path over PCIe and the link between NUMA nodes
  NODE = path over PCIe and the link between host bridges of one NUMA node
  PHB  = path over PCIe and a host bridge
  PXB  = path over several PCIe bridges
  PIX  = path over one PCIe bridge at most
  NV#  = path over a bonded set of # NVLinks
""",
    "2016": """
Legend:

  X   = Self
  SOC  = path over PCIe and the link between sockets
  PHB  = path over PCIe and a host bridge
  PXB  = path over several PCIe switches
  PIX  = path over one PCIe switch
  NV#  = path over a bonded set of # NVLinks
""",
}


@dataclass
class Facts:
    """What a text says: device ids in column order, codes by pair in that order, affinity by GPU."""

    names: list[str]
    codes: dict[tuple[str, str], str]
    cpu: dict[str, str] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)
    nic_names: dict[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> list[str]:
        return [name for name in self.names if name.startswith("GPU")]

    def code(self, a: str, b: str) -> str:
        if a == b:
            return "X"
        return self.codes.get((a, b)) or self.codes[b, a]


def facts_of(gpus: int, code, *, nics: list[str] | None = None, **columns) -> Facts:
    """Facts with `code(a, b)` for every pair; a and b are numbers in column order."""
    names = [f"GPU{i}" for i in range(gpus)] + (nics or [])
    codes = {(names[i], names[j]): code(i, j) for i, j in combinations(range(len(names)), 2)}
    return Facts(names, codes, **columns)


def render_tabs(facts: Facts, *, columns: int = 2, legend: str | None = "today", ansi: str = "") -> str:
    """As drivers print: tabs, ` X ` on the diagonal, two tabs before the GPU NUMA ID.

    `columns` is how many affinity columns there are; `ansi` is "esc" or "bare" for an underlined header.
    """
    tails = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][:columns]
    start, end = {"": ("", ""), "esc": ("\x1b[4m", "\x1b[0m"), "bare": ("[4m", "[0m")}[ansi]
    lines = ["\t" + start + "\t".join([*facts.names, *tails]) + end]
    for name in facts.names:
        cells = [" X " if other == name else facts.code(name, other) for other in facts.names]
        if name in facts.gpus and columns:
            numa = facts.numa.get(name, "")
            cells += [facts.cpu.get(name, ""), numa if numa != "N/A" else "\tN/A", "\tN/A"][:columns]
        elif columns:
            cells += [""]
        lines.append("\t".join([name, *cells]))
    return "\n".join(lines) + "\n" + _legends(facts, legend)


def render_blanks(facts: Facts, *, columns: int = 2, legend: str | None = "today", width: int = 8) -> str:
    """As a terminal copies: cells padded to a width, blank affinity cells blank."""
    width = max(width, *(len(name) + 1 for name in facts.names))
    tails = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][:columns]
    lines = [" " * width + "".join(name.ljust(width) for name in facts.names) + "".join(t.ljust(16) for t in tails)]
    for name in facts.names:
        cells = [" X" if other == name else facts.code(name, other) for other in facts.names]
        line = name.ljust(width) + "".join(cell.ljust(width) for cell in cells)
        if name in facts.gpus:
            values = [facts.cpu.get(name, ""), facts.numa.get(name, ""), "N/A"][:columns]
            line += "".join(value.ljust(16) for value in values)
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n" + _legends(facts, legend)


def _legends(facts: Facts, legend: str | None) -> str:
    text = LEGENDS[legend] if legend else ""
    if facts.nic_names:
        text += "\nNIC Legend:\n\n" + "".join(f"  {nic}: {name}\n" for nic, name in facts.nic_names.items())
    return text
