import re
import subprocess
from pathlib import Path

import pytest

from tests.topology.draw.machines import mixed_cluster, two_gpus
from topocomm.topology.catalog.systems import SYSTEMS, catalog
from topocomm.topology.export.environment import render
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Pair, Topology
from topocomm.topology.recognise import load

DATA = Path(__file__).parents[2] / "data/topologies"
H100_CARDS = "=mlx5_0,mlx5_1,mlx5_2,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_11"


def variables(text, folder, rank="", host="any", launcher="LOCAL_RANK"):
    """What a shell that sources the text has afterwards, and what it complains of."""
    file = folder / "env.sh"
    file.write_text(text)
    names = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES", "TOPOCOMM_CPUS")
    script = f"hostname() {{ echo '{host}'; }}; . '{file}'; " + "; ".join(f'echo "{n}=${n}"' for n in names)
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", "set +u; " + script],
        env={"PATH": "/usr/bin:/bin", launcher: rank},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    return {name: value for name, value in found.items() if value}, done.stderr


def test_a_capture_to_the_byte():
    text = render(two_gpus())
    assert text == "\n".join(
        [
            "# pair (by hand): network cards and cores for each local rank.",
            "# Source it in every rank, one for each GPU (or core) in order of local ranks.",
            "# 1 host: host0; 2 local ranks",
            "",
            "# the same for all ranks of a host, or NCCL's numbers of cards do not agree",
            'export NCCL_IB_HCA="=mlx5_0"',
            "",
            'case "${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-${LOCAL_RANK:-}}}" in',
            "0)",
            "  # GPU0: NIC0 mlx5_0: PIX",
            "  export UCX_NET_DEVICES=mlx5_0:1  # port 1 is assumed",
            "  export TOPOCOMM_CPUS=0-3",
            "  ;;",
            "1)",
            "  # GPU1: NIC0 mlx5_0: SYS",
            "  export UCX_NET_DEVICES=mlx5_0:1  # port 1 is assumed",
            "  export TOPOCOMM_CPUS=4-7",
            "  ;;",
            '"") echo "local rank not known: set LOCAL_RANK" >&2 ;;',
            "esac",
            "",
            "# To bind, with this file as env.sh and your program as ./app:",
            '#   mpirun -n 2 --bind-to none bash -c \'. ./env.sh; exec taskset -c "$TOPOCOMM_CPUS" "$@"\' - ./app',
            "#   srun --ntasks-per-node=2 --cpu-bind=mask_cpu:0xf,0xf0 ./app",
            "#   mpirun -n 2 --map-by ppr:1:numa --bind-to numa ./app",
            "#   srun --ntasks-per-node=2 --cpu-bind=map_ldom:0,1 ./app",
            "# NUMA node 0: local ranks 0; CPUs 0-3",
            "# NUMA node 1: local ranks 1; CPUs 4-7",
            "",
        ]
    )


@pytest.mark.parametrize("launcher", ["OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "LOCAL_RANK"])
def test_a_shell_takes_it(tmp_path, launcher):
    text = render(load(DATA / "h100-8-nics.txt"))
    found, complaint = variables(text, tmp_path, "7", launcher=launcher)
    assert complaint == ""
    assert found == {
        "NCCL_IB_HCA": H100_CARDS,
        "UCX_NET_DEVICES": "mlx5_11:1",
        "TOPOCOMM_CPUS": "56-111,168-223",
    }


def numbers_of_cards(setting, cards):
    """NCCL's numbers by card: `ncclIbInitDevices` (src/transport/net_ib) counts those that NCCL_IB_HCA lets through."""
    allowed = setting.removeprefix("=").split(",")
    return {card: number for number, card in enumerate(card for card in cards if card in allowed)}


@pytest.mark.parametrize("name", ["h100-8-nics.txt", "cube-mesh-8.txt"])
def test_ranks_of_a_host_number_the_cards_alike(tmp_path, name):
    """`ncclTopoAddNet` calls a card by its number: two cards of one number are one card to all ranks of the host."""
    topology = load(DATA / name)
    text = render(topology)
    cards = [d.name for d in topology.devices if d.kind == "nic"]
    found = [variables(text, tmp_path, str(rank))[0] for rank in range(8)]
    assert len({each["UCX_NET_DEVICES"] for each in found}) > 1
    assert len({tuple(numbers_of_cards(each["NCCL_IB_HCA"], cards).items()) for each in found}) == 1
    mine = {card.removesuffix(":1") for each in found for card in each["UCX_NET_DEVICES"].split(",")}
    assert set(numbers_of_cards(found[0]["NCCL_IB_HCA"], cards)) == mine


def test_a_card_without_a_name_is_not_shut_out(tmp_path):
    pair = two_gpus()
    text = render(
        Topology("x", "x", (*pair.devices, Device("NIC1", "nic")), (), (*pair.pairs, Pair("GPU1", "NIC1", "PIX")))
    )
    assert "# cards of NCCL: it chooses, as the system names of NIC1 are not known" in text
    assert "NCCL_IB_HCA" not in variables(text, tmp_path, "0")[0]


def test_without_a_rank_it_says_so_and_sets_what_all_ranks_have(tmp_path):
    found, complaint = variables(render(two_gpus()), tmp_path)
    assert (found, complaint) == ({"NCCL_IB_HCA": "=mlx5_0"}, "local rank not known: set LOCAL_RANK\n")


def test_interfaces_are_for_sockets_only_where_no_rank_has_a_card(tmp_path):
    mixed = two_gpus()
    devices = (*mixed.devices, Device("NIC1", "nic", name="ens3f0"))
    pairs = (*mixed.pairs, Pair("GPU1", "NIC1", "PIX"))
    text = render(Topology("mixed", "by hand", devices, (), pairs))
    assert variables(text, tmp_path, "0")[0]["NCCL_IB_HCA"] == "=mlx5_0"
    other, _ = variables(text, tmp_path, "1")
    assert (other["NCCL_IB_HCA"], other["UCX_NET_DEVICES"]) == ("=mlx5_0", "ens3f0")
    assert "NCCL_SOCKET_IFNAME" not in text


def test_nearest_is_the_best_code_and_all_that_have_it(tmp_path):
    text = render(load(DATA / "cube-mesh-8.txt"))
    assert "  # GPU0: mlx5_0: PIX" in text
    codes = {line.split()[-1] for line in text.splitlines() if re.match(r"  # GPU\d", line)}
    assert codes == {"PIX"}


def test_what_is_not_known_is_a_comment(tmp_path):
    text = render(two_gpus(numa=(0, None), cpus=("0-3", None), nic=None))
    assert "# NIC0: no name is known; `ibdev2netdev` or `ls /sys/class/infiniband` tells" in text
    assert "  # cores: not known" in text
    assert "#   the cores of GPU1 are not known: no line with CPU lists" in text
    assert "#   not every rank has one NUMA node that is known: no line with NUMA nodes" in text
    assert variables(text, tmp_path, "1") == ({}, "")


def test_network_interfaces_that_are_no_rdma_devices_are_for_sockets(tmp_path):
    found, _ = variables(render(two_gpus(nic="ens3f0")), tmp_path, "0")
    assert found == {"NCCL_SOCKET_IFNAME": "=ens3f0", "UCX_NET_DEVICES": "ens3f0", "TOPOCOMM_CPUS": "0-3"}


@pytest.mark.parametrize("name", ["x;touch evil", "$(touch evil)", "`x`", "a\nb", "mlx5_0;x", "'"])
def test_names_are_never_run(tmp_path, name):
    topology = two_gpus(nic=name, cpus=("0-3;x", "$(x)"))
    devices = tuple(d._replace(id=d.id, host="h'$(x)") for d in topology.devices)
    text = render(Topology(name, name, devices, (), topology.pairs))
    found, complaint = variables(text, tmp_path, "0")
    assert (found, complaint) == ({}, "")
    assert not (Path.cwd() / "evil").exists()


def test_hosts_that_differ_are_chosen_by_name(tmp_path):
    text = render(mixed_cluster())
    assert "'host0')" in text
    first, _ = variables(text, tmp_path, "1", host="host0")
    other, _ = variables(text, tmp_path, "1", host="elsewhere")
    assert other == {}
    assert set(first) <= {"TOPOCOMM_CPUS"}  # the catalogue has no names of network cards


def test_hosts_alike_are_one_part():
    text = render(catalog("dgx-h100", hosts=4))
    assert "# 4 hosts: h0-3; 8 local ranks" in text
    assert "hostname" not in text


def test_cores_go_to_the_nics_of_their_numa_node():
    devices = [Device(f"cpu{i}", "cpu", numa=i, cpu_affinity=str(i)) for i in range(2)]
    devices += [Device(f"numa{i}", "numa", numa=i) for i in range(2)]
    devices.append(Device("mlx5_0", "nic", name="mlx5_0", numa=1))
    links = [link for i in range(2) for link in both_ways(f"cpu{i}", f"numa{i}", "shared-memory")]
    text = render(Topology("cores", "by hand", tuple(devices), tuple(links)))
    assert "  # cpu0: no network card is known to be near" in text
    assert "  # cpu1: mlx5_0: the same NUMA node" in text


def test_masks_of_long_and_odd_lists():
    text = render(two_gpus(cpus=("0,2,4-5", "99999")))
    assert "mask_cpu" not in text  # one list has a number that no CPU has
    assert "mask_cpu:0x35,0x80" in render(two_gpus(cpus=("0,2,4-5", "7")))


def test_a_topology_without_endpoints_says_so():
    assert "# No GPU and no core is known here." in render(Topology("x", "by hand", (Device("NIC0", "nic"),), ()))


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_taken_by_a_shell(tmp_path, name):
    _, complaint = variables(render(catalog(name, hosts=2)), tmp_path, "0")
    assert complaint == ""
