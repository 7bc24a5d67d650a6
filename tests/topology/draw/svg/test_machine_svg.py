"""The picture of a machine: well-formed, self-contained, legible, few crossings, and all of the machine is in it."""

from dataclasses import replace

import pytest
from hypothesis import given

from tests import hash_seeds
from tests.examples import examples
from tests.topology.draw.geometry import SVG, facts, parsed, wires, words
from tests.topology.draw.machines import shown, two_gpus
from tests.topology.readers.plain.test_topology_json import topologies
from topocomm.topology.catalog.systems import SYSTEMS, catalog
from topocomm.topology.draw.svg.machine_svg import render
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Topology


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("hosts", [1, 2, 5])
def test_every_system_is_drawn_within_its_page(name, hosts):
    text = render(catalog(name, hosts=hosts))
    root = parsed(text)
    width, height = float(root.get("width")), float(root.get("height"))
    for box in root.iter(f"{SVG}rect"):
        x, y, wide, high = (float(box.get(key)) for key in ("x", "y", "width", "height"))
        assert x >= 0 and x + wide <= width
        assert y >= 0 and y + high <= height
    for line in wires(root):
        assert all(0 <= x <= width and 0 <= y <= height for x, y in line)
    assert min(float(element.get("font-size")) for element in root.iter(f"{SVG}text")) >= 11


@pytest.mark.parametrize("topology", shown(), ids=lambda t: t.name)
def test_what_people_are_shown_fits_1280_by_800_without_being_made_smaller(topology):
    root = parsed(render(topology))
    assert float(root.get("width")) <= 1280
    assert float(root.get("height")) <= 800


def test_many_notes_are_counted():
    root = parsed(render(replace(two_gpus(), warnings=tuple(f"warning {i}" for i in range(5)))))
    assert "Note: warning 2" in words(root)
    assert "2 more notes: --format json" in words(root)


def test_of_many_hosts_alike_one_is_drawn_whole_and_all_as_rows():
    said = words(parsed(render(catalog("dgx-h100", hosts=64))))
    assert "h0, one of 64 hosts alike: h0-63" in said
    assert said.count("GPU/0") == 1
    assert [name for name in said if name.startswith("rail")] == [f"rail{i}" for i in range(8)]
    assert {f"h{i}" for i in range(64)} <= set(said)
    assert words(parsed(render(catalog("dgx-h100", hosts=2)))).count("GPU/0") == 2


def test_of_more_than_four_kinds_of_hosts_the_others_are_rows():
    links = [both_ways(f"h{i}/GPU0", f"h{i}/GPU1", "nvlink2", lanes=i + 1) for i in range(7)]
    ends = [Device(f"h{i}/GPU{j}", "gpu", f"h{i}") for i in range(7) for j in range(2)]
    topology = Topology("seven", "by hand", tuple(ends), tuple(link for pair in links for link in pair))
    said = words(parsed(render(topology)))
    assert said.count("GPU/0") == 4
    assert {f"h{i}" for i in range(7)} <= set(said)


def test_rails_and_spine_join_the_hosts():
    root = parsed(render(catalog("dgx-h100", hosts=2)))
    assert sum("h1/NIC3 to rail3: network" in text for text in facts(root)) == 1
    assert "spine" in words(root)
    assert sum(1 for _ in root.iter(f"{SVG}circle")) == 16  # a dot where a cable meets its rail


def test_a_switch_that_hosts_share_is_a_bar_in_each():
    said = words(parsed(render(catalog("gb200-nvl72"))))
    assert "h0, one of 18 hosts alike: h0-17" in said
    assert any(text.startswith("shared") and "NVS/0" in text for text in said)


@given(topologies())
@examples(30)
def test_any_topology_is_drawn(topology):
    parsed(render(topology))


def test_the_same_machine_gives_the_same_bytes_whatever_the_hash_seed():
    program = (
        "from topocomm import catalog; from topocomm.topology.draw.svg.machine_svg import render; import hashlib;"
        "names = ('mi250x', 'dgx-1-v100', 'cpu-2-socket', 'mi100-8');"
        "print(hashlib.sha256(''.join(render(catalog(n, hosts=2)) for n in names).encode()).hexdigest())"
    )
    (text,) = hash_seeds.printed(program)
    assert text
