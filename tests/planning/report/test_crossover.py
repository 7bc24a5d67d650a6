"""The table over sizes: one algorithm per stretch, and where it changes."""

import json
from xml.etree import ElementTree

import pytest

from tests.machines import switch
from tests.topology.draw.geometry import SVG, words
from topocomm import SUM, catalog, plan
from topocomm.operators.find import find_operator
from topocomm.planning.report.crossover import (
    Size,
    _time,
    changes,
    crossover_document,
    crossover_svg,
    crossover_text,
    human,
)
from topocomm.planning.report.plan_comparison import ranked
from topocomm.topology.draw.svg.svg_page import LETTER


@pytest.fixture(scope="module")
def sizes():
    machine = switch(8)
    plans = [plan(machine, payload_bytes=size) for size in (64, 4096, 1 << 20, 1 << 24)]
    return [Size(made, ranked(made, machine, SUM)) for made in plans]


def test_stretches_have_no_gap(sizes):
    stretches = changes(sizes)
    assert stretches == [("flat", 64, 4096), ("direct", 1 << 20, 1 << 24)]


def test_the_best_of_a_size_is_the_best_of_its_rivals(sizes):
    for size in sizes:
        assert size.plan.figures.predicted_us == pytest.approx(min(rival.predicted_us for rival in size.rivals))


def test_text(sizes):
    lines = crossover_text(sizes, "box").splitlines()
    assert lines[0] == "allreduce sum, 8 ranks on box"
    assert [line.split()[:2] for line in lines[4:8]] == [
        ["64", "flat"],
        ["4096", "flat"],
        ["1048576", "direct"],
        ["16777216", "direct"],
    ]
    assert lines[-1] == "best: flat from 64 B to 4 KiB, direct from 1 MiB to 16 MiB"


def test_rows_that_sizes_are_cut_to_are_named(sizes):
    assert crossover_text(sizes, "box").splitlines()[1] == "objective auto, model loggp"
    made = plan(switch(8), payload_bytes=516 * 15, operator=find_operator("attention.logsumexp"))
    text = crossover_text([Size(made, ranked(made, switch(8), find_operator("attention.logsumexp")))], "box")
    assert text.splitlines()[1] == "objective auto, model loggp; sizes cut to whole rows of 516 B"


def test_document(sizes):
    document = json.loads(json.dumps(crossover_document(sizes, "box")))
    assert document["changes"] == [{"after_bytes": 4096, "from_bytes": 1 << 20, "before": "flat", "after": "direct"}]
    assert all(size["candidates"][0]["algorithm"] == size["algorithm"] for size in document["sizes"])


def test_sizes_at_which_the_library_takes_less(sizes):
    machine = catalog("dgx-h100")
    plans = [plan(machine, payload_bytes=size) for size in (1 << 20, 1 << 25)]
    made = [Size(one, ranked(one, machine, SUM)) for one in plans]
    assert crossover_text(made, "dgx-h100").endswith("native: ncclAllReduce at 32 MiB (159.97 us)")
    assert [one["native"]["chosen"] for one in crossover_document(made, "dgx-h100")["sizes"]] == [False, True]
    assert "native" not in crossover_text(sizes, "switch")


def test_picture(sizes):
    text = crossover_svg(sizes, "box <1>")
    root = ElementTree.fromstring(text)
    circles = [item for item in root.iter() if item.tag.endswith("circle")]
    assert len(circles) == len(sizes) and crossover_svg(sizes, "box <1>") == text
    said = words(root)
    assert {"predicted time", "payload, bytes of a rank's value", "no plan is faster"} <= set(said)
    assert {"flat", "direct"} <= set(said)  # the best ones, on the strip or below


def test_the_bound_is_below_all_times(sizes):
    machine = catalog("dgx-h100", hosts=2)
    plans = [plan(machine, payload_bytes=64 << shift) for shift in range(0, 20, 3)]
    root = ElementTree.fromstring(crossover_svg([Size(one, ranked(one, machine, SUM)) for one in plans], "x"))
    (area,) = (shape for shape in root.iter(f"{SVG}polygon") if "fill" in shape.get("class"))
    bound = dict(tuple(map(float, point.split(","))) for point in area.get("points").split()[1:-1])
    dots = {float(dot.get("cx")): float(dot.get("cy")) for dot in root.iter(f"{SVG}circle")}
    assert bound.keys() == dots.keys() and len(dots) == len(plans)
    assert all(dots[x] <= bound[x] for x in dots)


def test_names_without_room_are_in_rows_on_the_page():
    """Of a machine with many best algorithms the row of their names ran out of the picture."""
    machine = catalog("dgx-h100", hosts=2)
    plans = [plan(machine, payload_bytes=64 << shift) for shift in range(0, 21, 2)]
    root = ElementTree.fromstring(crossover_svg([Size(one, ranked(one, machine, SUM)) for one in plans], "x"))
    width, height = map(float, root.get("viewBox").split()[2:])
    said = {item.text: item for item in root.iter(f"{SVG}text")}
    names = {one.algorithm for one in plans}
    assert len(names) > 6 and names <= said.keys()
    for name in names:
        x, y, half = float(said[name].get("x")), float(said[name].get("y")), len(name) * LETTER * 12 / 2
        assert x + half * (1 if said[name].get("text-anchor") == "middle" else 2) <= width and y < height


def test_one_size_is_a_picture_too(sizes):
    ElementTree.fromstring(crossover_svg(sizes[:1], "box"))


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1000, "1000 B"), (1024, "1 KiB"), (3 << 30, "3 GiB")])
def test_human(size, text):
    assert human(size) == text


def test_lines_of_the_table_fit_a_terminal(sizes):
    table = crossover_text([*sizes] * 3, "box").splitlines()
    assert max(map(len, table)) <= 80
    assert table[-1].startswith("      ") or table[-1].startswith("best: ")
    assert "flat at 64 B" in crossover_text(sizes[:1], "box")


@pytest.mark.parametrize(("power", "text"), [(-1, "0.1 us"), (2, "100 us"), (3, "1 ms"), (5, "100 ms"), (6, "1 s")])
def test_times_of_the_axis(power, text):
    assert _time(power) == text
