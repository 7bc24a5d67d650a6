import re

from tests.topology.draw.geometry import facts, parsed, words
from tests.topology.draw.machines import linked_pair
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.svg.machine_svg import render


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
    assert "GB/s not known (plans assume 14.1 GB/s a link: the slowest NVLink, RTX A6000)" in text
    assert "NVLink, GB/s not known" in words(parsed(text))
