"""Texts that the doctor prints: findings, sections, and the anonymised report."""

from __future__ import annotations

import platform
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

from topocomm.bench.facts import processor, versions
from topocomm.doctor.anonymous import OF_WHAT, Anonymous
from topocomm.doctor.checks.host_views import Host, hosts_of
from topocomm.doctor.finding import Environment, Finding, Level
from topocomm.topology.draw.names import ranges
from topocomm.topology.draw.topology_text import render, to_ascii
from topocomm.topology.model import Topology

WIDTH = 80
"""Columns where no terminal says how many it has."""
REPORT_WIDTH = 98
"""Columns of a report, which is pasted into a web page."""
INDENT = 21
FENCE = "```"
PREFIXES = ("TOPOCOMM_", "OMPI_", "PRTE_", "PMI", "MPI4PY_", "NCCL_", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_VISIBLE")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|URI", re.IGNORECASE)
LEVELS: tuple[Level, ...] = ("FAIL", "warn", "info", "ok")
GROUP = "topocomm.doctor"
"""Entry points of this group lead to modules with `sections() -> list of (title, lines)`, below the findings."""
Section = tuple[str, Sequence[str]]


class Here(NamedTuple):
    """Facts of this process in a report; absent in the report of a dump."""

    environment: Environment
    library: str | None
    """The MPI library."""


def findings_text(findings: Sequence[Finding], width: int = WIDTH) -> str:
    """Return a line per finding with its remedy below, and the count of each level, in so many columns."""
    lines: list[str] = []
    for level, check, text, remedy in findings:
        head = f"{level:5} {check:15}"
        lines += _wrapped(f"{head}{text}", INDENT, width=width)
        if remedy:
            lines += _wrapped(f"-> {remedy}", INDENT + 3, " " * INDENT, width)
    counts = Counter(finding.level for finding in findings)
    lines += ["", ", ".join(f"{counts[level]} {level}" for level in LEVELS if counts[level])]
    return "\n".join(lines) + "\n"


def ways_section(ways: Sequence[str]) -> str:
    """Return the section on transports."""
    return "".join(f"{line}\n" for line in ("", "Which transport an allreduce of float32 sums takes here", *ways))


def _wrapped(text: str, indent: int, first_indent: str = "", width: int = WIDTH) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first_indent, subsequent_indent=" " * indent, break_on_hyphens=False
    )


def registered_sections() -> list[Section]:
    """Return the sections of all packages, with a line in place of one that cannot be loaded."""
    sections: list[Section] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            sections += entry.load().sections()
        except (ImportError, AttributeError, OSError, RuntimeError) as error:  # what broken drivers raise, too
            sections.append((entry.name, [f"{entry.value} has nothing to say: {type(error).__name__}: {error}"]))
    return sections


def section_text(title: str, lines: Sequence[str], width: int = WIDTH) -> str:
    """Return a package's section: a title and its lines, wrapped below their last column or deeper."""
    cut = [part for line in lines for part in _wrapped(line, _last_column(line, width), width=width)]
    return "".join(f"{line}\n" for line in ("", title, *cut))


def _last_column(line: str, width: int) -> int:
    """Where the rest of a wrapped line begins: below its last column if that leaves a third of the width."""
    columns = [match.end() for match in re.finditer(r"\S {2,}(?=\S)", line)]
    return columns[-1] if columns and 3 * columns[-1] <= 2 * width else len(line) - len(line.lstrip()) + 4


def report_text(
    findings: Sequence[Finding],
    topology: Topology | None,
    names: Anonymous,
    width: int = REPORT_WIDTH,
    *,
    here: Here | None = None,
    ways: Sequence[str] = (),
    sections: Sequence[Section] = (),
) -> str:
    """Return one block of anonymised text to paste into a bug report.

    `topology` is None if it could not be read, `here` if the report is about a dump; `ways` are lines on transports.
    Findings are in `width` columns.
    """
    plain = names.text
    head = f"Anonymised: it has no {OF_WHAT}. Device names, versions and settings are left: read it before you post it."
    parts = ["topocomm doctor --report", *textwrap.wrap(head, width), "", "Versions"]
    parts += [f"  {name} {text}" for name, text in versions().items()]
    if here is not None:  # what runs here says nothing of the machine of a dump
        parts += [f"  {plain(here.library)}"] if here.library is not None else []
        system = plain(f"{platform.system()} {platform.release()} {platform.machine()}")
        parts.append(f"  {system}, {processor() or 'processor not named'}")
        shown = sorted(name for name in here.environment if name.startswith(PREFIXES))
        values = [f"{name}={'(not shown)' if SECRET.search(name) else plain(here.environment[name])}" for name in shown]
        parts += ["", "Environment of rank 0", *(f"  {' '.join(line.split())}" for line in values)]
    plain_findings = [Finding(f.level, f.check, plain(f.text), plain(f.remedy)) for f in findings]
    parts += ["", "Findings", findings_text(_renamed(plain_findings, topology, names), width).rstrip("\n")]
    if ways:
        parts.append(plain(ways_section(ways)).rstrip("\n"))
    parts += [plain(section_text(*section)).rstrip("\n") for section in sections]
    if topology is not None:
        own = names.topology(topology)
        screen = render(own, next_command="").partition("\nNext:")[0]
        parts += ["", "Topology", screen.rstrip("\n"), f"digest {topology.digest[:12]}"]
        matrix = pair_matrices(own)
        parts += ["", "Pairs", *matrix] if matrix else []
    body = to_ascii("\n".join(parts)).replace(FENCE, "'''")
    return f"{FENCE}text\n{body}\n{FENCE}\n"


def _renamed(findings: list[Finding], topology: Topology | None, names: Anonymous) -> list[Finding]:
    """Replace the topology's name, a file's or a host's, where a finding begins with it."""
    if topology is None:
        return findings
    said, new = names.text(topology.name), names.machine(topology)
    return [
        one._replace(text=new + one.text.removeprefix(said))
        if one.check == "topology" and one.text.startswith((f"{said} (", f"{said}: "))
        else one
        for one in findings
    ]


MOST = 40
"""Limit of a table's columns, above the GPUs and NICs of any host."""
MOST_TABLES = 8
NO_CODE = "?"


def pair_matrices(topology: Topology) -> list[str]:
    """Return tables of pair codes in the form of `nvidia-smi topo -m`, one for all hosts that are alike.

    `--input` reads them again.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for host in hosts_of(topology):
        if host.gpus:
            alike.setdefault(tuple(_matrix(host)), []).append(host.name)
    lines: list[str] = []
    for own, names in list(alike.items())[:MOST_TABLES]:
        if len(topology.hosts) > 1:
            lines.append(f"{ranges(names)}:")
        lines += own
    if len(alike) > MOST_TABLES:
        lines.append(f"({len(alike) - MOST_TABLES} more kinds of hosts)")
    return lines


def _matrix(host: Host) -> list[str]:
    devices = [*host.gpus, *host.nics]
    shown = devices[:MOST]
    names = [host.local(device.id) for device in shown]
    numas = [("" if gpu.numa is None else str(gpu.numa)) for gpu in host.gpus]
    rows = [["", *names, *(["NUMA Affinity"] if any(numas) else [])]]
    for index, gpu in enumerate(host.gpus[:MOST]):
        codes = ["X" if gpu is other else host.codes.get((gpu.id, other.id), NO_CODE) for other in shown]
        rows.append([names[index], *codes, *([numas[index] or "N/A"] if any(numas) else [])])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(devices) > MOST:
        lines.append(f"({len(devices) - MOST} more GPUs and NICs)")
    named = ((host.local(nic.id), nic.name) for nic in host.nics)
    return lines + [f"{short}: {name}" for short, name in named if name and name != short]
