"""Texts of `nvidia-smi topo -m` that were damaged on the way: what is read with a warning, what is refused, where."""

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.topology import damage
from tests.topology.matrices import facts_of, render_blanks, render_tabs
from tests.topology.readers.nvidia.smi_texts import assert_says, codes_of, read, two_sockets
from topocomm.errors import TopologyError
from topocomm.topology.readers.nvidia import nvidia_smi


def test_cells_that_ran_together_are_read_apart():
    facts = two_sockets(near="PXB")
    text = render_blanks(facts).replace("PXB     SYS     SYS     PXB", "PXBSYS     SYS     PXB", 1)
    topology = read(text)
    assert_says(topology, facts)
    assert re.search(r"dump\.txt:\d: cells run together: 'PXBSYS' is read as PXB SYS", topology.warnings[0])


def test_a_lost_cell_is_read_from_its_mirror():
    facts = two_sockets()
    lines = render_blanks(facts).splitlines()
    lines[1] = lines[1].replace("SYS     ", "", 1)
    topology = read("\n".join(lines))
    assert_says(topology, facts)
    assert "dump.txt:2: row GPU0 has 5 of 6 cells" in topology.warnings[0]


def test_a_cell_lost_left_of_the_diagonal_does_not_shift_the_row():
    facts = facts_of(4, lambda i, j: "PIX" if (i, j) == (0, 2) else "SYS")
    text = render_blanks(facts, columns=0, legend=None)
    topology = read(text.replace("GPU2    PIX     ", "GPU2            ", 1))
    assert_says(topology, facts, 0)
    assert "row GPU2 has 3 of 4 cells" in topology.warnings[0]


def test_an_empty_tab_cell_is_read_from_its_mirror():
    facts = two_sockets()
    topology = read(render_tabs(facts).replace("GPU1\tPHB\t", "GPU1\t\t", 1))
    assert_says(topology, facts)
    assert "dump.txt:3: row GPU1 has empty cells" in topology.warnings[0]


def test_lost_nic_columns_are_read_from_the_nic_rows():
    facts = two_sockets()
    lines = [re.split(r"\t", line) for line in render_tabs(facts, columns=2, legend=None).splitlines()]
    kept = ["\t".join(cells[:5] + (cells[7:] if row < 5 else [])) for row, cells in enumerate(lines)]
    topology = read("\n".join(kept) + "\n")
    assert_says(topology, facts)
    assert "no column for NIC0, NIC1 in the header" in topology.warnings[0]


def test_a_lost_header_is_named_after_the_rows():
    facts = two_sockets()
    topology = read(render_tabs(facts, columns=0).split("\n", 1)[1])
    assert_says(topology, facts, 0)
    assert "the header row is missing" in topology.warnings[0]


def test_html_is_read_through_and_said():
    facts = two_sockets()
    text = "<p>&nbsp;" + render_blanks(facts).replace("\n", "\n<br>\n")
    topology = read(text)
    assert_says(topology, facts)
    assert "dump.txt:1: a copy from a web page or mail" in topology.warnings[0]


def test_damaged_affinity_is_dropped_not_guessed():
    facts = two_sockets()
    topology = read(render_tabs(facts).replace("\t0-11\t", "\t-11\t", 1))
    assert topology.by_id["GPU0"].cpu_affinity is None
    assert "dump.txt:2: GPU0: CPU Affinity '-11' is damaged" in topology.warnings[0]


@pytest.mark.parametrize("broken", ["-11", "52-10", "0-11,", "0--3", "0-11,4-5", "x"])
def test_what_is_no_list_of_cpus(broken):
    topology = read(render_tabs(two_sockets()).replace("\t0-11\t", f"\t{broken}\t", 1))
    assert topology.by_id["GPU0"].cpu_affinity is None
    assert repr(broken) in topology.warnings[0]


def test_affinity_without_its_columns_is_not_used():
    topology = read(render_tabs(two_sockets()).replace("\tCPU Affinity\tNUMA Affinity", "\tCPU Affinity"))
    assert {d.cpu_affinity for d in topology.devices} == {None}
    assert "dump.txt:2: row GPU0: '0-11' and what follows fit no column" in topology.warnings[0]


def test_in_a_damaged_text_a_list_unlike_its_node_is_dropped():
    facts = facts_of(4, lambda i, j: "NODE", cpu=dict.fromkeys(["GPU0", "GPU1", "GPU2", "GPU3"], "32-63"))
    facts.numa = dict.fromkeys(facts.gpus, "1")
    text = render_tabs(facts).replace("\t32-63\t", "\t-63\t", 1)
    text = "2-63".join(text.rsplit("32-63", 1))
    topology = read(text)
    assert [d.cpu_affinity for d in topology.devices[:4]] == [None, "32-63", "32-63", None]
    assert any("GPU3: CPU Affinity '2-63' differs" in warning for warning in topology.warnings)


def test_missing_nic_rows_are_a_warning():
    facts = two_sockets()
    text = "\n".join(line for line in render_tabs(facts).splitlines() if not line.startswith("NIC1"))
    topology = read(text)
    assert_says(topology, facts)
    assert "dump.txt:6: no row for NIC1" in topology.warnings[0]


def test_a_code_that_is_not_available_is_unknown():
    facts = facts_of(2, lambda i, j: "N/A")
    topology = read(render_tabs(facts, columns=0))
    assert codes_of(topology) == {("GPU0", "GPU1"): None}
    assert "no code for GPU0-GPU1" in topology.warnings[0]


def test_a_legend_that_stops_short_is_a_warning():
    facts = facts_of(2, lambda i, j: "NV12")
    text = re.sub(r"  NV#.*\n", "", render_tabs(facts))
    assert "the legend does not explain NV#" in read(text).warnings[0]


def test_a_nic_legend_that_stops_short_is_a_warning():
    facts = two_sockets()
    facts.nic_names = {"NIC0": "mlx5_0"}
    topology = read(render_tabs(facts))
    assert "the NIC legend has no name for NIC1" in topology.warnings[0]
    assert topology.by_id["NIC1"].name is None


def test_only_the_first_of_two_matrices_is_read():
    facts = two_sockets()
    topology = read(render_tabs(facts, legend=None) + render_tabs(two_sockets(2), legend=None))
    assert_says(topology, facts)
    assert "dump.txt:8: a second matrix starts here" in topology.warnings[0]


def swap(text, row, old, new):
    lines = text.splitlines()
    lines[row] = lines[row].replace(old, new, 1)
    return "\n".join(lines) + "\n"


TABS = render_tabs(two_sockets(), legend=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (swap(TABS, 3, "SYS", "PIX"), r"4: not symmetric: GPU0-GPU2 is 'SYS' on line 2 but 'PIX' on line 4"),
        (swap(TABS, 2, " X ", "PHB"), r"3: row GPU1 has 'PHB' in its own column; expected X"),
        (swap(TABS, 2, "SYS", "SYSTEM"), r"3: column GPU2: unknown code 'SYSTEM'; known are X NV#"),
        (swap(TABS, 2, "SYS", "OK"), r"3: 'OK' is of `nvidia-smi topo -p2p`"),
        (swap(TABS, 2, "SYS", "..."), r"3: cells were left out \('\.\.\.'\)"),
        (swap(TABS, 0, "GPU2\t", "...\t"), r"1: columns were left out"),
        (swap(TABS, 0, "GPU3\t", ""), r"2: .*more cells than the 5 columns of the header|5: row GPU3 has no column"),
        ("\n".join(TABS.splitlines()[:3]), r"3: the text ends here: no row for GPU2, GPU3 below line 1"),
        (TABS[: TABS.index("GPU3\tSYS") + 14], r"5: the text ends inside row GPU3 \(2 of 6 cells\)"),
        (
            "\n".join(line for line in TABS.splitlines() if not line.startswith("GPU1")),
            r"6: no row for GPU1 below line 1",
        ),
        (TABS + TABS.splitlines()[1] + "\n", r"8: row GPU0 is there twice, first on line 2"),
        (
            swap(swap(TABS, 1, "\tPHB\t", "\t\t"), 2, "\tPHB\t", "\t\t"),
            r"3: the code of GPU0-GPU1 is lost in both rows",
        ),
    ],
)
def test_what_cannot_be_repaired_is_an_error_that_names_the_line(text, message):
    with pytest.raises(TopologyError, match=rf"^dump\.txt:(?:{message})"):
        read(text)


def test_a_text_that_ends_inside_the_affinity_of_its_last_row():
    text = render_tabs(facts_of(2, lambda i, j: "SYS", cpu={"GPU0": "0-23", "GPU1": "24-47"}), columns=2, legend=None)
    for cut in (text.rindex("\t24"), text.rindex("4-47")):
        with pytest.raises(TopologyError, match=r"3: the text ends inside row GPU1"):
            read(text[:cut].replace("GPU0\t X \tSYS\t0-23", "GPU0\t X \tSYS\t24-47").rstrip("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU0",
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n\t Link 0: 26.562 GB/s\n",
        "       GPU0         GPU1\nGPU0   0            15\nGPU1   15           0\n",
        "       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n",
        "{}",
        "GPU0 is busy\nGPU1 is idle\n",
    ],
)
def test_other_texts_do_not_match(text):
    assert not nvidia_smi.matches(text)


@given(st.text(alphabet="GPUXNVSYIC0123456789 \t\n.,-<>&;[m\x1b|=:", max_size=200))
@examples(200)
def test_junk_is_refused_or_read_but_never_another_error(text):
    damage.attempt(nvidia_smi, text)


def test_asymmetry_of_any_pair_is_found():
    facts = two_sockets(3, ("NIC0",))
    good = render_tabs(facts, columns=0, legend=None).splitlines()
    for row, column in combinations(range(1, 5), 2):
        cells = good[row].split("\t")
        cells[column] = "NODE" if cells[column] != "NODE" else "SYS"
        with pytest.raises(TopologyError, match="not symmetric"):
            read("\n".join([*good[:row], "\t".join(cells), *good[row + 1 :]]) + "\n")


def wrapped(text, width):
    lines = text.expandtabs(8).splitlines()
    return "".join(line[at : at + width] + "\n" for line in lines for at in range(0, max(len(line), 1), width))


def test_rows_cut_by_a_narrow_window_have_no_affinity():
    """The head of a CPU list is a list, too: `0-11,24` of `0-11,24-35` must not be taken for the whole."""
    facts = two_sockets()
    facts.cpu = dict.fromkeys(facts.gpus, "0-11,24-35")
    text = render_tabs(facts, columns=1, legend=None)
    topology = read(wrapped(text, text.expandtabs(8).splitlines()[1].index("0-11,24-35") + 7))
    assert codes_of(topology) == {pair: code for pair, code in facts.codes.items() if pair[0] in facts.gpus}
    assert all(topology.by_id[gpu].cpu_affinity is None for gpu in facts.gpus)
    assert "dump.txt:3: GPU0, GPU1, GPU2, GPU3: rows go on below, cut by a narrow window; affinity is not used" in (
        topology.warnings
    )


def test_line_of_dashes_below_the_rows_is_no_cut_row():
    facts = two_sockets(nics=())
    assert_says(read(render_tabs(facts, columns=2, legend=None) + "-----\n"), facts)


def test_second_matrix_below_the_legend_is_said():
    facts = two_sockets()
    text = render_tabs(facts, columns=2)
    topology = read(text + "\n" + render_tabs(two_sockets(near="PIX"), columns=2))
    assert_says(topology, facts)
    line = text.count("\n") + 2
    assert f"dump.txt:{line}: a second matrix starts here; only the first was read" in topology.warnings


TORN = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\n"
    "GPU0\t X \tNV4\tPIX\t0-11\n"
    "GPU1\tNV4\t X \tSYS\t12-23\n"
    "NIC0\tPIX\tSYS\t X \n"
    "\nLegend:\n\n  X    = Self\n"
)


@pytest.mark.parametrize("torn", [("GPU1\tNV4\t X", "GPU1\nNV4\t X"), ("NIC0\tPIX", "NIC0PIX")])
def test_torn_rows_are_no_devices(torn):
    """A row that goes on in the next line, and a name that has run into its first cell."""
    topology = read(TORN.replace(*torn))
    assert [d.id for d in topology.devices if d.kind in ("gpu", "nic")] == ["GPU0", "GPU1", "NIC0"]
    assert codes_of(topology) == {("GPU0", "GPU1"): "NV4", ("GPU0", "NIC0"): "PIX", ("GPU1", "NIC0"): "SYS"}
    assert "row GPU1 has" in " ".join(topology.warnings) or "no row for NIC0" in " ".join(topology.warnings)
