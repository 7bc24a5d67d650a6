"""A stand-in for the module `pynvml` that answers for an invented machine."""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class Nvml:
    """The functions of `pynvml` that are used.

    Args:
        gpus: One dict per GPU: bus, and where known name, uuid, links ([(remote bus id, device type)], None for an
            inactive one), capability, cpus (64-bit words), pcie (gen, width, max gen, max width), mig, memory_nodes.
        levels: nvmlGpuTopologyLevel_t by pair of GPU numbers.
        p2p: nvmlGpuP2PStatus_t by pair.
        lacks: Functions that this version of the module does not have.
        start: What nvmlInit raises.
    """

    NVMLError = NVMLError

    def __init__(self, gpus, *, levels=None, p2p=None, lacks=(), start=None):
        self.gpus, self.levels, self.p2p = gpus, levels or {}, p2p or {}
        self.lacks, self.start = lacks, start
        self.open = 0

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "lacks"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def _told(self, handle, key):
        if key not in self.gpus[handle]:
            raise NVMLError_NotSupported(key)
        return self.gpus[handle][key]

    def nvmlInit(self):
        if self.start:
            raise self.start
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=self._told(handle, "bus"))

    def nvmlDeviceGetName(self, handle):
        return self._told(handle, "name")

    def nvmlDeviceGetUUID(self, handle):
        return self._told(handle, "uuid")

    def nvmlDeviceGetCpuAffinity(self, handle, words):
        return self._told(handle, "cpus")

    def nvmlDeviceGetMemoryAffinity(self, handle, words, scope):
        return self._told(handle, "memory_nodes")

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return self._told(handle, "capability")

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle):
        return self._told(handle, "pcie")[0]

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle):
        return self._told(handle, "pcie")[1]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):
        return self._told(handle, "pcie")[2]

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):
        return self._told(handle, "pcie")[3]

    def nvmlDeviceGetMigMode(self, handle):
        return self._told(handle, "mig")

    def _link(self, handle, link):
        links = self._told(handle, "links")
        if link >= len(links):
            raise NVMLError_NotSupported("link")
        return links[link]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        return int(self._link(handle, link) is not None)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        bus = self._link(handle, link)[0]
        if bus is None:
            raise NVMLError_NotSupported("remote")
        return SimpleNamespace(busId=bus)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        return self._link(handle, link)[1]

    def nvmlDeviceGetTopologyCommonAncestor(self, a, b):
        if (a, b) not in self.levels:
            raise NVMLError_NotSupported("level")
        return self.levels[a, b]

    def nvmlDeviceGetP2PStatus(self, a, b, index):
        assert index == 0
        if (a, b) not in self.p2p:
            raise NVMLError_NotSupported("p2p")
        return self.p2p[a, b]
