"""Captures of one machine that the tests of joining and combining put together."""

from tests.topology.matrices import facts_of, render_tabs
from tests.topology.readers.nvidia.listings import remote, status
from topocomm.topology.model import Device, Topology
from topocomm.topology.readers.nvidia import nvidia_nvlink_remote, nvidia_nvlink_status, nvidia_smi


def topo_m(gpus, code, **columns):
    return nvidia_smi.read(render_tabs(facts_of(gpus, code, **columns)), "m.txt")


def rates(rates, **rest):
    return nvidia_nvlink_status.read(status(rates, **rest), "s.txt")


def far_ends(ends, **rest):
    return nvidia_nvlink_remote.read(remote(ends, **rest), "r.txt")


def capture(name, devices, links=(), pairs=(), *, source="NCCL topology XML", **rest):
    return Topology(name, source, tuple(devices), tuple(links), tuple(pairs), **rest)


def gpus(count, **fields):
    return [Device(f"GPU{i}", "gpu", bus_id=f"0000:{16 * i + 7:02x}:00.0", **fields) for i in range(count)]


def codes(topology):
    return {(pair.a, pair.b): pair.code for pair in topology.pairs}


def link(topology, src, dst):
    (found,) = [link for link in topology.links if (link.src, link.dst) == (src, dst)]
    return found
