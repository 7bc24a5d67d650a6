import pytest

from tests.topology.nvml_machine import Nvml, NVMLError, NVMLError_LibraryNotFound
from tests.topology.pci_trees import NVSWITCH, add, four_gpus
from topocomm.errors import TopologyError
from topocomm.topology.discovery.gpu_host import gpu_host
from topocomm.topology.discovery.nvml import find_nvml, read_nvml
from topocomm.topology.discovery.pci_sysfs import PciBus

BUSES = ("00000000:17:00.0", "00000000:18:00.0", "00000000:B7:00.0", "00000000:B8:00.0")
GPU_END, SWITCH_END, UNKNOWN_END = 0, 2, 255
SWITCH = ("00000000:05:00.0", SWITCH_END)


def machine(links=None, **others):
    """Four GPUs at the addresses of `four_gpus`; `links` by GPU."""
    gpus = []
    for i, bus in enumerate(BUSES):
        gpu = {"bus": bus, "name": f"NVIDIA X{i}", "uuid": f"GPU-{i}{i}", "cpus": [0xFF << 8 * (i // 2)]}
        if links:
            gpu["links"] = links[i]
        gpus.append(gpu | {key: value[i] for key, value in others.items() if key in ("capability", "pcie", "mig")})
    levels = {(a, b): 10 if a // 2 == b // 2 else 50 for a in range(4) for b in range(a + 1, 4)}
    rest = {key: value for key, value in others.items() if key not in ("capability", "pcie", "mig")}
    return Nvml(gpus, **({"levels": levels} | rest))


def read(nvml, root):
    bus = PciBus(root)
    found = read_nvml(nvml, bus, "node")
    return gpu_host(found, bus, root, "node")


def codes(topology):
    return {(p.a, p.b): p.code for p in topology.pairs if "mlx" not in p.b}


def lanes(topology):
    return {(x.src, x.dst): (x.lanes, x.gb_per_s) for x in topology.links if x.kind == "nvlink" and x.src < x.dst}


def test_gpus_with_names_addresses_and_affinity(tmp_path):
    four_gpus(tmp_path)
    nvml = machine(pcie=[(1, 16, 4, 16)] * 3 + [(4, 8, 4, 16)])
    topology = read(nvml, tmp_path)
    assert topology.source == "NVML"
    assert [topology.by_id[e].name for e in topology.endpoints] == [f"NVIDIA X{i}" for i in range(4)]
    assert [topology.by_id[e].bus_id for e in topology.endpoints][2] == "0000:b7:00.0"
    assert [topology.by_id[e].cpu_affinity for e in topology.endpoints] == ["0-7", "0-7", "8-15", "8-15"]
    assert [topology.by_id[e].numa for e in topology.endpoints] == [0, 0, 1, 1]
    assert topology.facts["uuids"] == {f"GPU{i}": f"GPU-{i}{i}" for i in range(4)}
    assert topology.facts["pcie"]["0000:b8:00.0"] == {
        "speed_gts": 16.0,
        "width": 8,
        "max_speed_gts": 16.0,
        "max_width": 16,
    }
    assert "0000:19:00.0" in topology.facts["pcie"]  # the NIC's is sysfs's
    assert codes(topology)["GPU0", "GPU1"] == "PIX"
    assert codes(topology)["GPU1", "GPU2"] == "SYS"
    assert "active_links_per_gpu" not in topology.facts
    assert nvml.open == 0


def test_links_into_switches(tmp_path):
    four_gpus(tmp_path)
    nvml = machine(links=[[SWITCH] * 18] * 4, capability=[(9, 0)] * 4)
    topology = read(nvml, tmp_path)
    assert set(codes(topology).values()) == {"NV18"}
    assert lanes(topology) == {(f"GPU{i}", "nvswitch0"): (18, 450.0) for i in range(4)}
    assert topology.by_id["nvswitch0"].in_network == "nvls"
    assert topology.facts["active_links_per_gpu"] == dict.fromkeys(topology.endpoints, 18)
    assert topology.facts["remote"]["GPU2"] == {"00000000:05:00.0": 18}
    assert topology.warnings == ()


def test_a_switch_is_also_known_by_its_class_on_the_bus(tmp_path):
    four_gpus(tmp_path)
    add(tmp_path, "pci0000:04/0000:05:00.0", NVSWITCH, "0x10de")
    nvml = machine(links=[[(SWITCH[0], UNKNOWN_END)] * 12] * 4, capability=[(8, 0)] * 4)
    topology = read(nvml, tmp_path)
    assert lanes(topology)["GPU3", "nvswitch0"] == (12, 300.0)
    assert topology.by_id["nvswitch0"].in_network is None


def test_direct_links_and_inactive_ones(tmp_path):
    four_gpus(tmp_path)
    pair = [[(BUSES[i ^ 1], GPU_END)] * 4 for i in range(4)]
    pair[2] = [None] * 4
    pair[3] = [None] * 4
    topology = read(machine(links=pair, capability=[(8, 6)] * 4), tmp_path)
    assert lanes(topology) == {("GPU0", "GPU1"): (4, 56.25)}
    assert codes(topology)["GPU0", "GPU1"] == "NV4"
    assert codes(topology)["GPU2", "GPU3"] == "PIX"
    assert topology.facts["active_links_per_gpu"] == {"GPU0": 4, "GPU1": 4, "GPU2": 0, "GPU3": 0}
    assert topology.warnings == ()


def test_an_unknown_generation_has_no_rate_and_says_so(tmp_path):
    four_gpus(tmp_path)
    pair = [[(BUSES[i ^ 1], GPU_END)] * 2 for i in range(4)]
    topology = read(machine(links=pair, capability=[(99, 0)] * 4), tmp_path)
    assert lanes(topology)["GPU0", "GPU1"] == (2, None)
    assert topology.warnings == ("GB/s of NVLink not known: GPU0, GPU1, GPU2, GPU3 of an unknown generation",)


@pytest.mark.parametrize(
    "end", [("00000000:99:00.0", GPU_END), (None, UNKNOWN_END), ("fffffff:ffff:ff.0", UNKNOWN_END)]
)
def test_links_to_what_a_container_hides_are_left_out_and_said(tmp_path, end):
    four_gpus(tmp_path)
    links = [[(BUSES[1], GPU_END), end], [(BUSES[0], GPU_END)], [], []]
    topology = read(machine(links=links, capability=[(8, 0)] * 4), tmp_path)
    assert lanes(topology) == {("GPU0", "GPU1"): (1, 25.0)}
    assert topology.warnings == ("NVLinks to what is not shown here are left out: 1 of GPU0",)


def test_ends_that_disagree_count_with_the_less(tmp_path):
    four_gpus(tmp_path)
    links = [[(BUSES[1], GPU_END)] * 2, [(BUSES[0], GPU_END), None], [], []]
    topology = read(machine(links=links, capability=[(8, 0)] * 4), tmp_path)
    assert lanes(topology) == {("GPU0", "GPU1"): (1, 25.0)}
    assert topology.warnings == ("GPU0 has 2 active NVLinks to GPU1, which has 1: the less counts",)


def test_a_link_that_one_end_alone_sees_is_none(tmp_path):
    four_gpus(tmp_path)
    topology = read(machine(links=[[(BUSES[1], GPU_END)], [None], [], []], capability=[(8, 0)] * 4), tmp_path)
    assert lanes(topology) == {}
    assert codes(topology)["GPU0", "GPU1"] == "PIX"
    assert topology.warnings == ("GPU0 has 1 active NVLinks to GPU1, which has 0: the less counts",)


def test_links_to_itself_are_ignored(tmp_path):
    four_gpus(tmp_path)
    links = [[(BUSES[i], GPU_END)] * 3 for i in range(4)]
    assert lanes(read(machine(links=links, capability=[(8, 0)] * 4), tmp_path)) == {}


def test_peer_access_in_the_words_of_the_tool(tmp_path):
    four_gpus(tmp_path)
    p2p = {(0, 1): 0, (0, 2): 1, (0, 3): 3, (1, 2): 4, (1, 3): 6, (2, 3): 0}
    facts = read(machine(p2p=p2p), tmp_path).facts
    assert facts["capability"] == "r"
    assert facts["p2p"] == {
        "GPU0-GPU1": "OK",
        "GPU0-GPU2": "CNS",
        "GPU0-GPU3": "TNS",
        "GPU1-GPU2": "DR",
        "GPU1-GPU3": "U",
        "GPU2-GPU3": "OK",
    }


def test_partitioned_gpus_are_pointed_out(tmp_path):
    four_gpus(tmp_path)
    topology = read(machine(mig=[(0, 0), (1, 1), (0, 0), (0, 0)]), tmp_path)
    assert topology.warnings == ("GPU1: cut into MIG instances; whole GPUs are shown",)


def test_a_machine_that_tells_nothing_but_its_gpus(tmp_path):
    """An old driver in a container without sysfs."""
    topology = read(Nvml([{"bus": b"0000:17:00.0"}, {"bus": b"0000:18:00.0"}]), tmp_path)
    assert [topology.by_id[e].bus_id for e in topology.endpoints] == ["0000:17:00.0", "0000:18:00.0"]
    assert codes(topology) == {("GPU0", "GPU1"): None}
    assert [topology.by_id[e].numa for e in topology.endpoints] == [None, None]
    assert "sysfs does not show the PCI place of GPU0, GPU1" in topology.warnings[0]
    assert topology.facts == {"gpu_dev": {"GPU0": 0, "GPU1": 1}}


def test_memory_affinity_where_sysfs_names_no_node(tmp_path):
    gpus = [{"bus": "00000000:17:00.0", "memory_nodes": [2]}, {"bus": "00000000:18:00.0", "memory_nodes": [3]}]
    topology = read(Nvml(gpus), tmp_path)
    assert [topology.by_id[e].numa for e in topology.endpoints] == [1, None]  # node 1; nodes 0 and 1


@pytest.mark.parametrize("lacks", [("nvmlDeviceGetNvLinkRemoteDeviceType",), ("nvmlDeviceGetP2PStatus",)])
def test_old_modules_lack_functions(tmp_path, lacks):
    four_gpus(tmp_path)
    links = [[(BUSES[i ^ 1], GPU_END)] for i in range(4)]
    topology = read(machine(links=links, capability=[(8, 0)] * 4, lacks=lacks), tmp_path)
    assert set(lanes(topology)) == {("GPU0", "GPU1"), ("GPU2", "GPU3")}


def test_without_library_or_gpus_there_is_nothing(tmp_path):
    bus = PciBus(tmp_path)
    assert read_nvml(Nvml([], start=NVMLError_LibraryNotFound("no libnvidia-ml")), bus, "node") is None
    nvml = Nvml([])
    assert read_nvml(nvml, bus, "node") is None
    assert nvml.open == 0


def test_failures_are_told(tmp_path):
    bus = PciBus(tmp_path)
    with pytest.raises(TopologyError, match="NVML does not start: Driver/library version mismatch"):
        read_nvml(Nvml([], start=NVMLError("Driver/library version mismatch")), bus, "node")
    nvml = Nvml([{"bus": "x"}] * 300)
    with pytest.raises(TopologyError, match="NVML: 300 GPUs"):
        read_nvml(nvml, bus, "node")
    assert nvml.open == 0


def test_a_gpu_that_fell_off_the_bus_is_an_error_of_ours(tmp_path):
    nvml = machine()
    nvml.nvmlDeviceGetHandleByIndex = lambda index: (_ for _ in ()).throw(NVMLError("GPU is lost"))
    with pytest.raises(TopologyError, match="NVML fails: GPU is lost"):
        read_nvml(nvml, PciBus(tmp_path), "node")
    assert nvml.open == 0


def test_no_module_is_no_error(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert find_nvml() is None
