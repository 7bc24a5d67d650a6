"""What the doctor prints."""

from __future__ import annotations

import platform
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from topocomm.bench.report.facts import processor, versions
from topocomm.doctor.anonymous import OF_WHAT, Anonymous
from topocomm.doctor.finding import Environment, Finding
from topocomm.doctor.pair_matrix import pair_matrices
from topocomm.doctor.registered_checks import Section
from topocomm.topology.draw.topology_text import render, to_ascii
from topocomm.topology.model import Topology

WIDTH = 98
INDENT = 21
FENCE = "```"
PREFIXES = ("TOPOCOMM_", "OMPI_", "PRTE_", "PMI", "MPI4PY_", "NCCL_", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_VISIBLE")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|URI", re.IGNORECASE)
LEVELS = ("FAIL", "warn", "info", "ok")


class Here(NamedTuple):
    """What a report says of the process that makes it; a dump's report says nothing of it."""

    environment: Environment
    library: str | None
    """The MPI library."""


def findings_text(findings: Sequence[Finding]) -> str:
    """A line per finding, its remedy below, and the count of each level at the end."""
    lines: list[str] = []
    for level, check, text, remedy in findings:
        head = f"{level:5} {check:15}"
        lines += textwrap.wrap(f"{head}{text}", WIDTH, subsequent_indent=" " * INDENT, break_on_hyphens=False)
        if remedy:
            lines += textwrap.wrap(
                f"-> {remedy}",
                WIDTH,
                initial_indent=" " * INDENT,
                subsequent_indent=" " * (INDENT + 3),
                break_on_hyphens=False,
            )
    counts = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    lines += ["", ", ".join(f"{count} {level}" for level, count in counts.items() if count)]
    return "\n".join(lines) + "\n"


def ways_section(ways: Sequence[str]) -> str:
    """The section on transports."""
    return "".join(f"{line}\n" for line in ("", "Which transport an allreduce of float32 sums takes here", *ways))


def section_text(title: str, lines: Sequence[str]) -> str:
    """What a package has the doctor say: a title and its lines, cut to the width with what goes on further in."""
    cut: list[str] = []
    for line in lines:
        margin = " " * (len(line) - len(line.lstrip()))
        cut += textwrap.wrap(
            line, WIDTH, subsequent_indent=f"{margin}    ", drop_whitespace=True, break_on_hyphens=False
        )
    return "".join(f"{line}\n" for line in ("", title, *cut))


def report_text(
    findings: Sequence[Finding],
    topology: Topology | None,
    names: Anonymous,
    *,
    here: Here | None = None,
    ways: Sequence[str] = (),
    sections: Sequence[Section] = (),
) -> str:
    """One block of plain text to paste into a bug report: what was found, on what, without names and addresses.

    Args:
        findings: What the doctor found.
        topology: The machine or job; None where it could not be read.
        names: What is left out.
        here: Of the process, where the report is about this machine.
        ways: Lines on transports.
        sections: What packages say.
    """
    head = f"Anonymised: it has no {OF_WHAT}. Device names, versions and settings are left: read it before you post it."
    parts = ["topocomm doctor --report", *textwrap.wrap(head, WIDTH), "", *_versions(here, names.text)]
    if here is not None:
        parts += ["", *_environment(here.environment, names.text)]
    told = [Finding(one.level, one.check, names.text(one.text), names.text(one.remedy)) for one in findings]
    parts += ["", "Findings", findings_text(_renamed(told, topology, names)).rstrip("\n")]
    if ways:
        parts.append(names.text(ways_section(ways)).rstrip("\n"))
    parts += [names.text(section_text(*section)).rstrip("\n") for section in sections]
    if topology is not None:
        plain = names.topology(topology)
        screen = render(plain, next_command="").partition("\nNext:")[0]
        parts += ["", "Topology", screen.rstrip("\n"), f"digest {topology.digest[:12]}"]
        matrix = pair_matrices(plain)
        parts += ["", "Pairs", *matrix] if matrix else []
    body = to_ascii("\n".join(parts)).replace(FENCE, "'''")
    return f"{FENCE}text\n{body}\n{FENCE}\n"


def _renamed(findings: Sequence[Finding], topology: Topology | None, names: Anonymous) -> list[Finding]:
    """The findings that begin with the topology's name, which is a file's or a host's, with its other name."""
    if topology is None:
        return list(findings)
    said, new = names.text(topology.name), names.machine(topology)
    return [
        one._replace(text=new + one.text.removeprefix(said))
        if one.check == "topology" and one.text.startswith((f"{said} (", f"{said}: "))
        else one
        for one in findings
    ]


def _versions(here: Here | None, plain: Callable[[str], str]) -> list[str]:
    lines = ["Versions", *(f"  {name} {text}" for name, text in versions().items())]
    if here is None:  # what runs here says nothing of the machine of a dump
        return lines
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    lines += [f"  {plain(here.library)}"] if here.library is not None else []
    return [*lines, f"  {plain(system)}, {processor() or 'processor not named'}"]


def _environment(environment: Environment, plain: Callable[[str], str]) -> list[str]:
    names = sorted(name for name in environment if name.startswith(PREFIXES))
    shown = (f"{name}={'(not shown)' if SECRET.search(name) else plain(environment[name])}" for name in names)
    return ["Environment of rank 0", *(f"  {' '.join(line.split())}" for line in shown)]
