import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.matrices import Facts, facts_of, render_blanks, render_tabs
from tests.topology.paths import latency_us
from topocomm.errors import TopologyError
from topocomm.topology.readers import nvidia_smi

DATA = Path(__file__).parents[1] / "data/topologies"


def read(text, name="dump.txt"):
    return nvidia_smi.read(text, name)


def codes_of(topology):
    return {(pair.a, pair.b): pair.code for pair in topology.pairs}


def assert_says(topology, facts: Facts, columns: int = 2):
    """The topology says what the facts say, no more and no less."""
    nics = [name for name in facts.names if name not in facts.gpus]
    assert [d.id for d in topology.devices if d.kind == "gpu"] == facts.gpus
    assert [d.id for d in topology.devices if d.kind == "nic"] == nics
    spoken = {pair: code for pair, code in facts.codes.items() if pair[0] in facts.gpus}
    assert codes_of(topology) == spoken
    for gpu in facts.gpus:
        device = topology.by_id[gpu]
        assert (device.cpu_affinity or "") == (facts.cpu.get(gpu, "") if columns > 0 else "")
        numa = facts.numa.get(gpu, "") if columns > 1 else ""
        assert str("" if device.numa is None else device.numa) == numa.replace("N/A", "")


def two_sockets(gpus=4, nics=("NIC0", "NIC1"), near="PHB"):
    """Half of the GPUs and of the NICs on each socket."""

    def socket(i):
        return i * 2 // gpus if i < gpus else (i - gpus) * 2 // len(nics)

    return facts_of(
        gpus,
        lambda i, j: near if socket(i) == socket(j) else "SYS",
        nics=list(nics),
        cpu={f"GPU{i}": ("0-11", "12-23")[socket(i)] for i in range(gpus)},
        numa={f"GPU{i}": "01"[socket(i)] for i in range(gpus)},
    )


STYLES = {
    "tabs": lambda f, c: render_tabs(f, columns=c),
    "escapes": lambda f, c: render_tabs(f, columns=c, ansi="esc"),
    "escapes that lost ESC": lambda f, c: render_tabs(f, columns=c, ansi="bare"),
    "blanks": lambda f, c: render_blanks(f, columns=c),
    "narrow": lambda f, c: render_blanks(f, columns=c, width=7),
    "CRLF": lambda f, c: render_tabs(f, columns=c).replace("\n", "\r\n"),
    "indented": lambda f, c: "".join(f"      {line}" for line in render_blanks(f, columns=c).splitlines(True)),
    "indented by a tab": lambda f, c: "".join(f"\t{line}" for line in render_tabs(f, columns=c).splitlines(True)),
    "quoted": lambda f, c: "".join(f"> {line}" for line in render_blanks(f, columns=c).splitlines(True)),
    "blank lines": lambda f, c: render_blanks(f, columns=c).replace("\n", "\n  \n"),
    "no legend": lambda f, c: render_tabs(f, columns=c, legend=None),
    "prompt and prose": lambda f, c: f"node $ nvidia-smi topo -m\n{render_tabs(f, columns=c)}\nThat is all.\n",
    "lost indent": lambda f, c: render_blanks(f, columns=c, legend=None).lstrip(),
    "table bars": lambda f, c: re.sub(
        "\t", " | ", re.sub("(?m)^(.+)$", r"| \1 |", render_tabs(f, columns=c, legend=None))
    ),
    "byte order mark": lambda f, c: "\ufeff" + render_tabs(f, columns=c),
}


@pytest.mark.parametrize("columns", [0, 1, 2, 3])
@pytest.mark.parametrize("style", STYLES)
def test_styles(style, columns):
    facts = two_sockets()
    text = STYLES[style](facts, columns)
    assert nvidia_smi.matches(text)
    assert_says(read(text), facts, columns)


@st.composite
def machines(draw):
    """Symmetric matrices of any codes, with affinity columns that may be blank or N/A."""
    gpus, nics = draw(st.integers(1, 9)), draw(st.integers(0, 5))
    stem = draw(st.sampled_from(["NIC", "mlx5_", "mlx4_", "rocep1s0f"]))
    code = st.sampled_from(["NV1", "NV2", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
    plain = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS"])
    cpus = st.sampled_from(["0-11", "12-23", "0-31,64-95", "0,2,4,6", "7", "0-0,8-8", ""])
    numa = st.sampled_from(["0", "1", "8", "N/A", "0-1"])
    facts = facts_of(
        gpus,
        lambda i, j: draw(code if j < gpus else plain),
        nics=[f"{stem}{i}" for i in range(nics)],
        cpu={f"GPU{i}": draw(cpus) for i in range(gpus)},
        numa={f"GPU{i}": draw(numa) for i in range(gpus)},
    )
    return facts, draw(st.integers(0, 3)), draw(st.sampled_from(sorted(STYLES)))


@given(machines())
@settings(max_examples=120, deadline=None)
def test_any_matrix_in_any_style_reads_back(machine):
    facts, columns, style = machine
    if columns == 1 and "" in facts.cpu.values():
        columns = 2  # the one column blank in some rows only looks like a row that is cut
    if style in ("table bars", "lost indent", "narrow") and "" in facts.cpu.values():
        style = "blanks"
    assert_says(read(STYLES[style](facts, columns) + "\n-- \n"), facts, columns)


def read_or_refuse(text, message):
    """The topology, or None if the text is refused; then the message must match."""
    try:
        return read(text, "cut.txt")
    except TopologyError:
        with pytest.raises(TopologyError, match=message):
            read(text, "cut.txt")
        return None


@given(machines(), st.data())
@settings(max_examples=80, deadline=None)
def test_a_text_cut_anywhere_is_refused_or_true(machine, data):
    facts, columns, _ = machine
    text = render_tabs(facts, columns=columns, legend=None)
    cut = data.draw(st.integers(0, len(text) - 1))
    topology = read_or_refuse(text[:cut], r"^cut\.txt:\d+: ")
    if topology is None:
        return
    for pair, code in codes_of(topology).items():
        assert code == facts.codes[pair]
    assert set(codes_of(topology)) == {pair for pair in facts.codes if pair[0] in facts.gpus}
    assert topology.warnings or all(f"\n{name}\t" in text[:cut] for name in facts.names)


def test_blank_affinity_does_not_slide():
    facts = facts_of(2, lambda i, j: "SYS", cpu={}, numa={"GPU0": "0", "GPU1": "1"})
    for text in (render_tabs(facts, columns=3), render_blanks(facts, columns=3)):
        topology = read(text)
        assert [(d.cpu_affinity, d.numa) for d in topology.devices[:2]] == [(None, 0), (None, 1)]


def test_sixteen_gpus_and_eighteen_nics():
    facts = two_sockets(16, tuple(f"NIC{i}" for i in range(18)))
    facts.nic_names = {f"NIC{i}": f"mlx5_{i}" for i in range(18)}
    topology = read(render_tabs(facts, columns=3))
    assert_says(topology, facts, 3)
    assert topology.by_id["NIC17"].name == "mlx5_17"
    assert latency_us(topology, "GPU0", "GPU15") == 2.0


def test_old_drivers_name_nics_in_columns():
    facts = two_sockets(2, ("mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"))
    topology = read(render_tabs(facts, columns=1))
    assert [d.name for d in topology.devices if d.kind == "nic"] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]


def test_soc_stays_soc_and_means_sys():
    topology = read((DATA / "pcie-4-soc.txt").read_text())
    assert codes_of(topology)["GPU0", "GPU2"] == "SOC"
    assert latency_us(topology, "GPU0", "GPU2") == 2.0
    assert latency_us(topology, "GPU0", "GPU1") == 1.0


def test_nvswitch_machine_with_nics():
    topology = read((DATA / "h100-8-nics.txt").read_text(), "h100-8-nics.txt")
    into = [link for link in topology.links if link.dst == "nvswitch0"]
    assert {(link.src, link.lanes, link.gb_per_s, link.latency_us) for link in into} == {
        (f"GPU{i}", 18, 450.0, 0.3) for i in range(8)
    }
    pair = next(p for p in topology.pairs if (p.a, p.b) == ("GPU0", "GPU7"))
    assert (pair.code, pair.gb_per_s, pair.latency_us) == ("NV18", 450.0, 0.6)
    assert topology.by_id["NIC8"].name == "mlx5_bond_0"
    assert (topology.by_id["NIC0"].numa, topology.by_id["NIC7"].numa) == (0, 1)
    assert {link.gb_per_s for link in topology.links if link.kind == "pcie"} == {None}
    assert topology.name == "h100-8-nics"


def test_cube_mesh_has_direct_links_and_a_way_over_the_sockets():
    topology = read((DATA / "cube-mesh-8.txt").read_text())
    lanes = {(link.src, link.dst): link.lanes for link in topology.links if link.kind == "nvlink"}
    assert (lanes["GPU0", "GPU3"], lanes["GPU0", "GPU1"], lanes["GPU4", "GPU0"]) == (2, 1, 2)
    assert ("GPU0", "GPU5") not in lanes
    assert sum(n for (src, _), n in lanes.items() if src == "GPU0") == 6
    assert latency_us(topology, "GPU0", "GPU5") == 2.0
    assert latency_us(topology, "GPU0", "GPU4") == 0.7


def test_bridges_join_pairs_only():
    topology = read((DATA / "bridge-pairs-4.txt").read_text())
    joined = {(link.src, link.dst) for link in topology.links if link.kind == "nvlink"}
    assert joined == {("GPU0", "GPU1"), ("GPU1", "GPU0"), ("GPU2", "GPU3"), ("GPU3", "GPU2")}
    assert any("GB/s of NVLink unknown" in text for text in topology.warnings)


def test_no_pcie_is_invented_where_no_code_speaks_of_it():
    topology = read((DATA / "nvswitch-16.txt").read_text())
    assert {d.kind for d in topology.devices} == {"gpu", "switch"}
    assert topology.by_id["GPU15"].numa == 1


def test_not_available_stays_unknown():
    topology = read((DATA / "vm-8-no-numa.txt").read_text())
    assert {d.numa for d in topology.devices if d.kind == "gpu"} == {None}
    assert {d.cpu_affinity for d in topology.devices if d.kind == "gpu"} == {"0-31"}


def test_a_matrix_of_pcie_paths_alone_says_that_nvlink_may_hide():
    text = re.sub(r"  NV#.*\n", "", render_tabs(two_sockets(near="NODE")))
    assert any("topo -mp" in warning for warning in read(text).warnings)
    assert not read(render_tabs(two_sockets(near="NODE"))).warnings


# Damage ---------------------------------------------------------------------------------------------------


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
@settings(max_examples=200, deadline=None)
def test_junk_is_refused_or_read_but_never_another_error(text):
    try:
        nvidia_smi.matches(text)
        read(text)
    except TopologyError:
        pass


def test_asymmetry_of_any_pair_is_found():
    facts = two_sockets(3, ("NIC0",))
    good = render_tabs(facts, columns=0, legend=None).splitlines()
    for row, column in combinations(range(1, 5), 2):
        cells = good[row].split("\t")
        cells[column] = "NODE" if cells[column] != "NODE" else "SYS"
        with pytest.raises(TopologyError, match="not symmetric"):
            read("\n".join([*good[:row], "\t".join(cells), *good[row + 1 :]]) + "\n")
