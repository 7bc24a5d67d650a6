import os
import stat
from pathlib import Path

import pytest

from tests.topology.test_sysfs import two_sockets
from topocomm.topology import discover as module
from topocomm.topology.discover import discover, display_devices

DATA = Path(__file__).parents[1] / "data/topologies"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A machine of its own: empty PATH folder, sysfs with two sockets, empty procfs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "proc").mkdir()
    two_sockets(tmp_path / "sys")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


def find(host):
    return discover(sysfs=host / "sys", proc=host / "proc")


def add_tool(host, name, script):
    file = host / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def add_pci(host, bus, kind, vendor):
    folder = host / "sys/bus/pci/devices" / bus
    folder.mkdir(parents=True)
    (folder / "class").write_text(f"{kind}\n")
    (folder / "vendor").write_text(f"{vendor}\n")


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


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo 'NVIDIA-SMI has failed: no driver'; exit 9",
            "`nvidia-smi topo -m` failed with status 9: NVIDIA-SMI has failed",
        ),
        ("exit 3", "failed with status 3: no message"),
        ("echo nothing of use", "no header row"),
    ],
)
def test_a_tool_that_fails_is_named_and_the_cores_are_used(host, script, message):
    add_tool(host, "nvidia-smi", script)
    topology = find(host)
    assert topology.endpoints[0] == "cpu0"
    assert message in topology.warnings[0]


def test_a_tool_that_hangs_is_given_up(host, monkeypatch):
    monkeypatch.setattr(module, "TOOL_TIMEOUT_S", 0.2)
    add_tool(host, "nvidia-smi", "exec /bin/sleep 30")
    assert "gave no answer in 0.2 s" in find(host).warnings[0]


def test_a_tool_that_cannot_start(host):
    (host / "bin/nvidia-smi").write_bytes(b"\x00\x01")
    (host / "bin/nvidia-smi").chmod(0o755)
    assert "cannot be started" in find(host).warnings[0]


def test_devices_without_their_tool_are_pointed_out(host):
    add_pci(host, "0000:17:00.0", "0x030200", "0x10de")
    add_pci(host, "0000:65:00.0", "0x030200", "0x10de")
    add_pci(host, "0000:03:00.0", "0x030000", "0x1a03")  # a server's management display
    add_tool(host, "rocm-smi", "")
    assert display_devices(host / "sys") == {"NVIDIA": 2}
    warning = find(host).warnings[0]
    assert "nvidia-smi is not on PATH" in warning
    assert "2 NVIDIA display device(s) on PCI" in warning
    assert "rocm-smi is there" in warning


def test_this_machine():
    topology = discover()
    assert topology.endpoints
    assert all(topology.by_id[end].host == os.uname().nodename for end in topology.endpoints)
