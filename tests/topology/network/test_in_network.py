"""Which switches reduce on the way: said by the catalogue, by dumps that tell the generation, and in the JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from topocomm.errors import TopologyError
from topocomm.topology.catalog.systems import SYSTEMS, catalog
from topocomm.topology.draw.topology_text import render
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.model import IN_NETWORK_KINDS
from topocomm.topology.network.in_network import IN_NETWORK, knows
from topocomm.topology.readers.plain.topology_json import dumps, read, to_document
from topocomm.topology.recognise import load

DATA = Path(__file__).parents[2] / "data/topologies"


def switches(topology):
    return {device.id: device.in_network for device in topology.devices if device.in_network is not None}


def test_of_the_catalogue_only_hopper_and_later_have_it():
    found = {name: switches(catalog(name)) for name in SYSTEMS}
    has_it = ("dgx-b200", "dgx-h100", "dgx-h100-taper2", "dgx-h200", "gb200-nvl72")
    assert {name: one for name, one in found.items() if one} == {name: {"nvswitch0": "nvls"} for name in has_it}
    assert switches(catalog("dgx-h100", hosts=2)) == {"h0/nvswitch0": "nvls", "h1/nvswitch0": "nvls"}


@pytest.mark.parametrize(
    ("dump", "found"),
    [("h100-8-nics.txt", {"nvswitch0": "nvls"}), ("nvswitch-16.txt", {}), ("cube-mesh-8.txt", {})],
)
def test_dumps_tell_it_by_the_number_of_links(dump, found):
    assert switches(load(DATA / dump)) == found


def test_hosts_keep_it_when_they_are_merged():
    merged = merge_hosts([load(DATA / "h100-8-nics.txt")] * 2)
    assert list(switches(merged).values()) == ["nvls", "nvls"]


def test_json_keeps_it_and_leaves_it_out_where_there_is_none():
    topology = catalog("dgx-h100", hosts=2)
    assert read(dumps(topology), "a.json") == topology
    told = [device for device in to_document(topology)["devices"] if "in_network" in device]
    assert {(device["kind"], device["in_network"]) for device in told} == {("switch", "nvls")}


def test_digests_do_not_count_it():
    topology = catalog("dgx-h100")
    plain = replace(topology, devices=tuple(device._replace(in_network=None) for device in topology.devices))
    assert plain != topology
    assert plain.digest == topology.digest
    named = replace(topology, devices=tuple(device._replace(name="x") for device in topology.devices))
    assert named.digest != topology.digest


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("switch", "SHARP", "devices[1].in_network: expected one of nvls sharp, got 'SHARP'"),
        ("switch", ["nvls"], "devices[1].in_network: expected one of nvls sharp, got ['nvls']"),
        ("nic", "nvls", "devices[1].in_network: expected null on a nic, because only switches reduce on the way"),
    ],
)
def test_other_values_are_refused_with_their_path(kind, value, message):
    devices = [{"id": "GPU0", "kind": "gpu"}, {"id": "sw", "kind": kind, "in_network": value}]
    with pytest.raises(TopologyError) as error:
        read(json.dumps({"devices": devices, "links": []}), "a.json")
    assert str(error.value).startswith(f"a.json:1: {message}")


def test_the_screen_says_it_once_for_hosts_alike():
    screen = render(catalog("dgx-h100", hosts=4), next_command="x")
    assert screen.count("\nNVLink SHARP: nvswitch0, for sum, min, max; not for custom operators and plans\n") == 1
    assert "SHARP" not in render(catalog("dgx-a100", hosts=4), next_command="x")


def test_every_kind_is_in_the_table():
    assert tuple(IN_NETWORK) == IN_NETWORK_KINDS


@pytest.mark.parametrize(
    ("kind", "operator", "types", "known"),
    [
        ("nvls", "sum", ["float32"], True),
        ("nvls", "max", ["float32"], False),  # of float32 and float64 it adds only
        ("nvls", "max", ["float16"], True),
        ("nvls", "prod", ["float16"], False),
        ("nvls", "sum", ["float32", "float32"], False),
        ("nvls", "sum", ["complex64"], False),
        ("sharp", "min", ["float32"], True),
        ("sharp", "sum", ["int8"], False),
    ],
)
def test_what_they_know(kind, operator, types, known):
    assert knows(kind, operator, types) is known
