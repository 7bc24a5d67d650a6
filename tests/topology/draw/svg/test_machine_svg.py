"""The picture of a machine: well-formed, self-contained, legible, few crossings, and all of the machine is in it."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings

from tests import hash_seeds
from tests.topology.draw.geometry import SVG, crossings, parsed, wires
from tests.topology.draw.machines import linked_pair, mixed_cluster, shown, two_gpus
from tests.topology.readers.plain.test_topology_json import topologies
from topocomm.topology.catalog.systems import SYSTEMS, catalog
from topocomm.topology.draw.svg.machine_svg import render
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Topology


def words(root):
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def facts(root):
    return [group.find(f"{SVG}title").text for group in root.iter(f"{SVG}g")]


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


@pytest.mark.parametrize("topology", shown(), ids=lambda t: t.name)
def test_the_fastest_links_do_not_cross_and_all_of_the_fabric_at_most_twice(topology):
    root = parsed(render(topology))
    kind = "xgmi" if "mi300" in topology.name else "nvlink"
    fabric = wires(root, kind)
    assert len(fabric) > 0 or "rtx" in topology.name
    assert crossings(wires(root, "heavy")) == []
    # Two is the least that any drawing of the hybrid cube mesh (K4 x K2) can have; all others have none.
    assert len(crossings(fabric)) == (2 if "dgx-1" in topology.name else 0)


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


def test_fabric_is_bold_and_the_faster_the_bolder():
    def stroke(shape):
        return float(shape.get("stroke-width"))

    shapes = [s for s in parsed(render(catalog("dgx-1-v100"))).iter() if "wire" in s.get("class", "")]
    heavy = {stroke(s) for s in shapes if "heavy" in s.get("class")}
    light = {stroke(s) for s in shapes if "nvlink" in s.get("class") and "heavy" not in s.get("class")} - heavy
    pcie = {stroke(s) for s in shapes if "pcie" in s.get("class")}
    assert max(pcie) < min(light) <= max(light) < min(heavy)


def test_every_device_and_link_has_its_facts():
    root = parsed(render(catalog("dgx-1-v100")))
    said = facts(root)
    for device in catalog("dgx-1-v100").devices:
        assert any(f" {device.id}\n" in text for text in said), device.id
    pairs = {frozenset(link[:2]) for link in catalog("dgx-1-v100").links}
    told = {frozenset((a, b)) for text in said for a, b in re.findall(r"(\S+) to and from (\S+):", text)}
    assert told == pairs
    assert any(
        text
        == "GPU0 to and from GPU3: NVLink\n2 links, 50 GB/s each way (nominal: NVIDIA datasheets: total per GPU over "
        "links (V100: 150 / 6))\nlatency 0.7 us (assumed)"
        for text in said
    )


def test_what_is_not_known_is_said():
    text = render(linked_pair())
    assert "GB/s not known (plans assume 14.0625 a link: the slowest NVLink, RTX A6000)" in text
    assert "NVLink, GB/s not known" in words(parsed(text))


def test_names_are_escaped_and_warnings_below():
    root = parsed(render(linked_pair()))
    assert words(root)[0] == '<script>"x"</script> & co (by hand)'
    assert "Note: a <b>warning</b>" in words(root)
    assert any('A <b> & "c"' in text and "bus id 0000:07:00.0" in text for text in facts(root))


def test_many_notes_are_counted():
    root = parsed(render(replace(two_gpus(), warnings=tuple(f"warning {i}" for i in range(5)))))
    assert "Note: warning 2" in words(root)
    assert "2 more notes: --format json" in words(root)


def test_a_nic_without_a_link_hangs_by_a_dashed_line_on_the_gpu_that_codes_put_it_next_to():
    root = parsed(render(two_gpus()))
    assert len(wires(root, "guess")) == 1
    assert any("NIC0 is placed by pair codes" in text for text in facts(root))


def test_many_hosts_alike_are_drawn_once_and_the_picture_says_so():
    said = words(parsed(render(catalog("dgx-h100", hosts=64))))
    assert "64 hosts alike: h0-63; h0 is drawn" in said
    assert said.count("GPU/0") == 1
    assert [name for name in said if name.startswith("rail")] == [f"rail{i}" for i in range(8)]
    assert words(parsed(render(catalog("dgx-h100", hosts=4)))).count("GPU/0") == 4


def test_kinds_of_hosts_beyond_the_fourth_are_counted():
    links = [both_ways(f"h{i}/GPU0", f"h{i}/GPU1", "nvlink2", lanes=i + 1) for i in range(7)]
    ends = [Device(f"h{i}/GPU{j}", "gpu", f"h{i}") for i in range(7) for j in range(2)]
    topology = Topology("seven", "by hand", tuple(ends), tuple(link for pair in links for link in pair))
    assert "and 3 hosts of other kinds, not drawn" in words(parsed(render(topology)))


def test_rails_and_spine_join_the_hosts():
    root = parsed(render(catalog("dgx-h100", hosts=2)))
    assert sum("h1/NIC3 to rail3: network" in text for text in facts(root)) == 1
    assert "spine" in words(root)
    assert sum(1 for _ in root.iter(f"{SVG}circle")) == 16  # a dot where a cable meets its rail


def test_a_switch_that_hosts_share_is_a_bar_in_each():
    said = words(parsed(render(catalog("gb200-nvl72"))))
    assert "18 hosts alike: h0-17; h0 is drawn" in said
    assert any(text.startswith("shared") and "NVS/0" in text for text in said)


def test_many_cores_and_nics_are_drawn_as_one():
    said = words(parsed(render(catalog("cpu-2-socket-64"))))
    assert {"CPU/0-31", "CPU/32-63"} <= set(said)
    nics = [Device(f"NIC{i}", "nic") for i in range(20)]
    links = [link for nic in nics for link in both_ways("numa0", nic.id, "pcie4")]
    host = (Device("GPU0", "gpu"), Device("numa0", "numa", numa=0), *nics)
    topology = Topology("x", "by hand", host, (*both_ways("GPU0", "numa0", "pcie4"), *links))
    assert "20 NICs" in words(parsed(render(topology)))


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


def test_a_mesh_names_the_pairs_it_lacks():
    lost = {(0, 5), (2, 7)}
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8) if (a, b) not in lost]
    links = [link for a, b in pairs for link in both_ways(f"GPU{a}", f"GPU{b}", "xgmi-mi100")]
    topology = Topology("x", "by hand", tuple(Device(f"GPU{i}", "gpu") for i in range(8)), tuple(links))
    assert "each to each but GPU/0-5, GPU/2-7: xGMI, 46 GB/s" in words(parsed(render(topology)))


def test_it_needs_nothing_else_and_runs_nothing():
    for topology in [*shown(), linked_pair()]:
        text = render(topology)
        assert not re.findall(r"<script|<image|href|url\(|@import|@font-face|\son\w+=", text)
        assert text.count("http") == 1  # the name space
        assert "prefers-color-scheme:dark" in text


@given(topologies())
@settings(max_examples=60, deadline=None)
def test_any_topology_is_drawn(topology):
    parsed(render(topology))


def test_a_long_chain_of_switches_is_no_trouble():
    names = ["numa0", *(f"pcie{i}" for i in range(3000)), "GPU0"]
    devices = (Device("numa0", "numa", numa=0), *(Device(n, "switch") for n in names[1:-1]), Device("GPU0", "gpu"))
    links = [link for a, b in pairwise(names) for link in both_ways(a, b, "pcie4")]
    parsed(render(Topology("chain", "by hand", devices, tuple(links))))


def test_the_same_machine_gives_the_same_bytes_whatever_the_hash_seed():
    program = (
        "from topocomm import catalog; from topocomm.topology.draw.svg.machine_svg import render; import hashlib;"
        "names = ('mi250x', 'dgx-1-v100', 'cpu-2-socket', 'mi100-8');"
        "print(hashlib.sha256(''.join(render(catalog(n, hosts=2)) for n in names).encode()).hexdigest())"
    )
    (text,) = hash_seeds.printed(program)
    assert text
