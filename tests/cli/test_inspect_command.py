import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import runs
from topocomm.topology.catalog.systems import SYSTEMS, catalog
from topocomm.topology.readers.plain.topology_json import dumps
from topocomm.topology.recognise import load

DATA = Path(__file__).parents[1] / "data/topologies"
DUMP = str(DATA / "h100-8-nics.txt")


run = runs("inspect")


def test_this_machine_in_text(capsys):
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    screen = out.splitlines()
    assert len(screen) <= 39
    assert max(map(len, screen)) <= 80
    assert screen[-1].startswith("Next: topocomm plan")
    assert sum(line.startswith("No GPU") for line in screen) <= 1


def test_this_machine_in_json(capsys):
    status, out, err = run(capsys, "--format", "json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "topocomm.topology/1"
    assert {"gpu", "cpu"} & {device["kind"] for device in document["devices"]}


def test_a_dump(capsys):
    status, out, _ = run(capsys, "--input", DUMP)
    assert status == 0
    assert "NVL[450] - NVS/0: GPU/0-7 (18 links each)" in out
    assert f"Next: topocomm plan --input {DUMP} --bytes 64KiB" in " ".join(out.split())


def test_json_out_is_json_in(capsys, tmp_path):
    _, out, _ = run(capsys, "--input", DUMP, "--format", "json")
    file = tmp_path / "again.json"
    file.write_text(out)
    assert load(file) == load(DUMP)
    assert run(capsys, "--input", str(file), "--format", "json")[1] == out


def test_several_inputs_are_one_host_each(capsys):
    _, out, _ = run(capsys, "--input", DUMP, str(DATA / "cube-mesh-8.txt"), "--format", "json")
    devices = {device["id"]: device for device in json.loads(out)["devices"]}
    assert (devices["host0/GPU7"]["host"], devices["host1/GPU7"]["host"]) == ("host0", "host1")


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems(capsys, name):
    _, out, _ = run(capsys, "--system", name, "--hosts", "2", "--format", "json")
    assert json.loads(out)["name"] == f"{name} x 2"
    status, out, _ = run(capsys, "--system", name)
    assert status == 0
    assert out.endswith(f"Next: topocomm plan --system {name} --bytes 64KiB\n")


def test_a_single_gpu_has_nothing_to_plan_on(capsys, tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t\tN/A\n")
    assert "Next: topocomm plan --system dgx-h100" in run(capsys, "--input", str(file))[1]


def test_output_is_whole_and_stdout_empty(capsys, tmp_path):
    file = tmp_path / "out.json"
    file.write_text("old")
    status, out, err = run(capsys, "--system", "dgx-a100", "--format", "json", "--output", str(file))
    assert (status, out, err) == (0, "", "")
    assert load(file) == catalog("dgx-a100")
    assert os.listdir(tmp_path) == ["out.json"]


def test_output_through_a_link_keeps_the_link(capsys, tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    run(capsys, "--system", "dgx-a100", "--output", str(tmp_path / "link.txt"))
    assert (tmp_path / "link.txt").is_symlink()
    assert "NVS/0" in (tmp_path / "real.txt").read_text()


def test_output_that_cannot_be_written(capsys, tmp_path):
    file = tmp_path / "none" / "out.txt"
    status, out, err = run(capsys, "--system", "dgx-a100", "--output", str(file))
    assert (status, out) == (2, "")
    assert err == f"topocomm inspect: --output {file}: expected a folder {file.parent}; make it, or name another\n"


def test_a_failed_write_leaves_the_old_file(capsys, tmp_path, monkeypatch):
    file = tmp_path / "out.txt"
    file.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, _, err = run(capsys, "--system", "dgx-a100", "--output", str(file))
    assert status == 1
    assert "No space left on device" in err
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


BAD = [
    (["--input", "none.txt"], "none.txt: cannot be read: No such file or directory"),
    (["--system", "dgx-x"], "system 'dgx-x' is not in the catalogue; it has dgx-1-v100"),
    (["--system", "dgx-h100", "--hosts", "0"], "hosts must be at least 1, got 0"),
    (["--hosts", "2"], "--hosts goes with --system NAME, or with --input FILE of one host"),
    (["--system", "dgx-h100", "--hosts", "two"], "argument --hosts: expected a whole number, got 'two'"),
    (["--system", "dgx-h100", "--input", "a"], "argument --input: not allowed with argument --system"),
    (["--invent-bus-ids"], "--invent-bus-ids goes with --system NAME --format nccl-xml, of one host, only"),
    (["--system", "dgx-h100", "--invent-bus-ids"], "--invent-bus-ids goes with --system NAME --format nccl-xml"),
    (["--system", "dgx-h100", "--format", "nccl-xml"], "has none: --invent-bus-ids makes some up, for simulation"),
    (["--format", "yaml"], "argument --format: invalid choice: 'yaml'"),
    (["--input"], "argument --input: expected at least one argument"),
    (["--colour"], "unrecognized arguments: --colour"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_usage_and_bad_input_are_one_line_and_status_2(capsys, words, message):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("topocomm")
    assert message in err


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\x00\x01\x02\x03" * 50, "not a text file"),
        (b"some notes\n", "unknown format; looked for"),
        (Path(DUMP).read_bytes()[:700], ": the text ends"),
        (
            b'{"devices": [{"id": "a", "kind": "gpu"}], "links": [{"src": "b"}]}',
            "links[0].src: expected the id of a device",
        ),
        (b'{"devices": [', "not JSON"),
    ],
)
def test_bad_files_are_one_line_and_status_2(capsys, tmp_path, data, message):
    file = tmp_path / "odd\nname.txt"  # a line break in the name stays out of the message
    file.write_bytes(data)
    status, out, err = run(capsys, "--input", str(file), "--format", "json")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "name.txt" in err
    assert message in err


def in_process(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "topocomm", *words],
        capture_output=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def test_as_a_module_on_a_terminal_without_box_characters():
    done = in_process("inspect", "--system", "dgx-h100", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"+- NVL[450] - NVS/0" in done.stdout


def test_the_graph_library_is_not_loaded():
    code = "import sys, topocomm.cli.main as m; m.main(['inspect']); sys.exit('networkx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m topocomm inspect --system dgx-h100 --hosts 64 --format json | head -c 10"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=60, check=False)
    assert done.stdout == b'{"schema":'
    assert done.stderr == b""


STARTS = {
    "text": "h100-8-nics (nvidia-smi topo -m)\n",
    "matrix": "\tGPU0\tGPU1\t",
    "json": '{"schema": "topocomm.topology/1"',
    "dot": "// h100-8-nics (nvidia-smi topo -m)\ngraph ",
    "svg": '<svg xmlns="http://www.w3.org/2000/svg"',
    "html": "<!DOCTYPE html>\n",
    "env": "# h100-8-nics (nvidia-smi topo -m): ",
}


@pytest.mark.parametrize("name", STARTS)
def test_formats(capsys, tmp_path, name):
    status, out, err = run(capsys, "--input", DUMP, "--format", name)
    assert (status, err) == (0, "")
    assert out.startswith(STARTS[name])
    assert out.endswith("\n")
    file = tmp_path / "out"
    assert run(capsys, "--input", DUMP, "--format", name, "--output", str(file)) == (0, "", "")
    assert file.read_text() == out


@pytest.mark.parametrize("name", ["matrix", "json"])
def test_what_is_written_is_read_back_with_equal_pairs(capsys, tmp_path, name):
    file = tmp_path / "again"
    run(capsys, "--input", DUMP, "--format", name, "--output", str(file))
    assert load(file).pairs == load(DUMP).pairs


def test_pictures_of_this_machine(capsys):
    for name in ("svg", "html", "dot", "env"):
        assert run(capsys, "--format", name)[0] == 0


def test_nccl_xml_of_a_machine_with_bus_ids(capsys, tmp_path):
    devices = [{"id": f"GPU{i}", "kind": "gpu", "numa": 0, "bus_id": f"0000:0{i}:00.0"} for i in (1, 2)]
    devices.append({"id": "numa0", "kind": "numa", "numa": 0})
    ends = [(f"GPU{i}", "numa0") for i in (1, 2)]
    links = [{"src": a, "dst": b, "kind": "pcie"} for pair in ends for a, b in (pair, pair[::-1])]
    file = tmp_path / "two.json"
    file.write_text(json.dumps({"devices": devices, "links": links}))
    status, out, err = run(capsys, "--input", str(file), "--format", "nccl-xml")
    assert (status, err) == (0, "")
    assert '<system version="1">' in out


def test_nccl_xml_of_a_system_reads_back(capsys, tmp_path):
    file = tmp_path / "dgx.xml"
    words = ("--system", "dgx-a100", "--format", "nccl-xml", "--invent-bus-ids", "--output", str(file))
    assert run(capsys, *words) == (0, "", "")
    again = load(file)
    assert {(p.a, p.b): p.code for p in again.pairs}["GPU0", "GPU7"] == "NV12"
    assert again.warnings == ()


def test_a_format_that_cannot_show_the_machine_says_so_in_one_line(capsys):
    status, out, err = run(capsys, "--system", "cpu-2-socket", "--format", "matrix")
    assert (status, out) == (2, "")
    assert err == (
        "topocomm inspect: cpu-2-socket: no GPU, and nvidia-smi's matrix has GPUs and NICs only; use --format text\n"
    )


def test_compare(capsys, tmp_path):
    file = tmp_path / "other.json"
    run(capsys, "--system", "dgx-b200", "--format", "json", "--output", str(file))
    status, out, err = run(capsys, "--system", "dgx-h100", "--compare", str(file))
    assert (status, err) == (0, "")
    assert out.startswith("dgx-h100: dgx-h100 (catalogue): 8 GPUs")
    assert "other.json: dgx-b200 (catalogue)" in out
    assert "GB/s 450 -> 900: nvlink GPU0-nvswitch0" in out
    assert max(map(len, out.splitlines())) <= 80
    assert run(capsys, "--input", str(file), "--compare", str(file), "--format", "text")[:2] == (
        0,
        "other.json (1): dgx-b200 (catalogue): 8 GPUs, 8 NICs, 2 NUMA nodes, 1 NVSwitch;\n    GPU pairs: 28 NV18\n"
        "other.json (2): dgx-b200 (catalogue): 8 GPUs, 8 NICs, 2 NUMA nodes, 1 NVSwitch;\n    GPU pairs: 28 NV18\n"
        "\nNo difference in devices, pairs and links.\n",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compare", "none.txt"], "none.txt: cannot be read: No such file or directory"),
        (["--compare", DUMP, "--format", "json"], "--compare prints text: leave --format json out"),
        (["--compare"], "argument --compare: expected one argument"),
    ],
)
def test_bad_comparisons_are_one_line_and_status_2(capsys, words, message):
    status, out, err = run(capsys, "--system", "dgx-a100", *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Topology JSON of 1,024 hosts."""
    file = tmp_path_factory.mktemp("cluster") / "cluster.json"
    file.write_text(dumps(catalog("dgx-h100", hosts=1024)))
    return str(file)


@pytest.mark.long
@pytest.mark.parametrize("name", ["text", "json", "html"])
def test_a_cluster_of_1024_hosts_is_written(cluster, tmp_path, name):
    done = in_process("inspect", "--input", cluster, "--format", name, "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr


def test_a_matrix_is_folded_for_a_narrow_terminal_alone(capsys, monkeypatch):
    words = ("--system", "dgx-h100", "--format", "matrix")
    whole = run(capsys, *words)[1]
    monkeypatch.setenv("COLUMNS", "60")
    assert run(capsys, *words)[1] == whole
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    folded = run(capsys, *words)[1]
    assert max(map(len, folded.splitlines())) <= 60
    assert "\n      NIC1  NIC2" in folded
