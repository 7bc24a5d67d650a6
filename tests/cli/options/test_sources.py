"""Several `--input` files: hosts of one job, captures of one machine, and the switches between hosts."""

import json
from pathlib import Path

import pytest

from topocomm.cli.main import main

DATA = Path(__file__).parents[2] / "data/topologies"
STATUS = "".join(
    f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})\n" + "".join(f"\t Link {i}: 26.562 GB/s\n" for i in range(18))
    for gpu in range(8)
)


def inspect(capsys, *words):
    status = main(["inspect", *words, "--format", "json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if status == 0 else captured.err


@pytest.fixture
def files(tmp_path):
    status = tmp_path / "status.txt"
    status.write_text(STATUS)
    switches = tmp_path / "topology.conf"
    switches.write_text(
        "SwitchName=leaf0 Nodes=host0\nSwitchName=leaf1 Nodes=host1\nSwitchName=top Switches=leaf[0-1]\n"
    )
    return {"matrix": str(DATA / "h100-8-nics.txt"), "status": str(status), "switches": str(switches)}


def test_captures_of_two_kinds_are_one_machine(capsys, files):
    status, found = inspect(capsys, "--input", files["matrix"], "--input", files["status"])
    assert status == 0
    assert [device["kind"] for device in found["devices"]].count("gpu") == 8
    into_switch = [link for link in found["links"] if link["src"] == "GPU0" and link["kind"] == "nvlink"]
    assert [(link["lanes"], link["gb_per_s_source"]) for link in into_switch] == [(18, "read")]
    assert into_switch[0]["gb_per_s"] == pytest.approx(18 * 26.562)


def test_captures_of_one_kind_are_a_host_each(capsys, files):
    for words in (
        ["--input", files["matrix"], files["matrix"]],
        ["--input", files["matrix"], "--input", files["matrix"]],
    ):
        status, found = inspect(capsys, *words)
        assert status == 0 and [device["kind"] for device in found["devices"]].count("gpu") == 16


def test_hosts_are_copies_of_the_one_in_a_file(capsys, files):
    status, found = inspect(capsys, "--input", files["matrix"], files["status"], "--hosts", "3")
    assert status == 0
    _, alone = inspect(capsys, "--input", files["matrix"], files["status"])
    of_hosts = [device["host"] for device in found["devices"] if device["kind"] == "gpu"]
    assert of_hosts == [f"host{i}" for i in range(3) for _ in range(8)]
    assert {device["id"] for device in found["devices"] if device["host"] == "network"} == {"network"}
    assert found["name"] == f"{alone['name']} x 3"
    assert found["warnings"] == alone["warnings"]
    assert inspect(capsys, "--input", files["matrix"], files["status"], "--hosts", "1") == (0, alone)


def test_copies_of_several_hosts_or_of_none_are_refused(capsys, files):
    status, said = inspect(capsys, "--input", files["matrix"], files["matrix"], "--hosts", "2")
    assert status == 2 and "has 2 hosts; --hosts makes copies of one host: leave it out for a cluster" in said
    status, said = inspect(capsys, "--input", files["matrix"], "--hosts", "0")
    assert status == 2 and "--hosts 0: expected at least 1" in said


def test_a_file_of_switches_joins_the_hosts(capsys, files):
    status, found = inspect(capsys, "--input", files["matrix"], files["matrix"], files["switches"])
    assert status == 0
    switches = {device["id"] for device in found["devices"] if device["host"] == "network"}
    assert {"leaf0", "leaf1", "top"} <= {name.rpartition("/")[2] for name in switches}


@pytest.mark.parametrize("names", [["switches"], ["matrix", "switches"], ["matrix", "matrix", "switches", "switches"]])
def test_switches_without_hosts_to_join_are_refused(capsys, files, names):
    status, error = inspect(capsys, "--input", *(files[name] for name in names))
    assert status == 2 and "give one of switches beside those of two hosts or more" in error
