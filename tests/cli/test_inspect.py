import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topocomm.cli.main import main
from topocomm.topology.catalog import SYSTEMS, catalog
from topocomm.topology.recognise import load

DATA = Path(__file__).parents[1] / "data/topologies"
DUMP = str(DATA / "h100-8-nics.txt")


def run(capsys, *words):
    """Exit status, stdout and stderr of one command line."""
    try:
        status = main(["inspect", *words])
    except SystemExit as exit_:
        status = exit_.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


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
    assert (status, out) == (1, "")
    assert err == f"topocomm inspect: {file}: cannot write: No such file or directory\n"


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
    (["--hosts", "2"], "--hosts goes with --system NAME only"),
    (["--system", "dgx-h100", "--hosts", "two"], "argument --hosts: invalid int value: 'two'"),
    (["--system", "dgx-h100", "--input", "a"], "argument --input: not allowed with argument --system"),
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
