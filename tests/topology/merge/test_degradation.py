"""A topology without some of its links."""

from dataclasses import replace

import pytest

from tests.machines import hosts, line, switch
from topocomm import TopologyError, catalog
from topocomm.topology.merge.degradation import without
from topocomm.topology.model import Link


def gone(topology, *names):
    left = {(link.src, link.dst) for link in without(topology, names).links}
    return {(link.src, link.dst) for link in topology.links} - left


def test_a_link_goes_in_both_directions_or_in_one():
    box = catalog("dgx-1-v100")
    assert gone(box, "GPU0-GPU3") == {("GPU0", "GPU3"), ("GPU3", "GPU0")}
    assert gone(box, "GPU0->GPU3") == {("GPU0", "GPU3")}
    assert gone(box, "GPU0->GPU3", "GPU3 -> GPU0") == gone(box, "GPU3-GPU0")


def test_a_device_loses_all_its_links_and_stays():
    cluster = hosts(3, 2)
    assert gone(cluster, "rail1") == {
        pair for h in range(3) for pair in ((f"h{h}/NIC1", "rail1"), ("rail1", f"h{h}/NIC1"))
    }
    left = without(cluster, ["h1/GPU0"])
    assert left.devices == cluster.devices
    assert left.endpoints == cluster.endpoints
    assert not [link for link in left.links if "h1/GPU0" in (link.src, link.dst)]


def test_the_rest_is_as_it_was():
    box = catalog("dgx-h100", hosts=2)
    left = without(box, ["h0/NIC3"])
    assert [link for link in box.links if "h0/NIC3" not in (link.src, link.dst)] == list(left.links)
    assert left.name == "dgx-h100 x 2 without h0/NIC3"
    assert left.digest != box.digest
    assert without(box, []).digest == box.digest


def test_ids_may_hold_the_mark_themselves():
    box = switch(2)
    dashed = replace(
        box,
        devices=tuple(d._replace(id=d.id.replace("GPU", "node-1/GPU-")) for d in box.devices),
        links=tuple(
            link._replace(**{end: getattr(link, end).replace("GPU", "node-1/GPU-") for end in ("src", "dst")})
            for link in box.links
        ),
    )
    assert gone(dashed, "node-1/GPU-0-switch") == {("node-1/GPU-0", "switch"), ("switch", "node-1/GPU-0")}
    assert gone(dashed, "switch->node-1/GPU-1") == {("switch", "node-1/GPU-1")}


def test_parallel_links_go_together():
    box = switch(2)
    twice = replace(box, links=(*box.links, Link("GPU0", "switch", "pcie", 1, 10.0, 1.0)))
    assert not [x for x in without(twice, ["GPU0->switch"]).links if (x.src, x.dst) == ("GPU0", "switch")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GPU9", "without 'GPU9': neither a device .* near it: GPU"),
        ("GPU0-GPU9", "neither a device of topology 'line of 4' nor two of them .* near it: GPU0"),
        ("zzz", "devices are GPU0, GPU1, GPU2, GPU3"),
        ("GPU0-GPU3", "no link joins GPU0 and GPU3; GPU0 is linked to GPU1"),
        ("GPU0-GPU0", "no link joins GPU0 and GPU0"),
        ("", "neither a device"),
        ("->", "neither a device"),
    ],
)
def test_unknown_names_are_one_line_with_what_is_near(name, message):
    with pytest.raises(TopologyError, match=message) as error:
        without(line(4), [name])
    assert "\n" not in str(error.value)


def test_a_device_without_links_cannot_lose_them():
    with pytest.raises(TopologyError, match="the device has no link"):
        without(catalog("dgx-h100"), ["NIC0"])
