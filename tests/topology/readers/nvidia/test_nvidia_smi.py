"""Texts of `nvidia-smi topo -m` in every style that drivers and copies have, and what people paste around them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.topology.dumps import each_of, expected
from tests.topology.matrices import facts_of, render_blanks, render_tabs
from tests.topology.paths import latency_us
from tests.topology.readers.nvidia.listings import header, remote, status
from tests.topology.readers.nvidia.smi_texts import DATA, assert_says, codes_of, read, two_sockets
from topocomm.errors import TopologyError
from topocomm.topology import recognise
from topocomm.topology.readers.nvidia import nvidia_smi
from topocomm.topology.recognise import load

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
@examples(120)
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
@examples(80)
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


PREFIXES = {
    "logger": lambda i: f"2025-03-04 10:11:{i:02d},{i:03d} INFO ",
    "ISO time": lambda i: f"[2025-03-04T10:11:{i:02d}Z] ",
    "container": lambda i: f"2025-03-04T10:11:00.{123456 + i}Z stdout F ",
    "srun -l": lambda i: "0: ",
    "mpirun --tag-output": lambda i: "[1,0]<stdout>:",
    "pdsh": lambda i: "node-12: ",
    "comment": lambda i: "# ",
    "bar": lambda i: "node| ",
    "line number": lambda i: f"{i + 1:6d}\t",
    "line number and colon": lambda i: f"{i + 1}:",
}


def prefixed(text, prefix):
    return "".join(prefix(i) + line for i, line in enumerate(text.splitlines(True)))


@pytest.mark.parametrize("render", [render_tabs, render_blanks])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_on_every_line(prefix, render):
    facts = two_sockets()
    text = prefixed(render(facts, columns=3), PREFIXES[prefix])
    assert nvidia_smi.matches(text)
    assert_says(read(text), facts, 3)


def test_prefix_with_blank_lines_and_text_around():
    facts = two_sockets()
    text = prefixed("\n\n" + render_tabs(facts, columns=2).replace("\n", "\n\n"), PREFIXES["bar"])
    assert_says(read(f"job 7 starts\n{text}job 7 ends\n"), facts)


def test_two_ranks_are_two_machines():
    one = render_tabs(two_sockets(), columns=2, legend=None).splitlines(True)
    text = "".join(f"0: {line}1: {line}" for line in one)
    with pytest.raises(TopologyError, match=r"dump\.txt:2: "):
        read(text)


def test_listing_of_links_in_the_same_text():
    """The matrix says more than `nvlink -s` and `-R`, wherever it stands; what was not read is said."""
    facts = facts_of(2, lambda i, j: "NV4", cpu={"GPU0": "0-11", "GPU1": "0-11"})
    matrix = render_tabs(facts, columns=1)
    rates = status([[14.062] * 4] * 2, "NVIDIA RTX A6000")
    names = header(0, "NVIDIA RTX A6000") + header(1, "NVIDIA RTX A6000")
    for text, option in ((rates + matrix, "-s"), (names + matrix + rates, "-s"), (matrix + remote(PEERS), "-R")):
        topology = recognise.read(text, "all.txt")
        assert_says(topology, facts, 1)
        assert f"all.txt: the output of `nvidia-smi nvlink {option}` in this text was not read" in topology.warnings


PEERS = [[("0000002F:00:00.0", k) for k in range(4)], [("0000001F:00:00.0", k) for k in range(4)]]


@each_of("nvidia-smi-topo-m")
def test_facts(path):
    facts = expected(path)
    try:
        topology = load(path)
    except TopologyError:
        assert facts["malformed"]
        return
    assert topology.warnings or not facts["malformed"]
    kinds = [d.kind for d in topology.devices]
    assert (kinds.count("gpu"), kinds.count("nic")) == (facts["gpus"], facts["nics"])
    codes = {frozenset((pair.a, pair.b)): pair.code for pair in topology.pairs}
    told = {**facts["links"], **facts["gpu_nic_links"]}
    assert codes == {frozenset(pair.split("-", 1)): code for pair, code in told.items()}
    for gpu in (f"GPU{i}" for i in range(facts["gpus"])):
        device = topology.by_id[gpu]
        assert device.cpu_affinity == (facts["cpu_affinity"] or {}).get(gpu)
        assert device.numa == (facts["numa_affinity"] or {}).get(gpu)
