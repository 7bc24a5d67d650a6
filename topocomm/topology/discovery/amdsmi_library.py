"""The AMD GPUs of this host from AMD SMI's Python module, `amdsmi`.

The module is a parameter, so that tests can play any machine. Facts that a driver or a virtual machine withholds are
left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from topocomm.errors import TopologyError
from topocomm.topology.discovery.gpu_host import DriverModule, GpuFacts
from topocomm.topology.discovery.pci_sysfs import PciBus, short_bus_id
from topocomm.topology.inference.host_tree import PairKey
from topocomm.topology.inference.nvlink import GpuFabric
from topocomm.topology.inference.xgmi import joined_by_tables, xgmi_links
from topocomm.topology.links import KINDS, kind_of
from topocomm.topology.model import Device

SOURCE = "amdsmi"
MAX_GPUS = 256


def find_amdsmi() -> Any | None:
    """Return the module, or None where it or its library is not installed."""
    try:
        return import_module("amdsmi")
    except (ImportError, OSError, KeyError):  # KeyError: it looks for ROCM_PATH
        return None


def read_amdsmi(amdsmi: Any, bus: PciBus, host: str) -> GpuFacts | None:
    """Return the GPUs that AMD SMI shows, in its order; None without a GPU.

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


class _Reader(DriverModule):
    def __init__(self, amdsmi: Any, bus: PciBus, host: str, handles: list[Any]) -> None:
        super().__init__(amdsmi, amdsmi.AmdSmiException, handles)
        self.bus, self.host = bus, host

    def read(self) -> GpuFacts:
        gpus = tuple(map(self._gpu, self.handles))
        uuids = {name: self.ask("amdsmi_get_gpu_device_uuid", handle) for name, handle in self.handles.items()}
        types = self.ask_pairs("amdsmi_topo_get_link_type")
        links = {pair: answer if isinstance(answer, dict) else {} for pair, answer in types.items()}
        weights = {pair: _whole(answer) for pair, answer in self.ask_pairs("amdsmi_topo_get_link_weight").items()}
        bandwidths = self.ask_pairs("amdsmi_get_minmax_bandwidth_between_processors")
        rates: dict[PairKey, tuple[int, int] | None] = {}  # least and greatest MB/s
        for pair, answer in bandwidths.items():
            figures = answer if isinstance(answer, dict) else {}
            least, most = (_whole(figures.get(f"{word}_bandwidth")) for word in ("min", "max"))
            rates[pair] = None if least is None or most is None else (least, most)
        by_pair: dict[str, Mapping[PairKey, Any]] = {
            "weight": weights,
            "hops": {pair: _whole(answer.get("hops")) for pair, answer in links.items()},
            "numa_bw": {pair: rate and f"{rate[0]}-{rate[1]}" for pair, rate in rates.items()},
        }
        facts: dict[str, Any] = {"uuids": {name: uuid for name, uuid in uuids.items() if uuid}}
        for key, values in by_pair.items():
            facts[key] = {f"{a}-{b}": value for (a, b), value in values.items() if value is not None}
        words = _type_words(self.module)
        xgmi = [pair for pair, answer in links.items() if words.get(answer.get("type")) == "XGMI"]
        fabric = self._fabric(xgmi, weights, rates)
        return GpuFacts(SOURCE, gpus, fabric, facts={key: value for key, value in facts.items() if value})

    def _gpu(self, name: str) -> Device:
        handle = self.handles[name]
        answer = self.ask("amdsmi_get_gpu_device_bdf", handle)
        bus_id = short_bus_id(str(answer)) if answer else None
        shown = self.bus.devices.get(bus_id or "")
        numa = shown.numa if shown else None
        if numa is None:
            node = self.ask("amdsmi_topo_get_numa_node_number", handle)
            numa = node if isinstance(node, int) and 0 <= node < 1 << 16 else None
        return Device(name, "gpu", self.host, self._asic(name).get("market_name"), numa, shown and shown.cpus, bus_id)

    def _asic(self, name: str) -> Mapping[str, Any]:
        answer = self.ask("amdsmi_get_gpu_asic_info", self.handles[name])
        return answer if isinstance(answer, dict) else {}

    def _fabric(
        self,
        pairs: Iterable[PairKey],
        weights: Mapping[PairKey, int | None],
        rates: Mapping[PairKey, tuple[int, int] | None],
    ) -> GpuFabric:
        """The xGMI links, with the rate of their generation if all GPUs are of one that has a row."""
        joined, silent = joined_by_tables(pairs, weights, rates)
        targets = {self._asic(name).get("target_graphics_version") for name in self.handles}
        target = str(targets.pop()).lower() if len(targets) == 1 else ""
        kind = KINDS.get(kind_of("xgmi", None, re.split(r"[^0-9a-z]", target)[0]))
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


def _type_words(amdsmi: Any) -> dict[Any, str]:
    """`XGMI` and `PCIE` by the module's numbers; where it has two enumerations, answers are of the older."""
    for name in ("AmdSmiIoLinkType", "AmdSmiLinkType"):
        if (kinds := getattr(amdsmi, name, None)) is not None:
            return {int(kind): word for kind in kinds for word in ("XGMI", "PCIE") if word in kind.name.split("_")[-1]}
    return {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
