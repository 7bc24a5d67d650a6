from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from tests.examples import examples
from tests.topology.matrices import facts_of, render_tabs
from tests.topology.readers.plain.test_topology_json import topologies
from topocomm.topology.catalog.systems import SYSTEMS, catalog
from topocomm.topology.draw.topology_text import render, to_ascii
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.readers.nvidia import nvidia_smi
from topocomm.topology.recognise import load

DATA = Path(__file__).parents[2] / "data/topologies"
CAPTURES = sorted(DATA.glob("*.txt"))


def lines(topology, next_command="topocomm plan --bytes 64KiB"):
    return render(topology, next_command=next_command).splitlines()


def assert_fits(topology):
    screen = lines(topology)
    assert len(screen) <= 39
    assert max(map(len, screen)) <= 80
    return screen


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_every_capture_fits_one_screen(path):
    screen = assert_fits(load(path))
    assert screen[0] == f"{path.stem} (nvidia-smi topo -m)"
    assert screen[-1] == "Next: topocomm plan --bytes 64KiB"


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_fits_one_screen(name):
    assert_fits(catalog(name))
    assert_fits(catalog(name, hosts=4))


def test_a_large_host_fits_one_screen():
    def code(i, j):
        if j < 16:
            return "NV12"
        return "PIX" if i == j - 16 else "NODE" if i % 2 == j % 2 else "SYS"

    nics = [f"NIC{i}" for i in range(48)]
    screen = assert_fits(nvidia_smi.read(render_tabs(facts_of(16, code, nics=nics)), "big.txt"))
    assert any("NVS/0: GPU/0-15 (12 links each)" in line for line in screen)


@given(topologies())
@examples(30)
def test_any_topology_is_drawn(topology):
    assert render(topology, next_command="x").endswith("Next: x\n")


def test_the_tree_names_links_in_the_form_of_nccl():
    screen = lines(load(DATA / "h100-8-nics.txt"))
    assert "└─ NVL[450] - NVS/0: GPU/0-7 (18 links each)" in screen
    assert any("PCI[?] - PCI/0: GPU/0, NIC/0 mlx5_0" in line for line in screen)
    assert any("SMP[?] - NUMA/0 (CPUs 0-55,112-167)" in line for line in screen)
    assert "8 GPUs, 9 NICs, 2 NUMA nodes, 1 NVSwitch, 8 PCIe switches; GPU pairs: 28 NV18" in " ".join(screen)


def test_unknown_figures_are_named_with_what_plans_assume():
    screen = "\n".join(lines(load(DATA / "bridge-pairs-4.txt")))
    assert "Unknown: GB/s of nvlink (14.0625), pcie (16), smp (6)" in screen
    assert "Note: bridge-pairs-4.txt: GB/s of NVLink unknown" in screen
    assert "Unknown" not in "\n".join(lines(catalog("dgx-h100")))


def test_direct_links_are_listed_by_gpu_and_bridges_by_pair():
    screen = lines(load(DATA / "cube-mesh-8.txt"))
    assert "├─ GPU/0: NVL[50] - GPU/3-4 (x2), NVL[25] - GPU/1-2" in screen
    assert "├─ NVL[?] - GPU/0-1 (x4)" in lines(load(DATA / "bridge-pairs-4.txt"))
    assert "└─ XGMI[64] - between GPU/0-7, each to each" in lines(catalog("mi300x-8"))


def test_hosts_alike_are_drawn_once_and_rails_too():
    screen = lines(catalog("dgx-h100", hosts=4))
    assert "4 hosts alike: h0-3" in screen
    assert "├─ rail0-7: NET[50] - one NIC of h0-3; NET[200] - spine" in screen
    assert "└─ GPU/0-3, each PCI[64] - NIC/0-3" in screen
    assert sum("NVS/0" in line for line in screen) == 1


def test_different_hosts_are_drawn_apart():
    screen = lines(merge_hosts([load(DATA / "cube-mesh-8.txt"), load(DATA / "h100-8-nics.txt")]))
    assert {"Host host0", "Host host1", "Network"} <= set(screen)


def test_cores_are_drawn_together():
    screen = lines(catalog("cpu-2-socket"))
    assert "├─ SHM[10] - CPU/0-7" in screen
    assert "SMP[16] - between NUMA/0-1" in screen
    assert "16 cores, 1 NIC, 2 NUMA nodes" in screen


def test_terminals_without_box_characters():
    text = to_ascii(render(catalog("dgx-h100"), next_command="x"))
    assert text.isascii()
    assert "+- NVL[450] - NVS/0" in text


def test_what_does_not_fit_is_counted():
    facts = facts_of(64, lambda i, j: "SYS", numa={f"GPU{i}": str(i) for i in range(64)})
    screen = assert_fits(nvidia_smi.read(render_tabs(facts), "wide.txt"))
    assert any("more lines; `--format json` has everything" in line for line in screen)


def test_nics_of_one_host_stand_where_those_of_a_pair_stand():
    """One host has no links to its NICs, since nothing is sent there; pairs tell which GPUs they are nearest to."""
    alone, pair = (render(catalog("dgx-h100", hosts=hosts), next_command="x") for hosts in (1, 2))
    assert "GPU/0-3, each PCI[64] - NIC/0-3\n" in pair
    assert "NIC/0-3, each PIX - GPU/0-3\n" in alone
    assert "NIC/2-3, PIX - GPU/4-7\n" in render(catalog("p4d"), next_command="x"), "two GPUs share a NIC"
    dgx = catalog("dgx-h100")
    assert "NIC/0-3 (not linked)\n" in render(replace(dgx, pairs=()), next_command="x")


def test_commands_to_run_next_are_not_wrapped():
    long = "topocomm plan --input " + " ".join(f"'a folder/machine-{i}.json'" for i in range(9))
    screen = render(catalog("dgx-h100"), next_command=f"first\n{long}").splitlines()
    assert screen[-2:] == ["Next: first", f"      {long}"]
