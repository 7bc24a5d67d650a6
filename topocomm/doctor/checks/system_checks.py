"""Checks of what was read, memory between ranks, how a process's end is noticed, the clock, and variables."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from pathlib import Path

from topocomm.doctor.finding import Environment, Finding, Level
from topocomm.errors import TopocommError
from topocomm.execute.device.device_library import (
    CONNECTIONS,
    DEFAULT_CONNECTIONS,
    FEWEST_CONNECTIONS,
    FOR_THREADS,
    MODULE_LOADING,
    MOST_CONNECTIONS,
)
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
DRIVER = Path("/dev/nvidiactl")
"""Device file of NVIDIA's driver, present in containers too."""
MODES = ("LAZY", "EAGER")
PROBE_BYTES = 4096
LEAST_SHM_BYTES = 256 << 20
MIB = 1 << 20
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


def check_cuda(environment: Environment = os.environ, driver: Path = DRIVER) -> list[Finding]:
    """Check when kernels are loaded and how many queues a GPU has; empty without NVIDIA's driver."""
    if not driver.exists():
        return []
    return [_modules(environment.get(MODULE_LOADING)), _queues(environment.get(CONNECTIONS))]


def _modules(value: str | None) -> Finding:
    check = "CUDA modules"
    remedy = f"where ranks are threads: export {MODULE_LOADING}={FOR_THREADS[MODULE_LOADING]} before the program starts"
    if value is not None and value not in MODES:
        return Finding("warn", check, f"{MODULE_LOADING}={value}: CUDA knows {' and '.join(MODES)}", remedy)
    if value == FOR_THREADS[MODULE_LOADING]:
        return Finding("ok", check, f"{MODULE_LOADING}={value}: kernels of libraries are loaded when CUDA starts")
    text = (
        f"{MODULE_LOADING} is {value or 'not set'}: a kernel is loaded when it is first launched, and that waits for "
        "the GPU. One process a rank needs nothing else; where ranks are threads, one may be awaited forever"
    )
    return Finding("info", check, text, remedy)


def _queues(value: str | None) -> Finding:
    check = "CUDA queues"
    remedy = f"where ranks share a GPU: export {CONNECTIONS}={FOR_THREADS[CONNECTIONS]} before the program starts"
    number = DEFAULT_CONNECTIONS if value is None else int(value) if value.isdecimal() else 0
    if not FEWEST_CONNECTIONS <= number <= MOST_CONNECTIONS:
        known = f"CUDA takes {FEWEST_CONNECTIONS} to {MOST_CONNECTIONS}"
        return Finding("warn", check, f"{CONNECTIONS}={value}: {known}", remedy)
    if number == MOST_CONNECTIONS:
        return Finding("ok", check, f"{CONNECTIONS}={value}")
    text = (
        f"{CONNECTIONS} is {value or 'not set'}: {plural(number, 'queue')} from a process to a GPU. "
        "One rank a GPU needs no more; where threads share one, a kernel may stand behind another's that waits for its "
        "rank"
    )
    return Finding("info", check, text, remedy)


def check_shared_memory(proc: Path = Path("/proc")) -> Finding:
    """Check that processes can map one anonymous memory file, which they find through /proc."""
    lost = "ranks of a host exchange messages"
    if not hasattr(os, "memfd_create"):
        return Finding("warn", "shared memory", f"this system has no memfd_create: {lost}", "run on Linux")
    try:
        file = os.memfd_create("topocomm-doctor")
    except OSError as error:
        text = f"memfd_create fails ({error.strerror}): {lost}"
        return Finding("warn", "shared memory", text, "allow memfd_create in the container's seccomp profile")
    try:
        os.posix_fallocate(file, 0, PROBE_BYTES)
        with open(proc / str(os.getpid()) / "fd" / str(file), "r+b") as other:
            mmap.mmap(other.fileno(), PROBE_BYTES).close()
    except OSError as error:
        text = f"a memory file cannot be opened through {proc} ({error.strerror}): {lost}"
        return Finding(
            "warn", "shared memory", text, "mount -t proc proc /proc, in the namespace that all ranks are in"
        )
    finally:
        os.close(file)
    return Finding("ok", "shared memory", "memory files can be made and mapped")


def check_peer_memory(proc: Path = Path("/proc")) -> Finding | None:
    """Check that a process may read another one's memory, as far as one alone can tell; None without compiled code."""
    from topocomm.execute.transports.cross_memory import read_error

    check, lost = "peer memory", "long values that are only moved are copied twice within a host"
    try:
        error = read_error()
    except ImportError:
        return None
    if error:
        text = f"process_vm_readv fails ({os.strerror(error)}): {lost}"
        return Finding("info", check, text, "allow process_vm_readv in the container's seccomp profile")
    try:
        scope = (proc / "sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    if scope != "0":
        text = f"kernel.yama.ptrace_scope is {scope}, so processes do not read each other's memory: {lost}"
        return Finding(
            "info", check, text, "where users trust each other's programs: sysctl kernel.yama.ptrace_scope=0"
        )
    return Finding("ok", check, "processes may read each other's memory: long values are copied once within a host")


def check_process_watch() -> Finding:
    """Check that the kernel reports at once that a process has ended (pidfd)."""
    lost = "the end of a rank is noticed by MPI, or at the deadline"
    if not hasattr(os, "pidfd_open"):
        return Finding("info", "process watch", f"no pidfd_open: {lost}", "Linux 5.3 or newer has it")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        text = f"pidfd_open fails ({error.strerror}): {lost}"
        return Finding("info", "process watch", text, "allow pidfd_open in the container's seccomp profile")
    return Finding("ok", "process watch", "the end of a rank of this host is noticed at once")


def check_dev_shm(path: Path = Path("/dev/shm"), *, free_bytes: int | None = None) -> Finding:
    """Check the room in /dev/shm, where MPI and torch keep shared memory; topocomm needs none of it."""
    if free_bytes is None:
        try:
            free_bytes = shutil.disk_usage(path).free
        except OSError:
            return Finding("info", "/dev/shm", f"{path} is not there; MPI may fall back to files in TMPDIR")
    if free_bytes < LEAST_SHM_BYTES:
        text = f"{free_bytes // MIB} MiB free: MPI or torch may run out of it"
        return Finding("warn", "/dev/shm", text, "docker run --shm-size=1g ...")
    return Finding("ok", "/dev/shm", f"at least {LEAST_SHM_BYTES // MIB} MiB free")


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
