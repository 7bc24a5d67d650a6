from topocomm.topology.draw.describe import device_words, devices_words, links_words, memory_gb
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Link


def test_one_connection_is_told_once():
    assert links_words(both_ways("a", "b", "pcie4")) == (
        "a to and from b: PCIe\n"
        "32 GB/s each way (nominal: PCI Express base specification, nominal per lane x 16: 2 GB/s)\n"
        "latency 0.5 us (assumed)"
    )


def test_directions_that_differ_are_both_told():
    links = (
        Link("a", "b", "pcie", 16, 32.0, 1.0, None, "read", "measured"),
        Link("b", "a", "pcie", 8, 16.0, None, 0.25, "measured", None),
    )
    assert links_words(links).splitlines() == [
        "a to b: PCIe",
        "16 links, 32 GB/s (read from the source)",
        "latency 1 us (measured)",
        "b to a: PCIe",
        "8 links, 16 GB/s (measured)",
        "latency not known (plans assume 0.5 us)",
        "at least 0.25 us between two messages",
    ]


def test_many_links_are_counted():
    links = [link for i in range(7) for link in both_ways("a", f"b{i}", "xgmi-mi300")]
    assert links_words(links).splitlines()[-1] == "and 3 more"


def test_what_is_not_known_of_a_device_is_not_there():
    assert device_words(Device("GPU0", "gpu")) == "GPU/0: GPU GPU0\nhost host0"
    full = Device("h0/GPU3", "gpu", "h0", "NVIDIA H100", 1, "56-111", "0000:9b:00.0")
    assert device_words(full).splitlines() == [
        "GPU/3: GPU h0/GPU3",
        "NVIDIA H100",
        "host h0, NUMA node 1",
        "CPUs 56-111",
        "PCI address 0000:9b:00.0",
    ]
    assert "NVLink SHARP" in device_words(Device("nvswitch0", "switch", in_network="nvls"))


def test_several_devices_as_one():
    cores = [Device(f"cpu{i}", "cpu", cpu_affinity=str(i)) for i in range(14)]
    lines = devices_words(cores).splitlines()
    assert lines[:2] == ["14 drawn as one:", "cpu0, CPUs 0"]
    assert lines[-1] == "and 2 more"


def test_memory_is_told_where_the_name_does_not():
    names = (
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H200",
        "NVIDIA GeForce RTX 4090",
        "AMD Instinct MI300X",
        "NVIDIA L40S",
        "X",
    )
    assert [memory_gb(name) for name in names] == [None, 141, 24, 192, 48, None]
    said = device_words(Device("GPU0", "gpu", name="NVIDIA H200", bus_id="0000:1b:00.0"))
    assert "NVIDIA H200, 141 GB of memory (datasheet)" in said
    assert "PCI address 0000:1b:00.0" in said
