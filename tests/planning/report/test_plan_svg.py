"""The picture of a plan: well-formed, the same every time, self-contained, and it shows every message that has room."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests import hash_seeds
from tests.machines import hosts, line, switch
from tests.thinning import alternating
from topocomm import catalog, plan
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.report.plan_svg import FEW_ROWS, MOST_ROUNDS, dumps
from topocomm.topology.catalog.systems import SYSTEMS
from topocomm.topology.draw.svg.svg_page import LETTER

SVG = "{http://www.w3.org/2000/svg}"


def drawn(topology, collective="allreduce", **wanted):
    made = plan(topology, collective, **{"payload_bytes": 4096, **wanted})
    text = dumps(made, topology)
    return made, text, ElementTree.fromstring(text)


def words(root):
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(("name", "count"), alternating(SYSTEMS, [1, 2, 5]))
def test_every_catalogue_machine_can_be_drawn_within_the_page(name, count):
    topology = catalog(name, hosts=count)
    _, text, root = drawn(topology, "broadcast", objective="latency", ranks=topology.endpoints[:6])
    width, height = float(root.get("width")), float(root.get("height"))
    for shape in root.iter():
        for key, most in (("x", width), ("cx", width), ("x1", width), ("y", height), ("cy", height), ("y2", height)):
            assert 0 <= float(shape.get(key, 0)) <= most
    for box in root.iter(f"{SVG}rect"):
        assert float(box.get("x")) + float(box.get("width")) <= width
        assert float(box.get("y")) + float(box.get("height")) <= height
    assert text.endswith("</svg>\n")


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "topology", [switch(1), switch(5), switch(18), catalog("dgx-a100", hosts=2), line(2)], ids=lambda t: t.name
)
def test_every_collective_can_be_drawn(collective, topology):
    made, _, root = drawn(topology, collective)
    titles = [text for text in words(root) if re.fullmatch(r"round \d+", text)]
    assert len(titles) == min(made.figures.rounds, MOST_ROUNDS)


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_every_message_is_an_arrow_head(ranks):
    made, _, root = drawn(switch(ranks), "reduce", objective="latency")
    heads = [shape for shape in root.iter(f"{SVG}polygon") if "head" in shape.get("class")]
    assert len(heads) == made.figures.transfers
    exchanged, _, root = drawn(switch(ranks), objective="rounds")
    heads = [shape for shape in root.iter(f"{SVG}polygon") if "head" in shape.get("class")]
    assert len(heads) == exchanged.figures.transfers


def test_arrows_have_the_colour_of_the_slowest_link_they_cross():
    _, _, root = drawn(catalog("dgx-h100", hosts=2), objective="latency")
    kinds = [shape.get("class").split()[0] for shape in root.iter(f"{SVG}polygon")]
    assert kinds.count("network") == 16
    assert set(kinds) == {"network", "nvlink"}


def test_it_says_what_the_plan_costs_and_what_bounds_it():
    made, _, root = drawn(catalog("dgx-h100"))
    said = " ".join(words(root))
    for fact in (
        made.algorithm,
        "4,096 B on 8 ranks",
        "time >= 0.60 us, throughput <= 257.14 GB/s",
        "nvlink: 450 GB/s, 0.3 us a link",
        "proved: complete",
        "rank 7",
    ):
        assert fact in said
    assert f"{made.certificate.gap:.3f} x the auto bound" in said


def test_hosts_alike_are_drawn_once_and_few_in_a_panel():
    topology = hosts(9, 2)
    made, _, root = drawn(topology, objective="latency", payload_bytes=0)
    said = words(root)
    assert "9 hosts alike: h0-8; the ranks of h0" in said
    assert f"{FEW_ROWS} of 9 hosts are drawn in each round; + counts the messages of the others" in said
    heads = sum(1 for _ in root.iter(f"{SVG}polygon"))
    hidden = sum(int(text[1:].split()[0]) for text in said if re.fullmatch(r"\+\d+ messages", text))
    assert heads + hidden == made.figures.transfers


def test_names_are_escaped():
    topology = replace(switch(2), name='<b> & "c"')
    _, text, root = drawn(topology)
    assert "<b>" not in text
    assert root.find(f"{SVG}title").text == 'allreduce sum on <b> & "c"'


def test_it_needs_nothing_else():
    _, text, root = drawn(catalog("dgx-1-v100"))
    assert not re.findall(r"<script|<image|href|url\(|@import|@font-face|on\w+=", text)
    assert text.count("http") == 1  # the name space
    assert "prefers-color-scheme:dark" in text
    first = next(iter(root.iter(f"{SVG}rect")))
    assert first.get("class") == "paper"


@pytest.mark.long
def test_the_same_plan_gives_the_same_bytes_whatever_the_hash_seed():
    program = (
        "from topocomm import catalog, plan; from topocomm.planning.report.plan_svg import dumps; import hashlib;"
        "t = catalog('mi250x', hosts=2); p = plan(t, 'broadcast', payload_bytes=64);"
        "print(hashlib.sha256(dumps(p, t).encode()).hexdigest())"
    )
    (text,) = hash_seeds.printed(program)
    assert text


def test_messages_between_the_same_ranks_over_different_links_are_drawn_beside_each_other():
    topology = catalog("dgx-1-v100")
    made, _, root = drawn(topology, objective="throughput", payload_bytes=1 << 20)
    curves = [shape.get("d") for shape in root.iter(f"{SVG}path")]
    assert len(set(curves)) == len(curves)
    moves = {(m.round, m.src, m.dst, m.path) for m in made.schedule.transfer_list()}
    assert len(moves) > len({move[:3] for move in moves})  # some go two ways
    heads = [shape.get("class").split()[0] for shape in root.iter(f"{SVG}polygon")]
    assert {"nvlink", "pcie"} == set(heads)
    assert len({move[:3] for move in moves}) < len(heads) <= len(moves)


def test_a_pipeline_says_its_slices():
    made, _, root = drawn(catalog("dgx-1-v100"), objective="throughput", payload_bytes=1 << 20)
    repeat = made.schedule.repeat
    rounds = f"{repeat.stagger_rounds} round{'s' * (repeat.stagger_rounds != 1)}"
    said = f"pipelined: the rounds run for each of {repeat.count} slices, each {rounds} after the one before; sizes are"
    assert any(text.startswith(said) for text in words(root))


def test_the_certificate_stays_in_its_panel():
    _, _, root = drawn(catalog("dgx-h100", hosts=4), objective="latency", payload_bytes=0)
    lines = [shape for shape in root.iter(f"{SVG}text") if shape.get("x") == "504"]
    assert len(lines) >= 3
    assert all(LETTER * 12 * len(shape.text) <= 1180 - 504 - 24 for shape in lines)
    bold = [shape.text for shape in lines if "bold" in shape.get("class")]
    assert " ".join(bold).endswith("in others")
