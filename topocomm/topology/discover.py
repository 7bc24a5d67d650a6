"""The topology of this host: from `nvidia-smi` where it is there, else from sysfs."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from topocomm.errors import TopologyError
from topocomm.topology.merge import merge_hosts
from topocomm.topology.model import Topology
from topocomm.topology.readers import nvidia_smi
from topocomm.topology.sysfs import cpu_host

__all__ = ["discover", "merge_hosts"]

TOOL_TIMEOUT_S = 20.0
"""`nvidia-smi` takes seconds on large machines whose driver is not kept loaded, and for ever on broken ones."""

_DISPLAY_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_GPU_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}


def discover(*, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> Topology:
    """The topology of this host: its GPUs if `nvidia-smi` shows them, else its cores, NUMA nodes and NICs.

    Without a GPU, the first warning says what was looked at.

    Args:
        sysfs: Root of sysfs; another one for tests.
        proc: Root of procfs.
    """
    host = os.uname().nodename if hasattr(os, "uname") else "localhost"
    tool = shutil.which("nvidia-smi")
    trouble = ""
    if tool:
        try:
            return _gpu_host(tool, host)
        except TopologyError as error:
            trouble = str(error)
    usable = _usable_cpus()
    found = cpu_host(sysfs, host=host, usable=usable)
    return replace(found, warnings=(_no_gpu(trouble, sysfs, proc), *found.warnings))


def _gpu_host(tool: str, host: str) -> Topology:
    text = run_tool([tool, "topo", "-m"])
    found = nvidia_smi.read(text, "nvidia-smi topo -m")
    return replace(
        found, name=host, source=nvidia_smi.SOURCE, devices=tuple(d._replace(host=host) for d in found.devices)
    )


def run_tool(command: list[str]) -> str:
    """What a tool prints.

    Raises:
        TopologyError: It cannot be started, fails, or takes longer than TOOL_TIMEOUT_S.
    """
    import subprocess

    words = " ".join([os.path.basename(command[0]), *command[1:]])
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TOOL_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TopologyError(f"`{words}` gave no answer in {TOOL_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise TopologyError(f"`{words}` cannot be started: {error.strerror}") from None
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        said = (text + done.stderr.decode("utf-8", "replace")).strip().splitlines()
        raise TopologyError(f"`{words}` failed with status {done.returncode}: {said[0] if said else 'no message'}")
    return text


def _usable_cpus() -> set[int]:
    """What cgroups and the affinity of this process leave it."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _no_gpu(trouble: str, sysfs: Path, proc: Path) -> str:
    """One line: what was looked at, and what was seen there."""
    seen = display_devices(sysfs)
    amd_tools = [name for name in ("amd-smi", "rocm-smi") if shutil.which(name)]
    if trouble:
        return f"No GPU used: {trouble}"
    if seen or amd_tools or (proc / "driver/nvidia").exists():
        facts = [f"{count} {vendor} display device(s) on PCI" for vendor, count in seen.items()]
        facts += ["/proc/driver/nvidia is there"] * (proc / "driver/nvidia").exists()
        facts += [f"{name} is there, which this version does not read" for name in amd_tools]
        return f"No GPU used: nvidia-smi is not on PATH; {'; '.join(facts)}"
    return "No GPU (looked at nvidia-smi, amd-smi, rocm-smi, /proc/driver/nvidia, PCI)"


def display_devices(sysfs: Path) -> dict[str, int]:
    """How many display or accelerator devices of GPU vendors the PCI bus shows, by vendor."""
    found: dict[str, int] = {}
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        try:
            kind, vendor = ((device / name).read_text().strip() for name in ("class", "vendor"))
        except (OSError, ValueError):
            continue
        if kind[:6] in _DISPLAY_CLASSES and vendor in _GPU_VENDORS:
            found[_GPU_VENDORS[vendor]] = found.get(_GPU_VENDORS[vendor], 0) + 1
    return found
