import re
import shutil
import subprocess

import pytest

from tests.topology.draw.machines import linked_pair, mixed_cluster, shown
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.dot import render
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Link, Topology

_STRING = r'"(?:[^"\\]|\\.)*"'


@pytest.mark.parametrize("topology", [*shown(), linked_pair(), mixed_cluster()], ids=lambda t: t.name)
def test_it_is_one_graph_with_every_device_and_connection(topology):
    text = render(topology)
    bare = re.sub(_STRING, '"', text)
    assert bare.count("{") == bare.count("}")
    nodes = re.findall(rf"^\s*({_STRING}) \[label=", text, re.MULTILINE)
    assert len(nodes) == len(topology.devices)
    edges = re.findall(rf"^\s*({_STRING}) -- ({_STRING}) \[", text, re.MULTILINE)
    assert len(edges) == len({frozenset(link[:2]) for link in topology.links})
    assert {end for edge in edges for end in edge} <= set(nodes)
    for line in bare.splitlines():
        assert re.fullmatch(r"//.*|\s*(?:(?:strict )?graph \" \{|subgraph \w+ \{|\}|.*;)?", line), line


def test_hosts_and_numa_nodes_are_clusters():
    text = render(catalog("dgx-h100", hosts=2))
    assert [text.count(f'label="{host}";') for host in ("h0", "h1", "network")] == [1, 1, 1]
    assert text.count('label="NUMA 0"') == 2
    assert text.count("subgraph cluster_") == 3 + 4


def test_edges_say_what_they_are_and_are_wider_the_faster():
    text = render(catalog("dgx-1-v100"))
    wide = re.search(r'"GPU0" -- "GPU3" \[label="NVLink x2, 50 GB/s", penwidth=([\d.]+)', text)
    thin = re.search(r'"GPU0" -- "GPU1" \[label="NVLink, 25 GB/s", penwidth=([\d.]+)', text)
    assert float(wide[1]) > float(thin[1]) >= 1.0
    assert "nominal: NVIDIA datasheets" in text


def test_directions_that_differ_and_unknown_rates():
    devices = (Device("GPU0", "gpu"), Device("GPU1", "gpu"), Device("GPU2", "gpu"))
    links = (
        Link("GPU0", "GPU1", "pcie", None, 32.0),
        Link("GPU1", "GPU0", "pcie", None, 16.0),
        *both_ways("GPU0", "GPU2", "nvlink"),
    )
    text = render(Topology("x", "by hand", devices, links))
    assert 'label="PCIe, 32 / 16 GB/s"' in text
    assert 'label="NVLink, ? GB/s", penwidth=1.0' in text


def test_names_cannot_break_out():
    devices = (Device('a"]; evil [label="', "gpu", name="back\\slash"), Device("b", "gpu", 'h"0'))
    text = render(Topology('n"\n// x', "by hand", devices, ()))
    assert text.splitlines()[0] == '// n" // x (by hand)'
    assert '"a\\"]; evil [label=\\""' in text
    assert 'label="h\\"0";' in text
    assert "\\\\slash" not in text  # only NICs show their own name


def test_graphviz_takes_it():
    tool = shutil.which("dot")
    if tool is None:
        pytest.skip("no Graphviz on this machine")
    for topology in [*shown(), linked_pair()]:
        done = subprocess.run([tool, "-Tsvg"], input=render(topology).encode(), capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
