"""`topocomm order`: its formats, its gain on stderr, and bad usage."""

import json

import pytest

from tests.topology.readers.hwloc.machines import Xml
from topocomm.cli.main import main

CLUSTER = ("--system", "dgx-h100", "--hosts", "2")
ROUND_ROBIN = ",".join(f"h{host}/GPU{gpu}" for gpu in range(8) for host in range(2))


def run(capsys, *words):
    try:
        status = main(["order", *words])
    except SystemExit as exit_:
        status = exit_.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_order_goes_to_stdout_and_the_gain_to_stderr(capsys):
    words = (*CLUSTER, "--ranks", ROUND_ROBIN, "--objective", "throughput")
    status, out, err = run(capsys, *words)
    assert (status, err.count("\n")) == (0, 1)
    assert err.startswith("allreduce 1048576 B, objective throughput: ")
    lines = [line for line in out.splitlines() if line.startswith("rank")]
    hosts = [line.split("=")[1].split()[0] for line in lines]
    assert [int(line.split()[1].split("=")[0]) for line in lines] == [*range(16)]
    mesh = json.loads(run(capsys, *words, "--format", "devicemesh")[1])
    assert [f"h{rank % 2}" for rank in mesh] == hosts
    if "as good as any found" in err:  # a planner that finds the hosts by itself
        assert mesh == [*range(16)]
    else:
        assert "x better" in err
        assert hosts == ["h0"] * 8 + ["h1"] * 8
        assert run(capsys, *words, "--format", "map-by")[1] == "--map-by ppr:8:node --rank-by slot\n"


def test_without_anything_better_the_order_stays(capsys):
    status, out, err = run(capsys, "--system", "dgx-h100", "--bytes", "0", "--format", "devicemesh")
    assert (status, out) == (0, f"{[*range(8)]}\n")
    assert "the given order is as good as any found" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--system", "dgx-h100", "--ranks", "9"), "--ranks 9: topology 'dgx-h100' has 8 endpoints; expected 1 to 8"),
        (("--system", "dgx-h100", "--ranks", "GPU0,GPU0"), "order: two ranks on one endpoint"),
        (("--system", "dgx-h100", "--format", "json"), "argument --format: invalid choice: 'json'"),
        (("--system", "nowhere"), "system 'nowhere' is not in the catalogue"),
        (
            ("--system", "dgx-h100", "--ranks", "GPU1,GPU0", "--format", "map-by"),
            "only a rankfile can, use --format rankfile",
        ),
    ],
)
def test_bad_usage_is_one_line(capsys, words, message):
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def names_file(tmp_path, text):
    file = tmp_path / "hosts.txt"
    file.write_text(text)
    return str(file)


def test_hosts_get_their_names_from_a_file(capsys, tmp_path):
    file = names_file(tmp_path, "# the cluster\nleft.example slots=8\n\nright  # second\n")
    status, out, _ = run(capsys, "--system", "dgx-h100", "--hosts", file, "--bytes", "64KiB")
    assert status == 0
    ranks = [line.split("=")[1] for line in out.splitlines() if line.startswith("rank")]
    assert ranks == ["left.example"] * 8 + ["right"] * 8
    assert "--hosts FILE" not in out
    assert "--hosts FILE" in run(capsys, "--system", "dgx-h100", "--hosts", "2", "--bytes", "64KiB")[1]


def test_hosts_of_captures_are_named_in_their_order(capsys, tmp_path):
    capture = tmp_path / "topo.json"
    capture.write_text(json.dumps({"schema": "topocomm.topology/1", "name": "a", "source": "a", **PAIR}))
    file = names_file(tmp_path, "node7\n")
    status, out, _ = run(capsys, "--input", str(capture), "--hosts", file, "--bytes", "0")
    assert (status, [line for line in out.splitlines() if "rank" in line][-1]) == (0, "rank 1=node7")


PAIR = {
    "devices": [{"id": f"GPU{i}", "kind": "gpu", "host": "host0"} for i in range(2)],
    "links": [
        {"src": f"GPU{i}", "dst": f"GPU{1 - i}", "kind": "nvlink", "gb_per_s": 50.0, "latency_us": 1.0}
        for i in range(2)
    ],
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "hosts.txt: no host name; expected one a line"),
        ("# none\n\n", "hosts.txt: no host name; expected one a line"),
        ("a\nb\na\n", "hosts.txt:3: host 'a' again, as in line 1; expected each host once"),
        ("a b\n", "hosts.txt:1: expected one host name, got 'a b'"),
        ("a\nslot\n", "hosts.txt:2: expected one host name, got 'slot'"),
        ("3a.example\n", "hosts.txt:1: expected one host name, got '3a.example'"),
        ("a\n", "hosts.txt: 1 host names; topology 'dgx-h100 x 2' has 2 hosts (h0, h1), expected a name for each"),
    ],
)
def test_a_file_of_names_that_does_not_fit(capsys, tmp_path, text, said):
    capture = tmp_path / "pair.json"
    main(["inspect", *CLUSTER, "--format", "json", "--output", str(capture)])
    words = ("--input", str(capture), "--hosts", names_file(tmp_path, text), "--bytes", "0")
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_where_names_do_not_go(capsys, tmp_path):
    file = names_file(tmp_path, "a\nb\n")
    status, _, err = run(capsys, "--system", "dgx-h100", "--hosts", file, "--format", "map-by")
    assert (status, f"--hosts {file} goes with --format rankfile only: map-by names no hosts" in err) == (2, True)
    status, _, err = run(capsys, "--system", "gb200-nvl72", "--hosts", file)
    assert (status, "2 host names; a system gb200-nvl72 has 18, expected so many" in err) == (2, True)
    status, _, err = run(capsys, "--system", "dgx-h100", "--hosts", str(tmp_path / "nowhere"))
    assert (status, "nowhere" in err) == (2, True)


MATRIX = """\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tSYS\t0,2,4,6\t0
GPU1\tSYS\t X \t1,3,5,7\t1
"""


def test_cores_come_from_lstopo_beside_nvidia_smi(capsys, tmp_path):
    """Two sockets whose CPUs Linux numbers in turn: by its numbers, both ranks would be on the first one."""
    xml = Xml()
    xml.begin("Machine", os_index=0, cpuset="0x000000ff")
    for socket, address in ((0, "0000:18:00.0"), (1, "0000:af:00.0")):
        own = {"cpuset": f"0x{0x55 << socket:08x}"}
        xml.begin("Package", os_index=socket, **own)
        xml.single("NUMANode", os_index=socket, nodeset=f"0x{1 << socket:08x}", **own)
        for core in range(2):
            xml.single("Core", os_index=core, cpuset=f"0x{0x11 << socket + 2 * core:08x}")
        xml.host_bridge(f"0000:[{address[5:7]}-{address[5:7]}]")
        xml.gpu(address, f"cuda{socket}", f"nvml{socket}")
        xml.end(2)
    xml.end()
    matrix, machine = tmp_path / "topo.txt", tmp_path / "topo.xml"
    matrix.write_text(MATRIX)
    machine.write_text(xml.text())
    words = ("--bytes", "64KiB", "--hosts", names_file(tmp_path, "node\n"))
    alone = run(capsys, "--input", str(matrix), *words)[1].splitlines()
    assert alone[1:] == ["rank 0=node", "rank 1=node"]
    assert alone[0].endswith("give what `lstopo topo.xml` writes there beside the other files: --input FILE topo.xml")
    both = run(capsys, "--input", str(matrix), str(machine), *words)[1].splitlines()
    assert both == ["rank 0=node slot=0:0", "rank 1=node slot=1:0"]
