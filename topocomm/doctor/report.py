"""What the doctor prints."""

from __future__ import annotations

import platform
import re
import textwrap
from collections.abc import Sequence

from topocomm.bench.facts import processor, versions
from topocomm.doctor.finding import Environment, Finding
from topocomm.topology.model import Topology

WIDTH = 98
INDENT = 21
PREFIXES = ("TOPOCOMM_", "OMPI_", "PRTE_", "PMI", "MPI4PY_", "NCCL_", "CUDA_VISIBLE")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|URI", re.IGNORECASE)
LEVELS = ("FAIL", "warn", "info", "ok")


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


def report_text(topology: Topology | None, environment: Environment, library: str | None) -> str:
    """Versions, variables and the machine, to be pasted into a report; values that may be secret are left out."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    lines = ["", "Versions", *(f"  {name} {text}" for name, text in versions().items())]
    lines += [f"  {library}"] * (library is not None) + [f"  {system}, {processor() or 'processor not named'}"]
    names = sorted(name for name in environment if name.startswith(PREFIXES))
    lines += ["", "Environment of rank 0", *(f"  {name}={_shown(name, environment[name])}" for name in names)]
    if topology is not None:
        sizes = f"{len(topology.devices)} devices, {len(topology.links)} links"
        lines += ["", "Topology", f"  {topology.name} ({topology.source}), {sizes}", f"  digest {topology.digest}"]
    return "\n".join(lines) + "\n"


def _shown(name: str, value: str) -> str:
    return "(not shown)" if SECRET.search(name) else value
