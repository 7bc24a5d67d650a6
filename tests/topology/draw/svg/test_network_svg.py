"""The network below the hosts: a line for each switch that NICs are on, else words."""

from tests.topology.draw.geometry import SVG, parsed, wires, words
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.svg.machine_svg import render


def test_a_cable_has_a_dot_on_the_line_of_its_switch():
    root = parsed(render(catalog("dgx-h100", hosts=2)))
    dots = {(dot.get("cx"), dot.get("cy")) for dot in root.iter(f"{SVG}circle")}
    assert len(dots) == 16
    lines = [points for points in wires(root, "network") if points[0][1] == points[1][1]]
    for x, y in dots:
        assert any(points[0][0] <= float(x) <= points[1][0] and points[0][1] == float(y) for points in lines)


def test_links_of_several_widths_differ_in_the_legend_too():
    root = parsed(render(catalog("dgx-h100", hosts=32)))
    assert {"network x32, 1600 GB/s", "network, 50 GB/s"} <= set(words(root))
    last = max(float(text.get("y")) for text in root.iter(f"{SVG}text")) - 4
    samples = [line for line in root.iter(f"{SVG}line") if float(line.get("y1")) == last]
    network = [line.get("stroke-width") for line in samples if "network" in line.get("class")]
    assert len(network) == len(set(network)) == 2


def test_more_switches_than_have_room_are_told_in_words():
    topology = catalog("gb200-nvl72", hosts=2)
    assert "Network" in words(parsed(render(topology)))
