import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from topocomm.errors import TopologyError
from topocomm.topology.model import DEVICE_KINDS, FIGURE_SOURCES, Device, Link, Pair, RankPlace, Topology
from topocomm.topology.readers.plain import topology_json
from topocomm.topology.readers.plain.topology_json import dumps, from_document, read, to_document

printable = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
rate = st.none() | st.floats(1e-6, 1e6)
time_us = st.none() | st.floats(0, 1e6)
source = st.none() | st.sampled_from(FIGURE_SOURCES)


@st.composite
def topologies(draw):
    ids = draw(st.lists(printable, min_size=1, max_size=5, unique=True))
    numa = st.none() | st.integers(0, 99) | st.sampled_from(["0-1", "0,5-11"])
    devices = [
        Device(
            i,
            draw(st.sampled_from(DEVICE_KINDS)),
            draw(text),
            draw(st.none() | text),
            draw(numa),
            draw(st.none() | text),
        )
        for i in ids
    ]
    ends = st.permutations(ids).map(lambda order: order[:2])
    many = st.integers(0, 4) if len(ids) > 1 else st.just(0)
    links = [
        Link(
            *draw(ends),
            draw(text),
            draw(st.none() | st.integers(1, 18)),
            draw(rate),
            draw(time_us),
            draw(time_us),
            draw(source),
            draw(source),
        )
        for _ in range(draw(many))
    ]
    pairs = [
        Pair(*draw(ends), draw(st.none() | text), draw(rate), draw(time_us), draw(source), draw(source))
        for _ in range(draw(many))
    ]
    ranks = [RankPlace(i, draw(text), draw(st.sampled_from(ids)), draw(st.none() | text)) for i in range(draw(many))]
    warnings = draw(st.lists(text, max_size=3))
    return Topology(draw(text), draw(text), *map(tuple, (devices, links, pairs, ranks, warnings)))


@given(topologies())
@examples(80)
def test_round_trip_is_exact(topology):
    again = read(dumps(topology), "file.json")
    assert again == topology
    assert again.digest == topology.digest
    assert from_document(to_document(topology)) == topology
    assert dumps(again) == dumps(topology)


def test_the_file_has_the_names_of_the_schema():
    topology = Topology(
        "dgx-h100",
        "nvidia-smi topo -m",
        (Device("GPU0", "gpu", numa=0, cpu_affinity="0-55"), Device("nvswitch0", "switch")),
        (Link("GPU0", "nvswitch0", "nvlink", 18, 450.0, 0.3),),
        (Pair("GPU0", "GPU1", "NV18", 450.0, 0.6),),
        (RankPlace(0, "host0", "GPU0", "mlx5_0"),),
        ("careful",),
    )
    assert json.loads(dumps(topology)) == {
        "schema": "topocomm.topology/1",
        "name": "dgx-h100",
        "source": "nvidia-smi topo -m",
        "devices": [
            {"id": "GPU0", "kind": "gpu", "host": "host0", "numa": 0, "cpu_affinity": "0-55"},
            {"id": "nvswitch0", "kind": "switch", "host": "host0"},
        ],
        "links": [
            {
                "src": "GPU0",
                "dst": "nvswitch0",
                "kind": "nvlink",
                "lanes": 18,
                "gb_per_s": 450.0,
                "latency_us": 0.3,
                "gap_us": None,
            }
        ],
        "pairs": [{"a": "GPU0", "b": "GPU1", "code": "NV18", "gb_per_s": 450.0, "latency_us": 0.6}],
        "ranks": [{"rank": 0, "host": "host0", "device": "GPU0", "nic": "mlx5_0"}],
        "warnings": ["careful"],
    }


SMALL = {
    "devices": [{"id": "GPU0", "kind": "gpu"}, {"id": "sw", "kind": "switch"}],
    "links": [{"src": "GPU0", "dst": "sw", "kind": "nvlink"}],
}


def test_devices_and_links_are_enough():
    topology = read(json.dumps(SMALL), "lab/small.json")
    assert topology.name == "small"
    assert topology.links[0] == Link("GPU0", "sw", "nvlink")


def test_whole_numbers_become_floats_so_that_digests_agree():
    document = json.loads(json.dumps(SMALL))
    document["links"][0]["gb_per_s"] = 450
    other = json.loads(json.dumps(document))
    other["links"][0]["gb_per_s"] = 450.0
    assert from_document(document).digest == from_document(other).digest


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ({"lanes": True}, "lanes: expected a whole number of at least 1 or null, got True"),
        ({"lanes": 1.0}, "lanes: expected a whole number of at least 1 or null, got 1.0"),
        ({"gb_per_s": True}, "gb_per_s: expected a number or null, got True"),
        ({"kind": None}, "kind: expected a string, got None"),
        ({"kind": ["k"]}, "kind: expected a string"),
        ({"src": "c"}, "src: expected the id of a device, got 'c'"),
        ({"src": ["a"]}, "src: expected a non-empty printable string"),
        ({"dst": "a"}, "dst: expected another device than src, got 'a'"),
        ({"latency_us": float("nan")}, "latency_us: expected a finite number"),
    ],
)
def test_a_link_like_the_one_before_is_checked_all_the_same(rest, message):
    """What was seen in a link above is not checked again: only where it is the same in value and type."""
    link = {"src": "a", "dst": "b", "kind": "k", "lanes": 1, "gb_per_s": 1, "latency_us": 0.5}
    document = {"devices": [{"id": "a", "kind": "gpu"}, {"id": "b", "kind": "gpu"}], "links": [link, link | rest]}
    with pytest.raises(TopologyError, match=r"topology: links\[1\]\." + re.escape(message)):
        from_document(document)
    whole = from_document(document | {"links": [link, link | {"gb_per_s": 1.0}, link]})
    assert [type(one.gb_per_s) for one in whole.links] == [float] * 3


def test_unknown_keys_are_passed_over():
    document = {**SMALL, "colour": "blue", "devices": [{**d, "weight": 3} for d in SMALL["devices"]]}
    assert from_document(document) == from_document(SMALL)


def test_a_byte_order_mark_is_no_fault():
    assert topology_json.matches("\ufeff {")


def with_(path, value):
    """SMALL, with one value changed."""
    document = json.loads(json.dumps(SMALL))
    *keys, last = path
    target = document
    for key in keys:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return document


LINK = ("links", 0)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("document", "message"),
    [
        (with_(("links",), ...), "the keys 'devices' and 'links'; 'links' is missing"),
        (
            with_(("schema",), "topocomm.topology/9"),
            "schema: expected 'topocomm.topology/1', got 'topocomm.topology/9'",
        ),
        (with_(("schema",), "topocomm.plan/1"), "give a plan to --plan"),
        (with_(("devices",), {}), "devices: expected a list, got {}"),
        (with_(("devices", 0), 7), "devices[0]: expected an object, got 7"),
        (with_(("devices", 0, "id"), ...), "devices[0].id: expected a non-empty printable string, got nothing"),
        (with_(("devices", 0, "id"), "a\nb"), "devices[0].id: expected a non-empty printable string"),
        (
            with_(("devices", 0, "kind"), "tpu"),
            "devices[0].kind: expected one of gpu cpu nic switch numa host, got 'tpu'",
        ),
        (with_(("devices", 0, "kind"), []), "devices[0].kind: expected one of"),
        (with_(("devices", 0, "numa"), -1), "devices[0].numa: expected a whole number of at least 0 or null, got -1"),
        (with_(("devices", 0, "host"), 1), "devices[0].host: expected a string, got 1"),
        (with_(("devices", 1, "id"), "GPU0"), "devices[1].id: expected another id than the devices above, got 'GPU0'"),
        (with_((*LINK, "src"), "GPU9"), "links[0].src: expected the id of a device, got 'GPU9'"),
        (with_((*LINK, "dst"), "GPU0"), "links[0].dst: expected another device than src, got 'GPU0'"),
        (with_((*LINK, "gb_per_s"), "x"), "links[0].gb_per_s: expected a number or null, got 'x'"),
        (with_((*LINK, "gb_per_s"), True), "links[0].gb_per_s: expected a number or null, got True"),
        (with_((*LINK, "gb_per_s"), 0), "links[0].gb_per_s: expected a positive finite number or null, got 0"),
        (with_((*LINK, "gb_per_s"), 10**400), "links[0].gb_per_s: expected a positive finite number or null"),
        (
            with_((*LINK, "latency_us"), -0.5),
            "links[0].latency_us: expected a finite number of at least 0 or null, got -0.5",
        ),
        (with_((*LINK, "lanes"), 1.5), "links[0].lanes: expected a whole number of at least 1 or null, got 1.5"),
        (
            with_((*LINK, "gb_per_s_source"), "guess"),
            "links[0].gb_per_s_source: expected one of read table measured assumed",
        ),
        (with_(("pairs",), [{"a": "GPU0", "b": 3}]), "pairs[0].b: expected a non-empty printable string, got 3"),
        (with_(("ranks",), [{"device": "GPU0"}]), "ranks[0].rank: expected a whole number of at least 0, got nothing"),
        (
            with_(("ranks",), [{"rank": 0, "device": "GPU7"}]),
            "ranks[0].device: expected the id of a device, got 'GPU7'",
        ),
        (with_(("warnings",), [1]), "warnings: expected a list of strings, got [1]"),
        (with_(("name",), "\ud800"), "name: expected a string"),
        ([], "expected a JSON object, got []"),
    ],
)
def test_every_fault_is_reported_with_its_path(document, message):
    with pytest.raises(TopologyError) as caught:
        read(json.dumps(document), "file.json")
    assert str(caught.value).startswith(("file.json: ", "file.json:1: "))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ('{"devices": [', "file.json:1: not JSON: Expecting value at column 14; it ends too early"),
        ('{"devices": [],\n "links": [,]}', "file.json:2: not JSON"),
        ('{"links": [{"gb_per_s": NaN}]}', "file.json: not usable JSON: NaN is no JSON number"),
        ("[" * 100_000, "file.json: not usable JSON"),
        ('{"a": ' + "1" * 5000 + "}", "file.json: not usable JSON"),
    ],
)
def test_what_is_not_json(broken, message):
    with pytest.raises(TopologyError) as caught:
        read(broken, "file.json")
    assert message in str(caught.value)


@given(st.text(max_size=60) | st.text(alphabet='{}[]":,01eE.-devicslnk ', max_size=120))
@examples(75)
def test_junk_is_refused_but_never_another_error(junk):
    for broken in (junk, "{" + junk, json.dumps({"devices": junk, "links": []})):
        with pytest.raises(TopologyError, match=r"^file\.json"):
            read(broken, "file.json")
