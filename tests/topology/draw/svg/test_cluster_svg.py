"""Many hosts in one picture: every host is there and named, its endpoints too, and its cables end where they should."""

import re
from dataclasses import replace

import pytest

from tests.topology.draw.geometry import SVG, facts, parsed, wires, words
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.svg.cluster_svg import MOST_HOSTS
from topocomm.topology.draw.svg.machine_svg import render


def squares(root):
    """The number of squares of each row."""
    rows = [path.get("d").count("M") for path in root.iter(f"{SVG}path") if path.get("class") == "device"]
    return [count for count in rows if count]


@pytest.mark.parametrize("hosts", [3, 4, 31, 32, 127, 128])
def test_up_to_128_hosts_are_rows_with_a_square_for_each_gpu(hosts):
    root = parsed(render(catalog("dgx-h100", hosts=hosts)))
    assert squares(root) == [8] * hosts
    assert {f"h{i}" for i in range(hosts)} <= set(words(root))
    assert not any(text.startswith("and ") for text in words(root))
    assert float(root.get("width")) <= 1280
    assert float(root.get("height")) <= 940


def test_more_hosts_are_counted():
    root = parsed(render(catalog("dgx-h100", hosts=200)))
    assert len(squares(root)) == MOST_HOSTS
    assert "and 72 more hosts: h128-199" in words(root)


def test_every_column_ends_on_its_own_rail():
    root = parsed(render(catalog("dgx-h100", hosts=5)))
    heights = {
        float(text.get("y")) - 4: text.text for text in root.iter(f"{SVG}text") if (text.text or "").startswith("rail")
    }
    dots = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter(f"{SVG}circle")]
    numbers = [text for text in root.iter(f"{SVG}text") if re.fullmatch("[0-7]", text.text or "")]
    columns = {float(text.get("x")): text.text for text in numbers}
    assert len(dots) == len(columns) == 16  # two blocks of four hosts at most
    for x, y in dots:
        near = min(columns, key=lambda column: abs(column - x))
        assert abs(near - x) < 1
        assert heights[y] == f"rail{columns[near]}"


def test_hosts_on_other_switches_have_cables_of_their_own():
    topology = catalog("dgx-h100", hosts=6)
    swapped = {f"h5/NIC{i}": f"h5/NIC{7 - i}" for i in range(8)}
    links = tuple(
        link._replace(src=swapped.get(link.src, link.src)) if link.dst.startswith("rail") else link
        for link in topology.links
    )
    root = parsed(render(replace(topology, links=links)))
    said = facts(root)
    assert sum("h5/NIC0 to rail7" in text for text in said) >= 1
    assert {f"h{i}" for i in range(6)} <= set(words(root))


def test_all_72_gpus_of_a_rack_are_on_its_switch():
    root = parsed(render(catalog("gb200-nvl72")))
    said = words(root)
    assert "18 hosts, 72 GPUs on one GPU fabric" in said
    assert "NVS/0: NVLink, 900 GB/s from each GPU" in said
    told = facts(root)
    for host in range(18):
        for gpu in range(4):
            assert any(f"GPU h{host}/GPU{gpu}\n" in text for text in told)
    legs = [points for points in wires(root, "nvlink") if abs(points[0][0] - points[1][0]) < 0.1]
    assert len(legs) == 72 + 4  # and the host that is drawn whole


def test_racks_beyond_the_fourth_are_counted():
    said = words(parsed(render(catalog("gb200-nvl72", hosts=5))))
    assert said.count("18 hosts, 72 GPUs on one GPU fabric") == 4
    assert "and 18 more hosts: h72-89" in said


def test_many_cores_are_one_box():
    root = parsed(render(catalog("cpu-2-socket-64", hosts=3)))
    assert words(root).count("64 x CPU") == 3
