"""The AMD GPUs of this host from AMD SMI's Python module, `amdsmi`.

The module is a parameter, so that tests can play any machine. Facts that a driver or a virtual machine withholds are
left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

from topocomm.errors import TopologyError
from topocomm.topology.discovery.gpu_host import GpuFacts
from topocomm.topology.discovery.pci_sysfs import PciBus, short_bus_id
from topocomm.topology.inference.host_tree import PairKey
from topocomm.topology.inference.nvlink import GpuFabric
from topocomm.topology.inference.xgmi import joined_by_tables, xgmi_links
from topocomm.topology.links import KINDS
from topocomm.topology.model import Device

SOURCE = "amdsmi"
MAX_GPUS = 256
_KIND_BY_TARGET = {
    "gfx908": "xgmi-mi100",
    "gfx90a": "xgmi-mi250",
    "gfx940": "xgmi-mi300",
    "gfx941": "xgmi-mi300",
    "gfx942": "xgmi-mi300",
    "gfx950": "xgmi-mi350",
}
"""xGMI generation by architecture, as in RCCL's `topo.h`."""


def find_amdsmi() -> Any | None:
    """Return the module, or None where it or its library is not installed."""
    from importlib import import_module

    try:
        return import_module("amdsmi")
    except (ImportError, OSError, KeyError):  # KeyError: it looks for ROCM_PATH
        return None


def read_amdsmi(amdsmi: Any, bus: PciBus, host: str) -> GpuFacts | None:
    """Return the GPUs that AMD SMI shows, in its order; None without a GPU.

    Args:
        amdsmi: The module, or one with its functions.
        bus: The PCI bus, for facts that AMD SMI lacks.
        host: Name of the host.

    Raises:
        TopologyError: AMD SMI fails.
    """
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise TopologyError(f"AMD SMI does not start: {_first_line(error)}") from None
    try:
        handles = list(amdsmi.amdsmi_get_processor_handles())
        if len(handles) > MAX_GPUS:
            raise TopologyError(f"AMD SMI: {len(handles)} GPUs; expected at most {MAX_GPUS} in one host")
        return _Reader(amdsmi, bus, host, handles).read() if handles else None
    except amdsmi.AmdSmiException as error:
        raise TopologyError(f"AMD SMI fails: {_first_line(error)}") from None
    finally:
        amdsmi.amdsmi_shut_down()


class _Link(NamedTuple):
    """The connection of two GPUs; None where AMD SMI does not say."""

    word: str | None
    hops: int | None
    weight: int | None


class _Reader:
    def __init__(self, amdsmi: Any, bus: PciBus, host: str, handles: list[Any]) -> None:
        self.amdsmi, self.bus, self.host = amdsmi, bus, host
        self.handles = {f"GPU{i}": handle for i, handle in enumerate(handles)}

    def read(self) -> GpuFacts:
        gpus = tuple(map(self._gpu, self.handles))
        uuids = {name: self._ask("amdsmi_get_gpu_device_uuid", handle) for name, handle in self.handles.items()}
        links_of = self._links()
        asked = "amdsmi_get_minmax_bandwidth_between_processors"
        rates = {pair: _bandwidth(self._ask(asked, *(self.handles[name] for name in pair))) for pair in links_of}
        facts = {
            "uuids": {name: uuid for name, uuid in uuids.items() if uuid},
            "weight": _by_words({pair: link.weight for pair, link in links_of.items()}),
            "hops": _by_words({pair: link.hops for pair, link in links_of.items()}),
            "numa_bw": _by_words({pair: f"{rate[0]}-{rate[1]}" if rate else None for pair, rate in rates.items()}),
        }
        fabric = self._fabric(links_of, rates)
        return GpuFacts(SOURCE, gpus, fabric, facts={key: value for key, value in facts.items() if value})

    def _ask(self, name: str, *arguments: Any) -> Any:
        """An answer of AMD SMI; None where the driver or this version of the module has none."""
        function = getattr(self.amdsmi, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self.amdsmi.AmdSmiException:
            return None

    def _gpu(self, name: str) -> Device:
        handle = self.handles[name]
        answer = self._ask("amdsmi_get_gpu_device_bdf", handle)
        bus_id = short_bus_id(str(answer)) if answer else None
        shown = self.bus.devices.get(bus_id or "")
        numa = shown.numa if shown else None
        if numa is None:
            node = self._ask("amdsmi_topo_get_numa_node_number", handle)
            numa = node if isinstance(node, int) and 0 <= node < 1 << 16 else None
        return Device(name, "gpu", self.host, self._asic(name).get("market_name"), numa, shown and shown.cpus, bus_id)

    def _asic(self, name: str) -> Mapping[str, Any]:
        answer = self._ask("amdsmi_get_gpu_asic_info", self.handles[name])
        return answer if isinstance(answer, dict) else {}

    def _links(self) -> dict[PairKey, _Link]:
        words = _type_words(self.amdsmi)
        links = {}
        for a, b in combinations(self.handles, 2):
            answer = self._ask("amdsmi_topo_get_link_type", self.handles[a], self.handles[b])
            answer = answer if isinstance(answer, dict) else {}
            weight = self._ask("amdsmi_topo_get_link_weight", self.handles[a], self.handles[b])
            links[a, b] = _Link(words.get(answer.get("type")), _whole(answer.get("hops")), _whole(weight))
        return links

    def _fabric(self, links_of: Mapping[PairKey, _Link], rates: Mapping[PairKey, tuple[int, int] | None]) -> GpuFabric:
        """The xGMI links, with the rate of their generation."""
        joined, silent = joined_by_tables(
            [pair for pair, link in links_of.items() if link.word == "XGMI"],
            {pair: link.weight for pair, link in links_of.items()},
            rates,
        )
        kind = KINDS.get(self._kind())
        if kind is not None:
            joined = {
                pair: figures._replace(gb_per_s=figures.lanes * kind.gb_per_s if figures.lanes else None)
                for pair, figures in joined.items()
            }
        xgmi = xgmi_links(joined, silent)
        links = tuple(link._replace(gb_per_s_source="table" if link.gb_per_s else None) for link in xgmi.links)
        pairs = {
            key: pair._replace(gb_per_s_source="table" if pair.gb_per_s else None) for key, pair in xgmi.pairs.items()
        }
        return xgmi._replace(links=links, pairs=pairs)

    def _kind(self) -> str:
        """Row of `links.KINDS` if all GPUs are of one generation that has one."""
        answer = {self._asic(name).get("target_graphics_version") for name in self.handles}
        word = str(answer.pop()).lower() if len(answer) == 1 else ""
        return _KIND_BY_TARGET.get(re.split(r"[^0-9a-z]", word)[0], "")


def _type_words(amdsmi: Any) -> dict[Any, str]:
    """`XGMI` and `PCIE` by the module's numbers; where it has two enumerations, answers are of the older."""
    for name in ("AmdSmiIoLinkType", "AmdSmiLinkType"):
        if (kinds := getattr(amdsmi, name, None)) is not None:
            return {int(kind): word for kind in kinds for word in ("XGMI", "PCIE") if word in kind.name.split("_")[-1]}
    return {}


def _bandwidth(answer: Any) -> tuple[int, int] | None:
    """Least and greatest MB/s, or None."""
    answer = answer if isinstance(answer, dict) else {}
    least, most = _whole(answer.get("min_bandwidth")), _whole(answer.get("max_bandwidth"))
    return None if least is None or most is None else (least, most)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _by_words(values: Mapping[PairKey, Any]) -> dict[str, Any]:
    """Known values by `GPU0-GPU1`."""
    return {f"{a}-{b}": value for (a, b), value in values.items() if value is not None}


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
