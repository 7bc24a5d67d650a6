from itertools import combinations

import pytest

from tests.topology.draw.geometry import SVG, crossings, parsed, wires, words
from tests.topology.draw.machines import mixed_cluster, shown
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.svg.machine_svg import render
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Topology


@pytest.mark.parametrize("topology", [t for t in shown() if "mi300" not in t.name], ids=lambda t: t.name)
def test_the_fastest_links_do_not_cross_and_all_of_the_fabric_at_most_twice(topology):
    root = parsed(render(topology))
    fabric = wires(root, "nvlink")
    assert len(fabric) > 0 or "rtx" in topology.name
    assert crossings(wires(root, "heavy")) == []
    # Two is the least that any drawing of the hybrid cube mesh (K4 x K2) can have; all others have none.
    assert len(crossings(fabric)) == (2 if "dgx-1" in topology.name else 0)


def test_a_mesh_has_an_arc_for_each_pair_between_their_boxes():
    root = parsed(render(catalog("mi300x-8")))
    arcs = [points for points in wires(root, "xgmi") if len(points) == 4]
    assert len(arcs) == 28
    boxes = [box for box in root.iter(f"{SVG}rect") if box.get("class") == "device" and box.get("height") == "40"]
    edges = [(float(box.get("x")), float(box.get("x")) + float(box.get("width"))) for box in boxes]

    def box_of(point):
        return next(index for index, (left, right) in enumerate(edges) if left < point[0] < right)

    assert {(box_of(arc[0]), box_of(arc[-1])) for arc in arcs} == set(combinations(range(8), 2))
    ends = [point for arc in arcs for point in (arc[0], arc[-1])]
    assert len(set(ends)) == len(ends)
    assert "each to each: xGMI, 64 GB/s" in words(root)


def test_equal_rates_are_equal_lines_and_unequal_rates_are_not():
    def host(rates):
        links = [link for i, rate in enumerate(rates) for link in both_ways(f"GPU{i}", "GPU9", "nvlink", gb_per_s=rate)]
        ends = tuple(Device(f"GPU{i}", "gpu") for i in (*range(len(rates)), 9))
        root = parsed(render(Topology("x", "by hand", ends, tuple(links))))
        return {shape.get("stroke-width") for shape in root.iter() if "nvlink" in shape.get("class", "")}

    assert len(host([25.0, 25.001, 25.0])) == 1
    assert len(host([25.0, 50.0, 75.0, 100.0])) == 4


def test_the_geometry_finds_crossings():
    text = (
        '<svg xmlns="http://www.w3.org/2000/svg"><line x1="0" y1="0" x2="9" y2="9" class="nvlink wire"/>'
        '<path d="M0 9 L4 9 Q6 9 6 0" class="nvlink wire"/><line x1="9" y1="0" x2="9" y2="9" class="nvlink wire"/>'
        "</svg>"
    )
    assert len(crossings(wires(parsed(text), "nvlink"))) == 1


def test_boxes_of_one_host_do_not_lie_on_each_other():
    for topology in [*shown(), mixed_cluster(), catalog("mi250x", hosts=2), catalog("gb200-nvl72")]:
        boxes = []
        for box in parsed(render(topology)).iter(f"{SVG}rect"):
            if "device" in box.get("class"):
                x, y, w, h = (float(box.get(key)) for key in ("x", "y", "width", "height"))
                boxes.append((x, y, x + w, y + h))
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (topology.name, a, b)


def test_numa_nodes_joined_each_to_each_get_one_bar_and_a_ring_of_them_does_not():
    def host(pairs):
        devices = [Device(f"GPU{i}", "gpu", numa=i) for i in range(4)]
        devices += [Device(f"numa{i}", "numa", numa=i) for i in range(4)]
        links = [link for i in range(4) for link in both_ways(f"GPU{i}", f"numa{i}", "pcie4")]
        links += [link for a, b in pairs for link in both_ways(f"numa{a}", f"numa{b}", "smp-amd")]
        return parsed(render(Topology("x", "by hand", tuple(devices), tuple(links))))

    ring = [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert "between NUMA nodes, each to each" in words(host([*ring, (0, 2), (1, 3)]))
    root = host(ring)
    assert "between NUMA nodes, each to each" not in words(root)
    assert len(wires(root, "smp")) == 4 + 1  # and the legend
