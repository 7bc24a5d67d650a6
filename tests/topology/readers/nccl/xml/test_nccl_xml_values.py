"""What attributes of NCCL's topology XML mean."""

import pytest

from topocomm.errors import TopologyError
from topocomm.topology.links import PCIE_LANE_GB_PER_S
from topocomm.topology.readers.nccl.xml.nccl_xml_values import (
    bus_key,
    cpu_mask,
    cpu_words,
    is_bus_id,
    is_hidden,
    mask_words,
    pcie_attributes,
    pcie_rate,
    smp_kind,
    whole,
)
from topocomm.topology.readers.plain.safe_xml import Element


@pytest.mark.parametrize(
    ("speed", "width", "gb_per_s", "assumed"),
    [
        ("2.5 GT/s", "16", 4.0, False),
        ("5 GT/s", "8", 4.0, False),
        ("8 GT/s", "16", 16.0, False),
        ("8.0 GT/s PCIe", "0x10", 16.0, False),
        ("16.0 GT/s PCIe", "4", 8.0, False),
        ("64.0 GT/s PCIe", "16", 120.0, False),
        ("", "0", 16.0, True),
        ("Unknown speed", "16", 16.0, True),
        ("16 GT/s", "0", 32.0, True),
        ("16 GT/s", "255", 32.0, True),
        ("16 GT/s", "", 32.0, True),
        ("16 GT/s", None, None, False),
        (None, "16", None, False),
    ],
)
def test_pcie_rate(speed, width, gb_per_s, assumed):
    attributes = {"link_speed": speed, "link_width": width}
    assert pcie_rate({key: value for key, value in attributes.items() if value is not None}) == (gb_per_s, assumed)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("gt_per_s", PCIE_LANE_GB_PER_S)
def test_attributes_of_a_rate_give_the_rate_again(gt_per_s, width):
    nominal = PCIE_LANE_GB_PER_S[gt_per_s] * width
    attributes = pcie_attributes(nominal)
    assert pcie_rate(attributes) == (nominal, False)


def test_attributes_of_rates_that_other_sources_have():
    gen3 = {"link_speed": "8.0 GT/s PCIe", "link_width": "16"}
    assert pcie_attributes(16.0) == pcie_attributes(15.753846) == pcie_attributes(12.0) == gen3
    assert pcie_attributes(11.1) == pcie_attributes(None) == {}


def test_bus_ids_in_one_spelling():
    assert bus_key("0000:0F:00.0") == bus_key("0:f:0") == bus_key("00000000:0f:00.0") == "0000:0f:00.0"
    assert is_bus_id("0f:00.0") and not is_bus_id("slot 3")
    assert bus_key(" Slot 3 ") == "slot 3"
    assert is_hidden("fffffff:ffff:ff") and is_hidden("FFFFFFF:FF:FF.0") and not is_hidden("0000:ff:ff.0")


def test_masks():
    assert mask_words("0000000F,000000f0") == ["0000000f", "000000f0"]
    assert mask_words("f,f0") is None  # a word that lost digits
    assert mask_words("x") is None and mask_words(None) is None
    assert cpu_mask("0-3,32-35") == "0000000f,0000000f"
    assert cpu_mask("7") == "00000080"
    assert cpu_mask("0-99999") is None and cpu_mask("3-1") is None and cpu_mask("all") is None


def test_processors():
    assert cpu_words("GenuineIntel", 6, 85) == "GenuineIntel 6/85 (Skylake)"
    assert cpu_words("GenuineIntel", 6, 1) == "GenuineIntel 6/1"
    assert smp_kind("ppc64", None, None, None) == "smp-power9"
    assert smp_kind("x86_64", "AuthenticAMD", 143, 49) == "smp-amd"
    models = {79: "smp-broadwell", 85: "smp-skylake", 143: "smp-sapphire-rapids", 207: "smp", None: "smp"}
    assert {model: smp_kind("x86_64", "GenuineIntel", 6, model) for model in models} == models


@pytest.mark.parametrize(("text", "number"), [("7", 7), (" 0x10 ", 16), ("-1", -1)])
def test_whole_numbers(text, number):
    assert whole(Element("gpu", {"dev": text}, 3), "dev", "f", least=-1) == number
    assert whole(Element("gpu", {}, 3), "dev", "f") is None


@pytest.mark.parametrize("text", ["", "x", "1.5", "-2", "9" * 19])
def test_what_is_no_whole_number(text):
    with pytest.raises(
        TopologyError, match=rf'^f:3: <gpu dev="{text}">: expected a whole number from -1 to 2147483648'
    ):
        whole(Element("gpu", {"dev": text}, 3), "dev", "f", least=-1)
