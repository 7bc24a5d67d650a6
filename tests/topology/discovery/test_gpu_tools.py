"""GPUs from the tools of drivers."""

import pytest

from tests.topology.discovery.fake_host import DATA, TOPO, add_tool, find
from tests.topology.pci_trees import (
    INFINIBAND,
    MELLANOX,
    add,
    add_port,
    link,
)
from topocomm.topology.discovery import gpu_tools


def test_a_tool_that_hangs_is_given_up(host, monkeypatch):
    monkeypatch.setattr(gpu_tools, "TOOL_TIMEOUT_S", 0.2)
    add_tool(host, "nvidia-smi", "exec /bin/sleep 30")
    assert "gave no answer in 0.2 s" in find(host).warnings[0]


def test_a_tool_that_cannot_start(host):
    (host / "bin/nvidia-smi").write_bytes(b"\x00\x01")
    (host / "bin/nvidia-smi").chmod(0o755)
    assert "cannot be started" in find(host).warnings[0]


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


def test_the_tool_gives_addresses_and_uuids(host):
    rows = "0, GPU-aa, 00000000:17:00.0, NVIDIA X\n1, GPU-bb, 00000000:18:00.0, NVIDIA X"
    add_tool(host, "nvidia-smi", f'if [ "$1" = topo ]; then {TOPO}; else echo "{rows}"; fi')
    topology = find(host)
    assert topology.by_id["GPU1"].bus_id == "0000:18:00.0"
    assert topology.by_id["GPU0"].name == "NVIDIA X"
    assert topology.by_id["GPU2"].bus_id is None
    assert topology.facts["uuids"] == {"GPU0": "GPU-aa", "GPU1": "GPU-bb"}


def test_a_tool_without_the_query_says_what_is_missing(host):
    add_tool(host, "nvidia-smi", f'if [ "$1" = topo ]; then {TOPO}; else echo no such option; exit 2; fi')
    topology = find(host)
    assert len(topology.endpoints) == 16
    assert any(text.startswith("GPUs have no address: ") for text in topology.warnings)


def test_nics_of_the_tool_get_their_addresses_from_sysfs(host):
    add_tool(host, "nvidia-smi", f'while read -r l; do echo "$l"; done < {DATA}/h100-8-nics.txt')
    device = add(host / "sys", "pci0000:3a/0000:3b:00.0", INFINIBAND, MELLANOX, **link("32.0", 16))
    add_port(host / "sys", device, "mlx5_0", "400 Gb/sec (4X NDR)")
    topology = find(host)
    assert topology.by_id["NIC0"].bus_id == "0000:3b:00.0"
    assert topology.facts["port_gb_per_s"] == {"mlx5_0": 50.0}
    assert topology.facts["pcie"]["0000:3b:00.0"]["width"] == 16


AMD_SMI = """LINK TYPE TABLE:
             0000:17:00.0 0000:18:00.0
0000:17:00.0 SELF         PCIE
0000:18:00.0 PCIE         SELF
"""


def test_amd_gpus_through_the_tools(host):
    add_tool(host, "rocm-smi", "exit 3")
    add_tool(host, "amd-smi", f"[ \"$1\" = topology ] && echo '{AMD_SMI}'")
    topology = find(host)
    assert [topology.by_id[end].bus_id for end in topology.endpoints] == ["0000:17:00.0", "0000:18:00.0"]


def test_the_other_amd_tool_is_tried_and_both_are_named(host):
    add_tool(host, "amd-smi", "echo no driver; exit 4")
    add_tool(host, "rocm-smi", "echo nothing; exit 5")
    warning = find(host).warnings[0]
    assert "`amd-smi topology` failed with status 4: no driver" in warning
    assert "`rocm-smi --showtopo` failed with status 5: nothing" in warning
