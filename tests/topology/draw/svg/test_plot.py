from topocomm.topology.draw.svg.plot import Box, Plot, free_rows, track_levels
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device

LINKS = both_ways("a", "b", "pcie4")


def test_rows_and_levels():
    assert free_rows([(0, 4), (5, 9), (3, 6), (10, 12)]) == [0, 0, 1, 0]
    assert free_rows([(0, 4), (4, 9), (9, 9)]) == [0, 1, 0]  # stretches that touch are apart
    assert free_rows([(4, 9), (0, 4)]) == [0, 1]
    assert free_rows([]) == []
    assert track_levels({"inner": (2, 3), "outer": (0, 9), "beside": (20, 30)}) == {"inner": 0, "outer": 1, "beside": 0}
    levels = track_levels({"a": (0, 5), "b": (3, 8)})
    assert levels["a"] != levels["b"]


def box(name, x, y, width=40.0):
    return Box((Device(name, "switch"),), (x, y), (width, 20.0), "bar", (name,))


def test_a_line_is_upright_where_one_box_is_above_the_other_whichever_comes_first():
    plot = Plot()
    upper, lower = plot.add(box("a", 0, 0)), plot.add(box("b", 10, 100))
    plot.straight(upper, lower, LINKS, (1.4, False))
    plot.straight(lower, upper, LINKS, (1.4, False))
    assert [line.points for line in plot.lines] == [((20.0, 20.0), (20.0, 100.0))] * 2
    assert plot.at["b"] is lower


def test_a_line_between_boxes_side_by_side_has_a_corner_and_ends_at_the_nearer_edge():
    plot = Plot()
    plot.straight(box("a", 0, 0), box("b", 100, 60), LINKS, (1.4, False))
    plot.straight(box("a", 200, 0), box("b", 100, 60), LINKS, (1.4, False))
    assert [line.points for line in plot.lines] == [
        ((32.0, 20.0), (32.0, 70.0), (100.0, 70.0)),
        ((208.0, 20.0), (208.0, 70.0), (140.0, 70.0)),
    ]


def test_without_a_link_there_is_no_line():
    plot = Plot()
    plot.thin(((0, 0), (0, 9)), ())
    plot.thin(((0, 0), (0, 9)), LINKS)
    assert [(line.kind, line.links) for line in plot.lines] == [("pcie", LINKS)]
