"""Checks of the topology, the clock and the settings."""

from __future__ import annotations

import os
import time
from pathlib import Path

from topocomm.doctor.finding import Environment, Finding, Level
from topocomm.errors import TopocommError
from topocomm.execute.setup.settings import Settings
from topocomm.topology.draw.names import plural
from topocomm.topology.model import Topology

SETTINGS = ("CHECK", "TIMEOUT_S", "LOG", "CACHE_DIR", "RECORD_DIR", "TUNED_DIR")
COARSEST_CLOCK_S = 1e-6
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies")
SHOWN_WARNINGS = 12
CARRIED: tuple[tuple[str, Level, str], ...] = (
    ("No GPU (", "info", ""),
    ("No GPU used", "warn", "put the vendor's tool (nvidia-smi) on PATH, or give its output: --input FILE"),
    (
        "",
        "warn",
        "see what was read with `topocomm inspect`; a dump that is whole, or of another tool, says more, and topology "
        "JSON can be set right by hand",
    ),
)
"""(beginning, level, remedy) of the reader's warnings; the first that fits counts."""
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def check_topology(topology: Topology | TopocommError) -> list[Finding]:
    """Summarise the topology with its warnings, or the error of reading it."""
    if isinstance(topology, TopocommError):
        return [Finding("FAIL", "topology", str(topology), "topocomm inspect, or give --input FILE")]
    ends = topology.endpoints
    if not ends:
        text = f"{topology.name}: no endpoint, nothing to plan on"
        return [Finding("FAIL", "topology", text, "topocomm inspect --system dgx-h100 shows what is expected")]
    endpoints = plural(len(ends), f"{topology.by_id[ends[0]].kind} endpoint")
    text = f"{topology.name} ({topology.source}): {endpoints} on {plural(len(topology.hosts), 'host')}"
    findings = [Finding("ok", "topology", f"{text}, digest {topology.digest[:12]}")]
    for warning in topology.warnings[:SHOWN_WARNINGS]:
        _, level, remedy = next(kind for kind in CARRIED if warning.startswith(kind[0]))
        findings.append(Finding(level, "topology", warning, remedy))
    if len(topology.warnings) > SHOWN_WARNINGS:
        text = f"{len(topology.warnings) - SHOWN_WARNINGS} more warnings of the reader"
        findings.append(Finding("warn", "topology", text, "topocomm inspect --format json has all"))
    return findings


def check_visible_gpus(environment: Environment = os.environ) -> list[Finding]:
    """Find variables that hide GPUs."""
    findings = []
    for name in filter(environment.__contains__, GPU_VARIABLES):
        hidden = "the others are hidden from this rank" if environment[name].strip() else "all are hidden"
        findings.append(Finding("info", "GPUs", f"{name}={environment[name]}: {hidden}", f"unset {name}"))
    return findings


def check_clock(resolution_s: float | None = None, sysfs: Path = Path("/sys")) -> Finding:
    """Check that the clock is fine and fast enough to measure latencies."""
    if resolution_s is None:
        resolution_s = time.get_clock_info("perf_counter").resolution
    if resolution_s > COARSEST_CLOCK_S:
        text = f"its steps are {resolution_s * 1e6:g} us: latencies cannot be measured"
        return Finding("warn", "clock", text, "measure on another machine")
    try:
        source = (sysfs / "devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    except OSError:
        return Finding("ok", "clock", f"steps of {resolution_s * 1e9:g} ns")
    if source in SLOW_CLOCKS:
        text = f"clock source {source}: each look takes about a microsecond"
        return Finding("warn", "clock", text, "boot with clocksource=tsc, if the machine's is stable")
    return Finding("ok", "clock", f"steps of {resolution_s * 1e9:g} ns, clock source {source}")


def check_settings(environment: Environment = os.environ) -> list[Finding]:
    """Check that the variables TOPOCOMM_... are known and have valid values."""
    names = sorted(name for name in environment if name.startswith("TOPOCOMM_"))
    findings = []
    for name in names:
        if name.removeprefix("TOPOCOMM_") not in SETTINGS:
            known = ", ".join(f"TOPOCOMM_{word}" for word in SETTINGS)
            findings.append(Finding("warn", "settings", f"{name} is not known; known are {known}", f"unset {name}"))
    try:
        settings = Settings.from_environment(environment)
    except TopocommError as error:
        return [*findings, Finding("FAIL", "settings", str(error), f"unset {str(error).partition('=')[0]}")]
    record_dir = environment.get("TOPOCOMM_RECORD_DIR")
    folder = Path(record_dir or os.curdir)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if record_dir and not (folder.is_dir() and os.access(folder, os.W_OK)):
        text = f"TOPOCOMM_RECORD_DIR={record_dir} cannot be written: failures leave no record"
        findings.append(Finding("warn", "settings", text, f"mkdir -p {record_dir}"))
    if findings:
        return findings
    values = ", ".join(f"{name}={environment[name]}" for name in names) or "defaults"
    return [Finding("ok", "settings", f"{values}; every wait ends after {settings.timeout_s:g} s")]
