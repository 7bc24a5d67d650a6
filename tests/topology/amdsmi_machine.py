"""A stand-in for the module `amdsmi` that answers for an invented machine."""

from enum import IntEnum


class AmdSmiException(Exception):
    pass


class AmdSmiLinkType(IntEnum):
    AMDSMI_LINK_TYPE_INTERNAL = 0
    AMDSMI_LINK_TYPE_XGMI = 1
    AMDSMI_LINK_TYPE_PCIE = 2
    AMDSMI_LINK_TYPE_UNKNOWN = 4


class AmdSmiIoLinkType(IntEnum):
    UNDEFINED = 0
    PCIEXPRESS = 1
    XGMI = 2


BUSES = ("0000:17:00.0", "0000:18:00.0", "0000:b7:00.0", "0000:b8:00.0")


class Amdsmi:
    """The functions of `amdsmi` that are used.

    Args:
        count: GPUs, at most four.
        target: Architecture of all of them.
        links: Number of xGMI links by pair; 0 is an indirect way, absent is PCIe.
        older: Whether the module has the older enumeration of link types, and answers in it.
        silent: Whether the driver names no bandwidths.
        start: What amdsmi_init raises.
    """

    AmdSmiException = AmdSmiException
    AmdSmiLinkType = AmdSmiLinkType

    def __init__(self, count, *, target="gfx942", links=None, older=False, silent=False, start=None):
        self.count, self.target, self.links, self.silent, self.start = count, target, links or {}, silent, start
        self.xgmi, self.pcie = (2, 1) if older else (1, 2)
        self.open = 0
        if older:
            self.AmdSmiIoLinkType = AmdSmiIoLinkType

    def amdsmi_init(self):
        if self.start:
            raise self.start
        self.open += 1

    def amdsmi_shut_down(self):
        self.open -= 1

    def amdsmi_get_processor_handles(self):
        return list(range(self.count))

    def amdsmi_get_gpu_device_bdf(self, handle):
        return BUSES[handle]

    def amdsmi_get_gpu_device_uuid(self, handle):
        return f"{handle}{handle}ff-0000"

    def amdsmi_get_gpu_asic_info(self, handle):
        return {"market_name": "AMD Instinct", "target_graphics_version": self.target}

    def amdsmi_topo_get_numa_node_number(self, handle):
        return handle // 2

    def amdsmi_topo_get_link_type(self, a, b):
        return {"hops": 1, "type": self.xgmi} if (a, b) in self.links else {"hops": 3, "type": self.pcie}

    def amdsmi_topo_get_link_weight(self, a, b):
        if self.silent:
            raise AmdSmiException("not supported")
        return 15 if (a, b) in self.links else 72

    def amdsmi_get_minmax_bandwidth_between_processors(self, a, b):
        if self.silent:
            raise AmdSmiException("not supported")
        lanes = self.links.get((a, b), 0)
        return {"min_bandwidth": 50000 if lanes else 0, "max_bandwidth": 50000 * lanes}
