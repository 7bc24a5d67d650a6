"""Texts and topologies without names, paths and addresses; `test_report` plants many in a whole report."""

from dataclasses import replace

from tests.doctor.test_report import ENVIRONMENT, PLANTED, TEXTS
from topocomm import catalog
from topocomm.doctor.anonymous import Anonymous, anonymous
from topocomm.doctor.report import pair_matrices
from topocomm.topology.model import Device


def test_every_planted_text_loses_its_names():
    names = anonymous(None, ENVIRONMENT, ("/home/bjones/fermi-node17.txt",))
    names = replace(names, hosts={**names.hosts, "fermi-node17": "host1", "fermi-node18": "host2"})
    for text in TEXTS:
        plain = names.text(text).lower()
        assert [word for word in PLANTED if word.lower() in plain] == [], plain


def test_bus_ids_versions_and_digests_are_no_addresses():
    names = Anonymous({})
    kept = (
        "0000:0c:00.0 and 00000008:00:00.0, numpy 2.4.6, Open MPI v5.0.11, Linux 5.15.0-1053-aws, CPUs 0-51,104-155",
        "digest 5dba587035ee, nvidia-smi topo -m, send/recv, N/A, GPU/0-3, --map-by ppr:4:node, 8:128MiB:2",
        "/dev/shm, /proc/driver/nvidia, /sys/bus/pci/devices/BUS, /etc/modprobe.d, MPI4PY_LIBMPI=/path",
        "15.8 GB/s, mlx5_0, enp34s0f0, rocep1s0f0, NV18, 16 GT/s x16, 0x030200, ffffffff,0000ffff",
        "system, serial connection, serialised",
    )
    for text in kept:
        assert names.text(text) == text


def test_names_of_hosts_stand_alone_and_keep_their_numbers():
    names = Anonymous({"node1": "host0", "node10": "host1", "host0": "host2", "a": "host3"}, users=("mpi",))
    assert names.text("node1 node10 node100 xnode1 node1-ib0 host0") == "host0 host1 node100 xnode1 host0-ib0 host2"
    assert names.text("a: a GPU of a/GPU0") == "host3: a GPU of host3/GPU0"
    assert names.text("mpi uses mpi4py over MPI") == "user uses mpi4py over MPI"


def test_a_host_called_like_a_code_does_not_change_the_matrix():
    machine = catalog("dgx-h100")
    machine = replace(machine, devices=tuple(d._replace(host="node") for d in machine.devices))
    names = anonymous(machine, {}, ())
    assert names.text("NODE and node") == "NODE and host0"
    assert "GPU0  X     NV18" in "\n".join(pair_matrices(names.topology(machine)))


def test_ids_that_become_equal_stay_apart():
    devices = tuple(Device(f"10.0.0.{i}", "gpu") for i in range(3))
    machine = replace(catalog("dgx-h100"), devices=devices, links=(), pairs=())
    assert len(Anonymous({}).topology(machine).by_id) == 3


def test_odd_accounts(monkeypatch):
    def none():
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", none)
    assert anonymous(None, {"USER": "bjones"}).users == ("bjones",)
    assert anonymous(None, {}, ()).text("nothing to hide") == "nothing to hide"


def test_long_texts_are_quick():
    names = anonymous(catalog("dgx-h100", hosts=64), ENVIRONMENT, ())
    for text in (
        "a" * 100_000,
        "a." * 50_000,
        "a:" * 50_000,
        "/a" * 50_000,
        "1-" * 50_000,
        "@" * 100_000,
        "::" * 50_000,
    ):
        names.text(text)
