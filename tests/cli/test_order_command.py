"""`topocomm order`: its formats, its gain on stderr, and bad usage."""

import json

import pytest

from tests.cli.command_line import runs
from tests.topology.readers.hwloc.machines import Xml

CLUSTER = ("--system", "dgx-h100", "--hosts", "2")
ROUND_ROBIN = ",".join(f"h{host}/GPU{gpu}" for gpu in range(8) for host in range(2))


run = runs("order")


def test_the_order_goes_to_stdout_and_the_gain_to_stderr(capsys):
    words = (*CLUSTER, "--ranks", ROUND_ROBIN, "--objective", "throughput")
    status, out, err = run(capsys, *words)
    assert status == 0
    assert max(map(len, err.splitlines())) <= 80
    err = " ".join(err.split())
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
    assert "the given order is as good as any found" in " ".join(err.split())


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
    names = tmp_path / "hosts.txt"
    names.write_text("node\n")
    words = ("--bytes", "64KiB", "--hosts", str(names))
    alone = run(capsys, "--input", str(matrix), *words)[1].splitlines()
    assert max(map(len, alone)) <= 80
    assert [line for line in alone if not line.startswith("#")] == ["rank 0=node", "rank 1=node"]
    told = " ".join(line.lstrip("# ") for line in alone[:-2])
    assert told.endswith("give what `lstopo topo.xml` writes there beside the other files: --input FILE topo.xml")
    both = run(capsys, "--input", str(matrix), str(machine), *words)[1].splitlines()
    assert both == ["rank 0=node slot=0:0", "rank 1=node slot=1:0"]
