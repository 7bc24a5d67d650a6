import pytest

from topocomm.topology.catalog.systems import catalog
from topocomm.topology.inference.gpu_vendor import VENDOR, is_amd
from topocomm.topology.model import Device, Topology


def gpu(name=None, source="by hand", **facts):
    return Topology(
        "x", source, (Device("GPU0", "gpu", name=name), Device("NIC0", "nic", name="AMD Pensando")), (), facts=facts
    )


@pytest.mark.parametrize(
    "topology",
    [
        gpu(**{VENDOR: "AMD"}),
        gpu(gcn="gfx90a"),
        gpu(library="RCCL 2.20"),
        gpu(source="rocm-smi --showtopo"),
        gpu(source="lstopo + amd-smi topology"),
        gpu("AMD Instinct MI300X"),
        gpu("Radeon RX 7900"),
        gpu("MI250X"),
        catalog("mi100-8"),
    ],
)
def test_of_amd(topology):
    assert is_amd(topology)


@pytest.mark.parametrize(
    "topology",
    [
        gpu(),
        gpu("NVIDIA H100", **{VENDOR: "NVIDIA"}),
        gpu(library="NCCL 2.27"),
        gpu("XMI250 of others"),
        catalog("dgx-h100"),
        catalog("rtx4090-pcie-4"),
    ],
)
def test_of_others(topology):
    assert not is_amd(topology)
