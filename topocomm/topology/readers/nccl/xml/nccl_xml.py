"""NCCL's topology XML, as NCCL_TOPO_DUMP_FILE writes it and NCCL_TOPO_FILE reads it; also RCCL's, version 2.

Templates of clouds, which leave to NCCL what it finds on the machine, are read for what they say.
"""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import PurePath

from topocomm.topology.inference import nccl_paths
from topocomm.topology.links import PATH_LATENCY_US
from topocomm.topology.model import Pair, Topology
from topocomm.topology.readers.nccl.xml.nccl_xml_devices import Notes, read_system
from topocomm.topology.readers.nccl.xml.nccl_xml_fabric import fabric
from topocomm.topology.readers.nccl.xml.nccl_xml_facts import facts
from topocomm.topology.readers.nccl.xml.nccl_xml_graph import Graph
from topocomm.topology.readers.plain import safe_xml

SOURCE = "NCCL topology XML"

_SYSTEM = re.compile(r"<system\b[^<>]{0,500}>")
_CPU = re.compile(r"<cpu\b[^<>]{0,500}\bnumaid\s*=")
_ESCAPE = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")


def matches(text: str) -> bool:
    """True if the text holds a `<system>` with a version or processors, or processors that lost it."""
    text = _unescaped(text)
    found = _SYSTEM.search(text)
    return (found is not None and ("version" in found[0] or "<cpu" in text)) or _CPU.search(text) is not None


def read(text: str, name: str) -> Topology:
    """The host, or the hosts of one NVLink domain, that a file describes.

    PCIe has the nominal GB/s of its speed and width, NVLink and xGMI that of the generation that `sm` or `gcn` tells.
    Pair codes are derived by NCCL's rules (`nccl_paths`). GPUs are numbered by `dev`, or in the order of the file where
    it has no `<gpu>`.

    Args:
        text: The file, also with a prompt or other lines around it; only the first `<system>` counts.
        name: Its file name, for messages; its stem names the topology.

    Raises:
        TopologyError: It is cut short or damaged, another version, or contradicts itself; names file and line.
    """
    document, second = _document(text)
    root = safe_xml.parse(document, name)
    notes = Notes(name)
    system = read_system(root, name, notes)
    if second is not None:
        place = safe_xml.Element("system", {}, second)
        notes.add("a second <system> starts here; only the first is read", place, "several files")
    graph = Graph(system, name, notes)
    links = fabric(system, graph.numa_id, name, notes)
    stem = PurePath(name).stem
    bare = Topology(stem, SOURCE, (*graph.devices, *links.devices), (*links.links, *graph.links))
    virtual = {nic.id: {graph.numa_id(cpu) for cpu in nic.cpus} for nic in system.nics if len(nic.cpus) > 1}
    home = {gpu.id: graph.numa_id(gpu.pci.cpu) for gpu in system.gpus}
    pairs = tuple(
        _virtual_pair(pair, home[pair.a] in virtual[pair.b]) if pair.b in virtual else pair
        for pair in nccl_paths.pairs(bare)
    )
    found = facts(system, links, pairs)
    if graph.slow_ports:
        found["slow_ports"] = graph.slow_ports
    if not system.gpus:
        notes.add("no GPU: nothing has a <gpu> or a GPU's class; NCCL finds out on the machine", root, "<system>")
    return replace(bare, pairs=pairs, facts=found, warnings=notes.warnings())


def _unescaped(text: str) -> str:
    """A copy of a web page's source has its angle brackets spelled out."""
    return html.unescape(text) if "<" not in text and "&lt;system" in text else text


def _document(text: str) -> tuple[str, int | None]:
    """The first `<system>` alone, on its own lines, and the line of a second one.

    Comments, terminal escapes, and what stands around it are gone.
    """
    text = _without_comments(_ESCAPE.sub("", _unescaped(text)))
    found = _SYSTEM.search(text)
    if found is None:
        return text, None
    start, close = found.start(), "</system>"
    end = found.end() if found[0].endswith("/>") else text.find(close, found.end()) + len(close)
    if end < found.end():
        end = len(text)
    column = start - (text.rfind("\n", 0, start) + 1)
    again = _SYSTEM.search(text, end)
    second = None if again is None else text.count("\n", 0, again.start()) + 1
    return "\n" * text.count("\n", 0, start) + " " * column + text[start:end], second


def _without_comments(text: str) -> str:
    """Comments become their line ends: one may hold a `<system>` of its own, or hyphens that XML does not allow."""
    parts = []
    done = 0
    while (start := text.find("<!--", done)) >= 0 and (end := text.find("-->", start)) >= 0:
        parts += [text[done:start], "\n" * text.count("\n", start, end)]
        done = end + 3
    return "".join([*parts, text[done:]])


def _virtual_pair(pair: Pair, near: bool) -> Pair:
    """A NIC without PCI device that is listed under several processors is near to the GPUs of each."""
    code = "PHB" if near else "SYS"
    return pair._replace(code=code, latency_us=PATH_LATENCY_US[code], latency_us_source="assumed")
