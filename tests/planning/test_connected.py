"""Machines that fall in parts are refused with the parts named."""

from dataclasses import replace

import pytest

import topocomm
from tests.machines import hosts, line, switch
from topocomm import Device, Link, PlanError, Topology
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS, Collective
from topocomm.planning.connected import refuse_disconnected
from topocomm.planning.paths import PathFinder


def check(topology, name="allreduce", endpoints=None, **fields):
    ends = endpoints or topology.endpoints
    if name in IN_PARTS:
        fields = {"parts": (1,) * len(ends)} | fields
    refuse_disconnected(PathFinder(topology), Collective(name, len(ends), **fields), ends)


def apart(*machines):
    """The machines side by side, ids `0/...`, `1/...`."""
    devices, links = [], []
    for number, machine in enumerate(machines):
        devices += [d._replace(id=f"{number}/{d.id}", host=f"{number}/{d.host}") for d in machine.devices]
        links += [k._replace(src=f"{number}/{k.src}", dst=f"{number}/{k.dst}") for k in machine.links]
    return Topology("apart", "test", tuple(devices), tuple(links))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_parts_are_named(name):
    machine = apart(switch(8), switch(2))
    message = (
        r"topology 'apart': no links lead( both ways)? between 8 endpoints \(0/GPU0-7\) and "
        r"2 endpoints \(1/GPU0-1\); plan for ranks of one part"
    )
    with pytest.raises(PlanError, match=message):
        check(machine, name)
    with pytest.raises(PlanError, match=message):
        topocomm.plan(machine, name, payload_bytes=0)
    check(machine, name, machine.endpoints[:8])


def test_many_parts_are_counted():
    with pytest.raises(PlanError, match=r"1 endpoint \(0/GPU0\), .*\(2/GPU0\) and 6 more; plan"):
        check(apart(*[switch(1)] * 9))


def test_names_of_a_part_are_cut():
    with pytest.raises(PlanError, match=r"5 endpoints \(0/h0/GPU0, 0/h1/GPU0, 0/h2/GPU0, \.\.\.\) and 1 endpoint"):
        check(apart(hosts(5, 1), switch(1)))
    odd = [f"1/GPU{gpu}" for gpu in (0, 2, 4, 6)]
    with pytest.raises(PlanError, match=r"1 endpoint \(0/GPU0\) and 4 endpoints \(1/GPU0,2,4,6\); plan"):
        check(apart(switch(1), line(8)), endpoints=["0/GPU0", *odd])


@pytest.mark.parametrize("machine", [switch(1), switch(8), line(9), hosts(3, 2)], ids=lambda machine: machine.name)
def test_what_hangs_together_is_let_through(machine):
    for name in COLLECTIVES:
        check(machine, name)


def test_one_way_links_serve_some_collectives():
    devices = tuple(Device(name, "gpu") for name in "abc")
    machine = Topology("one way", "test", devices, (Link("a", "b", "k", 1, 1.0, 1.0), Link("b", "c", "k", 1, 1.0, 1.0)))
    for name in ("broadcast", "scan", "exscan"):
        check(machine, name)
    for name in ("allreduce", *IN_PARTS):
        with pytest.raises(PlanError, match="no links lead both ways between 1 endpoint"):
            check(machine, name)
    circle = replace(machine, links=(*machine.links, Link("c", "a", "k", 1, 1.0, 1.0)))
    check(circle)
    with pytest.raises(PlanError, match=r"1 endpoint \(a\), 1 endpoint \(b\) and 1 endpoint \(c\)"):
        check(machine)


def test_ranks_that_share_endpoints():
    check(switch(2), endpoints=["GPU1", "GPU1", "GPU0"])
    check(apart(switch(1), switch(1)), endpoints=["1/GPU0"] * 3)
