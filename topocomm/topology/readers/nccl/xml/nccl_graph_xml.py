"""NCCL's graph file, written for NCCL_GRAPH_DUMP_FILE and read from NCCL_GRAPH_FILE.

The file holds the rings and trees that NCCL chose inside one machine, not the machine: there are devices and facts, but
no links and no pairs. `<gpu dev>` is the CUDA device number, so GPU3 here is dev 3; ranks are not in the file.
`<net dev>` is the number of a network device among those that NCCL uses, called NET0 here. NCCL writes both in
hexadecimal (`0x7`, but a plain `0`) and reads them, as this reader does, in C notation.

Each of `facts["graphs"]` has `id`, `pattern`, `pattern_name`, `crossnic`, `nchannels`, `speedintra`, `speedinter`,
`latencyinter`, `typeintra`, `typeinter`, `samechannels`, `channels` and `nets`, without what the file leaves out.
Speeds are GB/s per channel as NCCL reckons them. `channels` lists the GPU numbers of each channel in order; of an NVLS
graph that is the head alone. `nets` lists the network devices of each channel, first the one that receives.
"""

from __future__ import annotations

import re
from math import isfinite
from pathlib import PurePath
from typing import Any, NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.plain import safe_xml
from topocomm.topology.readers.plain.safe_xml import Element

SOURCE = "NCCL graph XML"

PATTERN_NAMES = {1: "balanced-tree", 2: "split-tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet-direct"}
"""Names of the numbers in NCCL's src/include/graph.h; 3 is a chain inside a node."""

MAX_DEVICES = 1024
"""GPUs or network devices in one file; far beyond any machine."""

_NVLS = 5
_VERSION = 1
_START = re.compile(r"<graphs\b")
_END = "</graphs>"
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|0|[1-9]\d{0,18}")
_REMEDY = "let NCCL write the file again (NCCL_GRAPH_DUMP_FILE)"
_COUNTS = ("crossnic", "nchannels", "samechannels")
_SPEEDS = ("speedintra", "speedinter", "latencyinter")
_TYPES = ("typeintra", "typeinter")


def matches(text: str) -> bool:
    """Return whether the text holds the root element of a graph file."""
    return _START.search(text) is not None


def read(text: str, name: str) -> Topology:
    """Return the devices of a graph file, and in `facts["graphs"]` its graphs."""
    return _Reader(name).topology(text)


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.warnings: list[str] = []
        self.gpus: set[int] = set()
        self.nets: set[int] = set()

    def fail(self, element: Element, message: str) -> NoReturn:
        raise TopologyError(f"{self.name}:{element.line}: {message}; {_REMEDY}")

    def warn(self, element: Element, message: str) -> None:
        self.warnings.append(f"{PurePath(self.name).name}:{element.line}: {message}")

    def topology(self, text: str) -> Topology:
        start = _START.search(text)
        if start is None:
            raise TopologyError(f"{self.name}: no element <graphs>; {_REMEDY}")
        end = text.find(_END, start.start())
        before = re.sub(r"[^\r\n]", " ", text[: start.start()])  # lines and columns keep their numbers
        document = text[start.start() : len(text) if end < 0 else end + len(_END)]
        root = safe_xml.parse(before + document, self.name)
        version = self._whole(root, "version")
        if version is None:
            self.warn(root, "<graphs> has no version; read as version 1")
        elif version != _VERSION:
            self.warn(root, f"version {version} is not known; read as version {_VERSION}")
        if not root.all("graph"):
            self.fail(root, "<graphs> holds no <graph>")
        self._only(root, "graph")
        graphs = [self._graph(graph) for graph in root.all("graph")]
        devices = [Device(f"GPU{dev}", "gpu") for dev in sorted(self.gpus)]
        devices += [Device(f"NET{dev}", "nic") for dev in sorted(self.nets)]
        if not devices:
            self.warn(root, "no graph has a channel, so the file names no device")
        return Topology(
            name=PurePath(self.name).stem,
            source=SOURCE,
            devices=tuple(devices),
            links=(),
            warnings=tuple(self.warnings),
            facts={**({} if version is None else {"xml_version": version}), "graphs": graphs},
        )

    def _graph(self, element: Element) -> dict[str, Any]:
        graph: dict[str, Any] = {}
        graph |= {key: value for key in ("id", "pattern") if (value := self._whole(element, key)) is not None}
        if "id" not in graph:
            self.warn(element, "<graph> has no id")
        pattern = graph.get("pattern")
        if pattern in PATTERN_NAMES:
            graph["pattern_name"] = PATTERN_NAMES[pattern]
        else:
            self.warn(element, f"pattern {pattern} is not known; known are {', '.join(map(str, PATTERN_NAMES))}")
        graph |= {key: value for key in _COUNTS if (value := self._whole(element, key)) is not None}
        graph |= {key: speed for key in _SPEEDS if (speed := self._speed(element, key)) is not None}
        graph.update((key, element.attributes[key]) for key in _TYPES if element.attributes.get(key))
        self._only(element, "channel")
        channels = element.all("channel")
        if channels:
            read = [self._channel(channel, pattern) for channel in channels]
            graph["channels"] = [gpus for gpus, _ in read]
            if any(nets for _, nets in read):
                graph["nets"] = [nets for _, nets in read]
        graph_channels: list[list[int]] = graph.get("channels", [])
        count = graph.get("nchannels")
        what = f"graph {graph.get('id', '?')}"
        if count is None:
            self.warn(element, f"{what} has no nchannels")
        elif count != len(channels):
            self.warn(element, f"{what} says {count} channels and holds {len(channels)}; the file may be cut")
        if pattern != _NVLS and len({frozenset(gpus) for gpus in graph_channels}) > 1:
            self.warn(element, f"the channels of {what} do not hold the same GPUs")
        return graph

    def _channel(self, element: Element, pattern: int | None) -> tuple[list[int], list[int]]:
        self._only(element, "gpu", "net")
        gpus: list[int] = []
        nets: list[int] = []
        for child in element.children:
            if child.tag in ("gpu", "net"):
                if (dev := self._whole(child, "dev")) is None:
                    self.fail(child, f"<{child.tag}> has no dev")
                (gpus if child.tag == "gpu" else nets).append(dev)
        self.gpus.update(gpus)
        self.nets.update(nets)
        if max(len(self.gpus), len(self.nets)) > MAX_DEVICES:
            self.fail(element, f"more than {MAX_DEVICES} GPUs or network devices; this is no machine")
        if not gpus:
            self.warn(element, "the channel has no GPU")
        if len(set(gpus)) < len(gpus) and pattern != _NVLS:
            self.warn(element, f"a GPU is in the channel twice: {' '.join(map(str, gpus))}")
        return gpus, nets

    def _only(self, element: Element, *tags: str) -> None:
        odd = next((child for child in element.children if child.tag not in tags), None)
        if odd is not None:
            self.warn(odd, f"<{odd.tag}> in <{element.tag}> is not known and passed over")

    def _whole(self, element: Element, key: str) -> int | None:
        """Return an attribute in C notation; None where it is absent."""
        text = element.attributes.get(key)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text.strip()):
            self.fail(element, f"<{element.tag}> {key}={text!r}: expected a whole number such as 12 or 0xc")
        return int(text.strip(), 0)

    def _speed(self, element: Element, key: str) -> float | None:
        """Return a decimal attribute, whole where it is whole; None where it is absent."""
        text = element.attributes.get(key)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not (isfinite(value) and value >= 0):
            self.fail(element, f"<{element.tag}> {key}={text!r}: expected a number of at least 0")
        return int(value) if value.is_integer() else value
