import os
import sys

from tests.topology.amdsmi_machine import Amdsmi
from tests.topology.discovery.fake_host import DATA, TOPO, add_tool, find
from tests.topology.nvml_machine import Nvml, NVMLError
from tests.topology.pci_trees import (
    AMD,
    ASPEED,
    GPU,
    NVIDIA,
    VGA,
    add,
    four_gpus,
)
from topocomm.topology.discovery.local_host import discover


def test_gpus_come_from_the_tool(host):
    add_tool(
        host, "nvidia-smi", f'[ "$1 $2" = "topo -m" ] && while read -r l; do echo "$l"; done < {DATA}/nvswitch-16.txt'
    )
    topology = find(host)
    assert len(topology.endpoints) == 16
    assert topology.hosts == (os.uname().nodename,)
    assert (topology.name, topology.source) == (os.uname().nodename, "nvidia-smi topo -m")


def test_without_gpus_the_cores_and_one_line_that_says_where_it_looked(host):
    topology = find(host)
    assert topology.endpoints == ("cpu0", "cpu1", "cpu2", "cpu3")
    for place in ("No GPU", "nvidia-smi", "amd-smi", "rocm-smi", "/proc/driver/nvidia", "PCI"):
        assert place in topology.warnings[0]
    assert len(topology.warnings) == 1
    assert len(topology.warnings[0]) <= 80


def test_devices_without_their_tool_are_pointed_out(host):
    add(host / "sys", "pci0000:17/0000:17:00.0", GPU, NVIDIA)
    add(host / "sys", "pci0000:65/0000:65:00.0", GPU, NVIDIA)
    add(host / "sys", "pci0000:03/0000:03:00.0", VGA, ASPEED)  # a server's management display
    topology = find(host)
    assert topology.endpoints[0] == "cpu0"
    assert "is nvidia-smi on PATH?" in topology.warnings[0]
    assert "2 NVIDIA display device(s) on PCI" in topology.warnings[0]


def use(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, name, module)


def test_the_driver_library_comes_first(host, monkeypatch):
    add_tool(host, "nvidia-smi", "exit 1")
    use(monkeypatch, "pynvml", Nvml([{"bus": "00000000:17:00.0", "name": "NVIDIA X"}]))
    topology = find(host)
    assert (topology.source, topology.endpoints, topology.hosts) == ("NVML", ("GPU0",), (os.uname().nodename,))
    assert topology.by_id["GPU0"].name == "NVIDIA X"


def test_a_library_that_fails_leaves_it_to_the_tool_and_is_named(host, monkeypatch):
    add_tool(host, "nvidia-smi", TOPO)
    use(monkeypatch, "pynvml", Nvml([], start=NVMLError("version mismatch")))
    topology = find(host)
    assert topology.source == "nvidia-smi topo -m"
    assert topology.warnings[0] == "NVML does not start: version mismatch"


def test_amd_gpus_through_the_library(host, monkeypatch):
    four_gpus(host / "sys", vendor=AMD)
    use(monkeypatch, "amdsmi", Amdsmi(4))
    topology = find(host)
    assert (topology.source, len(topology.endpoints)) == ("amdsmi", 4)


def test_the_amd_library_is_not_asked_without_amd_gpus(host, monkeypatch):
    use(monkeypatch, "amdsmi", None)
    assert find(host).endpoints[0] == "cpu0"


def usable_nvidia(host, minor, bus_id):
    """The driver's word for a device file, and the file."""
    file = host / f"proc/driver/nvidia/gpus/{bus_id}/information"
    file.parent.mkdir(parents=True)
    file.write_text(f"Model: \t\t NVIDIA X\nDevice Minor: \t {minor}\n")
    (host / f"dev/nvidia{minor}").touch()


def test_gpus_from_sysfs_alone_if_their_device_files_are_there(host):
    """A container that was given two of four GPUs, without the driver's tools."""
    four_gpus(host / "sys")
    usable_nvidia(host, 1, "0000:18:00.0")
    usable_nvidia(host, 3, "0000:b8:00.0")
    topology = find(host)
    assert [topology.by_id[end].bus_id for end in topology.endpoints] == ["0000:18:00.0", "0000:b8:00.0"]
    assert topology.source == "sysfs"
    assert "models and the links between them (NVLink, xGMI) are not known" in topology.warnings[0]


def test_amd_gpus_from_sysfs_need_the_compute_device_too(host):
    four_gpus(host / "sys", vendor=AMD)
    (host / "sys/bus/pci/devices/0000:17:00.0/drm/renderD128").mkdir(parents=True)
    (host / "dev/dri").mkdir()
    (host / "dev/dri/renderD128").touch()
    assert find(host).endpoints[0] == "cpu0"
    (host / "dev/kfd").touch()
    assert find(host).endpoints == ("GPU0",)


def test_gpus_without_device_files_are_not_used(host):
    four_gpus(host / "sys")
    topology = find(host)
    assert topology.endpoints[0] == "cpu0"
    assert "4 NVIDIA display device(s) on PCI" in topology.warnings[0]


def test_cpus_of_all_ranks_of_the_host(host):
    topology = discover(sysfs=host / "sys", proc=host / "proc", dev=host / "dev", usable={1, 3})
    assert [topology.by_id[end].cpu_affinity for end in topology.endpoints] == ["1", "3"]


def test_this_machine():
    topology = discover()
    assert topology.endpoints
    assert all(topology.by_id[end].host == os.uname().nodename for end in topology.endpoints)
