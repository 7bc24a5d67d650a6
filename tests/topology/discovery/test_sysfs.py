import pytest

from topocomm.topology.discovery.sysfs import cpu_host, find_nics
from topocomm.topology.inference.cpu_lists import cpu_ranges


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def add_cpus(root, cores, *, online=None):
    """`cores` is a list of lists of hardware threads."""
    for threads in cores:
        for cpu in threads:
            write(root, f"devices/system/cpu/cpu{cpu}/topology/core_cpus_list", ",".join(map(str, threads)))
    write(root, "devices/system/cpu/online", online or cpu_ranges([cpu for threads in cores for cpu in threads]))


def add_nodes(root, nodes):
    for node, cpus in nodes.items():
        write(root, f"devices/system/node/node{node}/cpulist", cpus)


def add_nic(root, name, *, kind="net", bus="0000:3b:00.0", numa="0", speed=None, pcie=None):
    device = root / "devices/pci0000:3a" / bus
    device.mkdir(parents=True, exist_ok=True)
    (device / "numa_node").write_text(f"{numa}\n")
    if pcie:
        (device / "current_link_speed").write_text(f"{pcie[0]}\n")
        (device / "current_link_width").write_text(f"{pcie[1]}\n")
    port = root / "class" / kind / name
    port.mkdir(parents=True)
    (port / "device").symlink_to(device)
    if speed is not None and kind == "net":
        (port / "speed").write_text(f"{speed}\n")
    elif speed is not None:
        write(port, "ports/1/rate", speed)


def two_sockets(root):
    add_cpus(root, [[0, 4], [1, 5], [2, 6], [3, 7]])
    add_nodes(root, {0: "0-1,4-5", 1: "2-3,6-7"})


def edges(topology, kind):
    return {(link.src, link.dst) for link in topology.links if link.kind == kind and link.src < link.dst}


def test_every_physical_core_is_an_endpoint(tmp_path):
    two_sockets(tmp_path)
    topology = cpu_host(tmp_path, host="node", usable=range(8))
    assert topology.endpoints == ("cpu0", "cpu1", "cpu2", "cpu3")
    assert [topology.by_id[end].cpu_affinity for end in topology.endpoints] == ["0,4", "1,5", "2,6", "3,7"]
    assert [topology.by_id[end].numa for end in topology.endpoints] == [0, 0, 1, 1]
    assert edges(topology, "shared-memory") == {
        ("cpu0", "numa0"),
        ("cpu1", "numa0"),
        ("cpu2", "numa1"),
        ("cpu3", "numa1"),
    }
    assert edges(topology, "smp") == {("numa0", "numa1")}
    assert {link.gb_per_s for link in topology.links} == {None}
    assert topology.hosts == ("node",)


def test_only_cpus_that_the_process_may_use(tmp_path):
    two_sockets(tmp_path)
    topology = cpu_host(tmp_path, host="node", usable={4, 2, 3})
    assert [topology.by_id[end].cpu_affinity for end in topology.endpoints] == ["2", "3", "4"]
    assert [topology.by_id[end].numa for end in topology.endpoints] == [1, 1, 0]


def test_offline_cpus_are_left_out(tmp_path):
    add_cpus(tmp_path, [[0], [1], [2]], online="0,2")
    add_nodes(tmp_path, {0: "0,2"})
    assert len(cpu_host(tmp_path, host="h", usable=range(3)).endpoints) == 2


def test_a_kernel_without_numa_has_one_node_without_a_number(tmp_path):
    add_cpus(tmp_path, [[0], [1]])
    topology = cpu_host(tmp_path, host="h", usable={0, 1})
    (node,) = [d for d in topology.devices if d.kind == "numa"]
    assert (node.id, node.numa) == ("numa", None)
    assert edges(topology, "shared-memory") == {("cpu0", "numa"), ("cpu1", "numa")}


def test_nodes_of_memory_alone_are_left_out(tmp_path):
    add_cpus(tmp_path, [[0], [1]])
    add_nodes(tmp_path, {0: "0-1", 1: "", 8: ""})
    topology = cpu_host(tmp_path, host="h", usable={0, 1})
    assert [d.id for d in topology.devices if d.kind == "numa"] == ["numa0"]


def test_node_numbers_need_not_start_at_zero(tmp_path):
    add_cpus(tmp_path, [[0], [1]])
    add_nodes(tmp_path, {8: "1", 0: "0"})
    topology = cpu_host(tmp_path, host="h", usable={0, 1})
    assert [d.id for d in topology.devices if d.kind == "numa"] == ["numa0", "numa8"]


def test_no_sysfs_at_all(tmp_path):
    topology = cpu_host(tmp_path / "none", host="h", usable={0, 1, 2})
    assert [topology.by_id[end].cpu_affinity for end in topology.endpoints] == ["0", "1", "2"]


def test_nics_sit_on_their_node_with_what_sysfs_says(tmp_path):
    two_sockets(tmp_path)
    add_nic(tmp_path, "eth0", numa="1", speed="100000", pcie=("16.0 GT/s PCIe", "16"))
    topology = cpu_host(tmp_path, host="h", usable=range(8))
    nic = topology.by_id["eth0"]
    assert (nic.kind, nic.name, nic.numa, nic.bus_id) == ("nic", "eth0", 1, "0000:3b:00.0")
    figures = {(link.src, link.dst): (link.gb_per_s, link.gb_per_s_source) for link in topology.links}
    assert figures["numa1", "eth0"] == (32.0, "read")
    assert figures["eth0", "network"] == (12.5, "read")
    assert topology.by_id["network"].host not in topology.hosts


def test_what_a_nic_does_not_say_is_unknown(tmp_path):
    two_sockets(tmp_path)
    add_nic(tmp_path, "eth0", numa="-1", speed="-1", pcie=("Unknown", "0"))
    topology = cpu_host(tmp_path, host="h", usable=range(8))
    assert topology.by_id["eth0"].numa is None
    assert {link.gb_per_s for link in topology.links if "eth0" in (link.src, link.dst)} == {None}
    assert edges(topology, "pcie") == {("eth0", "host")}
    assert {("host", "numa0"), ("host", "numa1")} <= edges(topology, "smp")


def test_a_nic_without_a_node_is_on_the_only_one(tmp_path):
    add_cpus(tmp_path, [[0]])
    add_nodes(tmp_path, {0: "0"})
    add_nic(tmp_path, "eth0", numa="-1")
    assert edges(cpu_host(tmp_path, host="h", usable={0}), "pcie") == {("eth0", "numa0")}


def test_a_nic_on_a_node_that_the_process_may_not_use(tmp_path):
    two_sockets(tmp_path)
    add_nic(tmp_path, "eth0", numa="1")
    topology = cpu_host(tmp_path, host="h", usable={0, 1})
    assert edges(topology, "pcie") == {("eth0", "numa1")}
    assert edges(topology, "smp") == {("numa0", "numa1")}


def test_infiniband_stands_for_the_interface_on_it(tmp_path):
    add_nic(tmp_path, "mlx5_10", kind="infiniband", bus="0000:5e:00.0", speed="400 Gb/sec (4X NDR)")
    add_nic(tmp_path, "mlx5_2", kind="infiniband", bus="0000:18:00.0", speed="100 Gb/sec (4X EDR)")
    add_nic(tmp_path, "ib0", bus="0000:18:00.0", speed="100000")
    add_nic(tmp_path, "eth0", bus="0000:9b:00.0", speed="25000")
    found = {nic.name: nic.port_gb_per_s for nic in find_nics(tmp_path)}
    assert found == {"mlx5_2": 12.5, "mlx5_10": 50.0, "eth0": 3.125}
    assert list(found) == ["mlx5_2", "mlx5_10", "eth0"]


def test_interfaces_without_hardware_are_no_nics(tmp_path):
    for name in ("lo", "docker0", "veth1"):
        (tmp_path / "class/net" / name).mkdir(parents=True)
    assert list(find_nics(tmp_path)) == []


@pytest.mark.parametrize(
    ("cpus", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 8], "0-2,8"), ([5, 4], "4-5"), ([1, 3, 5], "1,3,5")],
)
def test_cpu_ranges(cpus, text):
    assert cpu_ranges(cpus) == text
