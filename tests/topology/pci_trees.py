"""Fake sysfs trees: PCI devices below bridges, with links, NUMA nodes and network ports."""

from pathlib import Path

GPU, NIC, INFINIBAND, BRIDGE, NVSWITCH, VGA = "0x030200", "0x020000", "0x020700", "0x060400", "0x068000", "0x030000"
NVIDIA, AMD, MELLANOX, BROADCOM, ASPEED = "0x10de", "0x1002", "0x15b3", "0x1000", "0x1a03"


def add(root: Path, path: str, kind: str, vendor: str, **files: object) -> Path:
    """One device at `pci0000:3a/0000:3a:00.0/...` below `devices`, and its entry on the bus; files by name."""
    folder = root / "devices" / path
    folder.mkdir(parents=True)
    for name, value in {"class": kind, "vendor": vendor, "numa_node": -1, **files}.items():
        (folder / name).write_text(f"{value}\n")
    entry = root / "bus/pci/devices" / folder.name
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.symlink_to(folder)
    return folder


def link(speed: str, width: int, most: str | None = None, most_width: int | None = None) -> dict[str, object]:
    """The four files of a PCIe link."""
    return {
        "current_link_speed": f"{speed} GT/s PCIe",
        "current_link_width": width,
        "max_link_speed": f"{most or speed} GT/s PCIe",
        "max_link_width": most_width or width,
    }


def add_port(root: Path, device: Path, name: str, rate: str | None = None, kind: str = "infiniband") -> None:
    """A network port on a PCI device."""
    port = root / "class" / kind / name
    port.mkdir(parents=True)
    (port / "device").symlink_to(device)
    if rate is not None and kind == "net":
        (port / "speed").write_text(f"{rate}\n")
    elif rate is not None:
        (port / "ports/1").mkdir(parents=True)
        (port / "ports/1/rate").write_text(f"{rate}\n")


def add_nodes(root: Path, nodes: dict[int, str]) -> None:
    """NUMA nodes and their CPUs."""
    for node, cpus in nodes.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpulist").write_text(f"{cpus}\n")


def four_gpus(root: Path, *, vendor: str = NVIDIA) -> None:
    """Two sockets; on each a PCIe 4 switch with two GPUs (idle, as the ports above them: 2.5 GT/s) and an HDR port.

    Bus ids: GPUs 0000:17:00.0, 0000:18:00.0, 0000:b7:00.0, 0000:b8:00.0; NICs 0000:19:00.0 and 0000:b9:00.0.
    """
    add_nodes(root, {0: "0-7", 1: "8-15"})
    for node, head, name in ((0, "1", "mlx5_0"), (1, "b", "mlx5_1")):
        wide = {**link("16.0", 16), "numa_node": node}
        top = f"pci0000:{head}4/0000:{head}4:01.0"
        add(root, top, BRIDGE, "0x8086", **wide)
        add(root, f"{top}/0000:{head}5:00.0", BRIDGE, BROADCOM, **wide)
        for port, device in enumerate(("7", "8", "9")):
            below = f"{top}/0000:{head}5:00.0/0000:{head}6:0{port}.0"
            idle = {**link("2.5", 16, "16.0"), "numa_node": node}
            add(root, below, BRIDGE, BROADCOM, **(wide if device == "9" else idle))
            place = f"{below}/0000:{head}{device}:00.0"
            if device == "9":
                nic = add(root, place, INFINIBAND, MELLANOX, **wide)
                add_port(root, nic, name, "200 Gb/sec (4X HDR)")
            else:
                cpus = "0-7" if node == 0 else "8-15"
                add(root, place, GPU, vendor, local_cpulist=cpus, **idle)
