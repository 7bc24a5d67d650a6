"""NCCL graph files of invented machines: what they say, damage, and the shared files."""

import pytest

from tests.topology.dumps import assert_said, each_of, expected
from topocomm.errors import TopologyError
from topocomm.topology.readers.nccl.xml import nccl_graph_xml

NAME = "/somewhere/graph.xml"
TWO_GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="1" nchannels="2" speedintra="20" speedinter="24.5" latencyinter="0" """
TWO_GRAPHS += """typeintra="NVL" typeinter="PXB" samechannels="0">
    <channel>
      <net dev="0"/>
      <gpu dev="0"/>
      <gpu dev="0x2"/>
      <gpu dev="0x9"/>
      <gpu dev="0xa"/>
      <net dev="0x1"/>
    </channel>
    <channel>
      <net dev="0x1"/>
      <gpu dev="10"/>
      <gpu dev="0x9"/>
      <gpu dev="0x2"/>
      <gpu dev="0"/>
      <net dev="0"/>
    </channel>
  </graph>
  <graph id="3" pattern="5" crossnic="0" nchannels="0" speedintra="0" speedinter="0" latencyinter="0" """
TWO_GRAPHS += """typeintra="LOC" typeinter="LOC" samechannels="0"/>
</graphs>
"""


def read(text):
    return nccl_graph_xml.read(text, NAME)


def test_devices_and_graphs():
    topology = read(TWO_GRAPHS)
    assert topology.name == "graph"
    assert [(d.id, d.kind) for d in topology.devices] == [
        *((f"GPU{i}", "gpu") for i in (0, 2, 9, 10)),
        *((f"NET{i}", "nic") for i in (0, 1)),
    ]
    assert (topology.links, topology.pairs, topology.warnings) == ((), (), ())
    assert topology.facts["xml_version"] == 1
    ring, nvls = topology.facts["graphs"]
    assert ring == {
        "id": 0,
        "pattern": 4,
        "pattern_name": "ring",
        "crossnic": 1,
        "nchannels": 2,
        "samechannels": 0,
        "speedintra": 20,
        "speedinter": 24.5,
        "latencyinter": 0,
        "typeintra": "NVL",
        "typeinter": "PXB",
        "channels": [[0, 2, 9, 10], [10, 9, 2, 0]],
        "nets": [[0, 1], [1, 0]],
    }
    assert "channels" not in nvls
    assert (nvls["id"], nvls["pattern_name"], nvls["nchannels"]) == (3, "nvls", 0)


def test_text_around_the_document_is_passed_over():
    for text in (f"$ cat graph.xml\n{TWO_GRAPHS}$ ", "\ufeff" + TWO_GRAPHS, TWO_GRAPHS.replace("\n", "\r\n")):
        assert nccl_graph_xml.matches(text)
        assert read(text).facts == read(TWO_GRAPHS).facts


def test_other_texts_do_not_match():
    assert not nccl_graph_xml.matches('<system version="1"><cpu numaid="0"/></system>')
    assert not nccl_graph_xml.matches("GPU0 GPU1 graph")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('dev="0x9"', 'dev="nine"', r"graph\.xml:7: <gpu> dev='nine': expected a whole number"),
        ('dev="0x9"', 'dev="-1"', r"graph\.xml:7: <gpu> dev='-1'"),
        ('dev="0x9"', 'dev="011"', r"graph\.xml:7: <gpu> dev='011'"),
        ('<gpu dev="0x2"/>', "<gpu/>", r"graph\.xml:6: <gpu> has no dev"),
        ('speedintra="20"', 'speedintra="nan"', r"graph\.xml:2: <graph> speedintra='nan'"),
        ('pattern="4"', 'pattern="ring"', r"graph\.xml:2: <graph> pattern='ring'"),
        ("</channel>", "", r"graph\.xml:\d+: not XML: .* at column \d+"),
    ],
)
def test_what_is_no_number_is_an_error(old, new, said):
    with pytest.raises(TopologyError, match=said):
        read(TWO_GRAPHS.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('nchannels="2"', 'nchannels="3"', "graph.xml:2: graph 0 says 3 channels and holds 2; the file may be cut"),
        ('dev="0x9"', 'dev="0x2"', "graph.xml:3: a GPU is in the channel twice: 0 2 2 10"),
        ('<gpu dev="0x9"/>', "", "graph.xml:2: the channels of graph 0 do not hold the same GPUs"),
        ('version="1"', 'version="2"', "graph.xml:1: version 2 is not known"),
        ('pattern="4"', 'pattern="9"', "graph.xml:2: pattern 9 is not known"),
        ("<channel>", "<extra/><channel>", "graph.xml:3: <extra> in <graph> is not known and passed over"),
        (' id="0"', "", "graph.xml:2: <graph> has no id"),
    ],
)
def test_what_does_not_fit_is_a_warning(old, new, said):
    assert any(said in warning for warning in read(TWO_GRAPHS.replace(old, new, 1)).warnings)


def test_a_cut_file_and_an_empty_one_are_errors():
    with pytest.raises(TopologyError, match=r"graph\.xml:\d+: not XML"):
        read(TWO_GRAPHS[:400])
    with pytest.raises(TopologyError, match="holds no <graph>"):
        read('<graphs version="1"></graphs>')


def test_an_unlikely_number_of_devices_is_refused():
    gpus = "".join(f'<gpu dev="{i}"/>' for i in range(1025))
    with pytest.raises(TopologyError, match="more than 1024"):
        read(f'<graphs version="1"><graph id="0" pattern="4" nchannels="1"><channel>{gpus}</channel></graph></graphs>')


@each_of("nccl-graph-xml")
def test_facts_of_shared_files(path):
    facts = expected(path)
    topology = nccl_graph_xml.read(path.read_text(), path.name)
    kinds = [d.kind for d in topology.devices]
    assert bool(topology.warnings) == facts["malformed"]
    said = {**topology.facts, "gpus": kinds.count("gpu"), "nics": kinds.count("nic")}
    said["graphs"] = [
        {key: graph[key] for key in only} for graph, only in zip(said["graphs"], facts["graphs"], strict=True)
    ]
    assert_said(said, facts, but={"malformed"})
