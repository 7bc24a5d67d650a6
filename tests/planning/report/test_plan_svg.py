"""The picture of a plan: well-formed, the same every time, self-contained, legible, and it says what was proved."""

import re
from dataclasses import replace

import pytest

from tests import hash_seeds
from tests.machines import line, switch
from tests.thinning import alternating
from tests.topology.draw.geometry import SVG, parsed, wires, words
from topocomm import catalog, plan
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.report.plan_svg import dumps
from topocomm.topology.catalog.systems import SYSTEMS
from topocomm.topology.draw.svg.svg_page import LETTER


def drawn(topology, collective="allreduce", **wanted):
    made = plan(topology, collective, **{"payload_bytes": 4096, **wanted})
    text = dumps(made, topology)
    return made, text, parsed(text)


@pytest.mark.parametrize(("name", "count"), alternating(SYSTEMS, [1, 2, 5]))
def test_every_catalogue_machine_can_be_drawn_within_the_page(name, count):
    topology = catalog(name, hosts=count)
    _, text, root = drawn(topology, "broadcast", objective="latency", ranks=topology.endpoints[:6])
    width, height = float(root.get("width")), float(root.get("height"))
    for points in wires(root):
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
    for box in root.iter(f"{SVG}rect"):
        assert float(box.get("x")) >= 0 and float(box.get("x")) + float(box.get("width")) <= width
        assert float(box.get("y")) >= 0 and float(box.get("y")) + float(box.get("height")) <= height
    assert min(float(element.get("font-size")) for element in root.iter(f"{SVG}text")) >= 11
    assert text.endswith("</svg>\n")


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "topology", [switch(1), switch(5), catalog("dgx-a100", hosts=2), line(2)], ids=lambda t: t.name
)
def test_every_collective_can_be_drawn(collective, topology):
    made, _, root = drawn(topology, collective)
    assert f"{made.figures.rounds} round{'s' * (made.figures.rounds != 1)}" in words(root)


@pytest.mark.parametrize(
    ("payload_bytes", "facts"),
    [
        (4096, ["8 ranks, 4,096 B", "NVLink 450 GB/s", "rank 7", "optimal no plan beats it", "1.000 x the auto bound"]),
        (65536, ["8 ranks, 65,536 B", "1.15 x the best possible, at most", "1.155 x the auto bound"]),
    ],
)
def test_it_says_what_the_plan_costs_and_what_bounds_it(payload_bytes, facts):
    made, _, root = drawn(catalog("dgx-h100"), payload_bytes=payload_bytes)
    said = " ".join(words(root))
    cost = f"{made.figures.predicted_us:.2f} us"
    for fact in (*facts, cost, made.algorithm, "throughput <= 257 GB/s", "Proved: complete"):
        assert fact in said


@pytest.mark.parametrize(
    ("system", "hosts", "bytes_", "objective"),
    [("dgx-h100", 2, 16384, "auto"), ("dgx-1-v100", 1, 1 << 20, "throughput"), ("gb200-nvl72", 1, 16384, "auto")],
)
def test_lines_of_text_stay_in_the_page(system, hosts, bytes_, objective):
    _, _, root = drawn(catalog(system, hosts=hosts), payload_bytes=bytes_, objective=objective)
    for text in root.iter(f"{SVG}text"):
        wide = LETTER * float(text.get("font-size")) * len(text.text or "")
        left = float(text.get("x")) - {"start": 0.0, "middle": wide / 2, "end": wide}[text.get("text-anchor")]
        assert left >= -1 and left + wide <= 801, text.text


def test_parts_that_take_trees_of_their_own_are_drawn_as_trees_each_in_its_colour():
    made, _, root = drawn(catalog("dgx-1-v100"), objective="throughput", payload_bytes=1 << 20)
    said = words(root)
    assert len(made.schedule.chunks) > 2
    assert "tree 1: 5.3% of the rows" in said
    assert any(re.fullmatch(r"\d+ trees carry the value, each a part of it; a ring marks the root", t) for t in said)
    edges = {}
    for shape in root.iter(f"{SVG}line"):
        if shape.get("class").startswith("hue"):
            edges.setdefault(shape.get("class"), []).append(shape)
    assert len(edges) == 8
    assert all(len(own) % 7 == 0 for own in edges.values())  # a tree over eight ranks has seven edges


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
        "q = plan(t, 'allreduce', payload_bytes=1 << 20, objective='throughput');"
        "print(hashlib.sha256((dumps(p, t) + dumps(q, t)).encode()).hexdigest())"
    )
    (text,) = hash_seeds.printed(program)
    assert text
