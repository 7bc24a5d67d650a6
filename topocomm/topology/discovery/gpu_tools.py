"""GPUs of this host from the drivers' tools: `nvidia-smi`, `amd-smi`, `rocm-smi`; NICs' figures from sysfs."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from topocomm.errors import TopologyError
from topocomm.topology.discovery.gpu_host import slot_facts
from topocomm.topology.discovery.pci_sysfs import PciBus, short_bus_id
from topocomm.topology.discovery.sysfs import find_nics
from topocomm.topology.model import Topology
from topocomm.topology.readers.nvidia import nvidia_smi

TOOL_TIMEOUT_S = 20.0
"""Limit of one call; `nvidia-smi` takes seconds on large machines, and hangs on broken ones."""

AMD_TOOLS = {"amd-smi": ("topology",), "rocm-smi": ("--showtopo",)}
"""Arguments with which each tool prints the topology."""
_QUERY = ("--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
_ROW = re.compile(r"\s*(\d{1,4})\s*,\s*([^,]*?)\s*,\s*([0-9A-Fa-f:.]+)\s*,\s*(.*?)\s*")


def nvidia_tool(tool: str, bus: PciBus, sysfs: Path) -> Topology:
    """Return the topology of `nvidia-smi topo -m`, with addresses and UUIDs where the tool prints them.

    Raises:
        TopologyError: The tool fails, or its output is not understood.
    """
    topology = nvidia_smi.read(run_tool([tool, "topo", "-m"]), "nvidia-smi topo -m")
    topology = replace(topology, source=nvidia_smi.SOURCE)
    try:
        rows = [row for line in run_tool([tool, *_QUERY]).splitlines() if (row := _ROW.fullmatch(line))]
    except TopologyError as error:  # drivers from before 2014 have no such query
        return _with_sysfs(
            replace(topology, warnings=(*topology.warnings, f"GPUs have no address: {error}")), bus, sysfs
        )
    rows_of = {f"GPU{row[1]}": row for row in rows}
    devices = tuple(
        d._replace(bus_id=short_bus_id(rows_of[d.id][3]), name=rows_of[d.id][4] or None) if d.id in rows_of else d
        for d in topology.devices
    )
    uuids = {name: row[2] for name, row in rows_of.items() if row[2] and name in topology.by_id}
    facts = {**topology.facts, **({"uuids": uuids} if uuids else {})}
    return _with_sysfs(replace(topology, devices=devices, facts=facts), bus, sysfs)


def amd_tool(name: str, tool: str, bus: PciBus, sysfs: Path) -> Topology:
    """Return the topology that a tool of AMD_TOOLS prints.

    Raises:
        TopologyError: The tool fails, or its output is not understood.
    """
    words = AMD_TOOLS[name]
    text = run_tool([tool, *words])
    reader: Any = import_module(f"topocomm.topology.readers.amd.{name.replace('-', '_')}")
    topology: Topology = reader.read(text, " ".join((name, *words)))
    if not topology.endpoints:
        raise TopologyError(f"`{' '.join((name, *words))}` shows no GPU")
    return _with_sysfs(topology, bus, sysfs)


def _with_sysfs(topology: Topology, bus: PciBus, sysfs: Path) -> Topology:
    """The topology with the addresses of NICs and the facts of slots and ports from sysfs."""
    nics = {nic.name: nic for nic in find_nics(sysfs)}

    devices = []
    for device in topology.devices:
        if device.kind == "nic" and device.bus_id is None and (own := nics.get(device.name or device.id)):
            device = device._replace(bus_id=own.bus_id)
        devices.append(device)
    facts = {**slot_facts(devices, list(nics.values()), bus), **topology.facts}
    return replace(topology, devices=tuple(devices), facts=facts)


def run_tool(command: list[str]) -> str:
    """Return the output of a tool.

    Raises:
        TopologyError: It cannot be started, fails, or takes longer than TOOL_TIMEOUT_S.
    """
    import subprocess

    words = " ".join([os.path.basename(command[0]), *command[1:]])
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TOOL_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
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
