"""Headers and affinity columns of `nvidia-smi topo -m`: retyped, blank, lost or run together."""

import pytest

from tests.topology.matrices import facts_of, render_blanks, render_tabs
from tests.topology.readers.nvidia.smi_texts import assert_says, codes_of, read, two_sockets
from topocomm.errors import TopologyError
from topocomm.topology import recognise


def test_header_on_the_line_of_the_command():
    facts = facts_of(2, lambda i, j: "PHB", cpu={"GPU0": "0-23", "GPU1": "0-23"}, numa={"GPU0": "0", "GPU1": "0"})
    text = "nvidia-smi topo -m        " + render_blanks(facts, columns=3, legend=None).lstrip()
    topology = read(text)
    assert_says(topology, facts, 3)
    assert topology.warnings == ()


def test_columns_put_under_each_other_by_several_tabs():
    text = (
        "\t\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity    NUMA Affinity\n"
        "GPU0\t X \t\tNV1\t    NV2\t \tNODE\t\t0-15\t\t0\n"
        "GPU1\tNV1\t \tX \t\tNV3\t\tSYS\t\t16-31\t\t1\n"
        "GPU2\tNV2\t\tNV3\t \tX \t\tPIX\t\t0-15\t\t0\n"
        "mlx5_0\tNODE\tSYS\tPIX\t\t X \t\t\n"
    )
    topology = read(text)
    assert codes_of(topology) == {
        ("GPU0", "GPU1"): "NV1",
        ("GPU0", "GPU2"): "NV2",
        ("GPU0", "mlx5_0"): "NODE",
        ("GPU1", "GPU2"): "NV3",
        ("GPU1", "mlx5_0"): "SYS",
        ("GPU2", "mlx5_0"): "PIX",
    }
    assert [(d.cpu_affinity, d.numa) for d in topology.devices[:3]] == [("0-15", 0), ("16-31", 1), ("0-15", 0)]


BLANK_CPUS = (
    "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV6\tNV6\t4-11,24-31\t0\t\tN/A\n"
    "GPU1\tNV6\t X \tNV6\t\t1\t\tN/A\n"
    "GPU2\tNV6\tNV6\t X \t\t1\t\tN/A\n"
)


@pytest.mark.parametrize("copied", [lambda text: text, lambda text: text.expandtabs(8)])
def test_blank_cpu_list_is_no_node_number(copied):
    topology = read(copied(BLANK_CPUS))
    assert [(d.cpu_affinity, d.numa) for d in topology.devices[:3]] == [("4-11,24-31", 0), (None, 1), (None, 1)]


@pytest.mark.parametrize("copied", [lambda text: text.expandtabs(4), lambda text: text.replace("\t", " ")])
def test_blank_cpu_list_where_columns_are_lost_is_unknown(copied):
    """A number that may be a CPU or a node is neither; a row whose cells are all there is read."""
    topology = read(copied(BLANK_CPUS))
    assert (topology.by_id["GPU0"].cpu_affinity, topology.by_id["GPU0"].numa) == ("4-11,24-31", 0)
    assert all(topology.by_id[gpu].cpu_affinity is None for gpu in ("GPU1", "GPU2"))
    assert all(topology.by_id[gpu].numa in (None, 1) for gpu in ("GPU1", "GPU2"))
    if topology.by_id["GPU1"].numa is None:
        assert "row GPU1: '1' and what follows fit no column" in " ".join(topology.warnings)


def test_rows_without_header_and_names_of_nics():
    rows = render_tabs(two_sockets(), columns=2, legend=None).splitlines(True)[1:5]
    with pytest.raises(TopologyError, match=r"cut\.txt:3: no header row that starts with GPU0 above the rows"):
        recognise.read("The matrix:\n\n" + "".join(rows), "cut.txt")


MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tSYS\tPIX\t0-11,24-35\t0\t\tN/A\n"
    "GPU1\tSYS\t X \tSYS\t12-23,36-47\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\n"
)


@pytest.mark.parametrize(
    "lost",
    [
        ("0-11,24-35\t0\t\tN/A", "0-11,24-350\t\tN/A"),
        ("0-11,24-35\t0\t\tN/A", "0\t\tN/A"),
        ("0-11,24-35\t0\t\tN/A", "0\tN/A"),
        ("0-11,24-35\t0", "\t0"),
        ("0-11,24-35", "011,24-35"),
        ("CPU Affinity\tNUMA", "CPU AffinityNUMA"),
        ("NUMA Affinity\tGPU", "NUMA AffinityGPU"),
        ("GPU NUMA ID", ""),
    ],
)
def test_lost_affinity_cells_are_not_taken_from_their_neighbours(lost):
    topology = read(MATRIX.replace(*lost))
    assert topology.by_id["GPU0"].cpu_affinity in (None, "0-11,24-35")
    assert topology.by_id["GPU0"].numa in (None, 0)
    assert topology.by_id["GPU1"].cpu_affinity in (None, "12-23,36-47")
    assert topology.by_id["GPU1"].numa in (None, 1)


def test_blank_cpu_list_below_a_header_that_lost_its_end():
    text = MATRIX.replace("\tGPU NUMA ID", "").replace("0-11,24-35", "").replace("12-23,36-47", "")
    assert [(d.cpu_affinity, d.numa) for d in read(text).devices[:2]] == [(None, 0), (None, 1)]


def test_blank_cpu_list_below_names_that_run_together():
    topology = read(BLANK_CPUS.replace("CPU Affinity\tNUMA", "CPU AffinityNUMA"))
    assert [(d.cpu_affinity, d.numa) for d in topology.devices[1:3]] == [(None, 1), (None, 1)]


def test_column_called_numa_alone():
    text = MATRIX.replace("NUMA Affinity\tGPU NUMA ID", "NUMA").replace("\t\tN/A", "")
    assert [(d.cpu_affinity, d.numa) for d in read(text).devices[:2]] == [("0-11,24-35", 0), ("12-23,36-47", 1)]


def test_names_of_columns_that_run_together():
    """Below them every code would stand one column too far left; without rows of NICs nothing else would show it."""
    text = "\tGPU0\tGPU1\tmlx5_0mlx5_1\tmlx5_2\tCPU Affinity\n"
    text += "GPU0\t X \tSYS\tPIX\tNODE\tSYS\t0-7\nGPU1\tSYS\t X \tSYS\tSYS\tPIX\t8-15\n"
    with pytest.raises(TopologyError, match=r"dump\.txt:2: more cells than the 4 columns of the header \(line 1\)"):
        read(text)


def test_blank_affinity_does_not_slide():
    facts = facts_of(2, lambda i, j: "SYS", cpu={}, numa={"GPU0": "0", "GPU1": "1"})
    for text in (render_tabs(facts, columns=3), render_blanks(facts, columns=3)):
        topology = read(text)
        assert [(d.cpu_affinity, d.numa) for d in topology.devices[:2]] == [(None, 0), (None, 1)]
