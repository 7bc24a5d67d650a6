"""Reads NCCL topology files as its tests do, and picks what they look at."""

from topocomm.topology.readers.nccl.xml import nccl_xml


def read(text):
    assert nccl_xml.matches(text)
    return nccl_xml.read(text, "/some/folder/topo.xml")


def codes(topology):
    return {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs}


def links(topology, kind=None):
    return {(x.src, x.dst): x for x in topology.links if kind is None or x.kind == kind}
