"""Machines that fall in parts are refused with the parts named."""

from dataclasses import replace

import pytest

import topocomm
from tests.machines import hosts, line, switch
from tests.planning.replay import part_count
from topocomm import Device, Link, PlanError, Topology
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS, Collective
from topocomm.planning.routing.connectivity import refuse_disconnected
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.merge.degradation import without


def check(topology, name="allreduce", endpoints=None, **fields):
    ends = endpoints or topology.endpoints
    if name in IN_PARTS:
        fields = {"parts": (1,) * part_count(name, len(ends))} | fields
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
    message = r"topology 'apart' falls into 2 pieces: 0/GPU0-7; 1/GPU0-1; name the ranks of one piece with --ranks, or"
    with pytest.raises(PlanError, match=message):
        check(machine, name)
    with pytest.raises(PlanError, match=message):
        topocomm.plan(machine, name, payload_bytes=0)
    check(machine, name, machine.endpoints[:8])


def test_many_and_long_pieces_are_cut_short():
    with pytest.raises(PlanError, match=r"falls into more than 4 pieces: 0/GPU0; 1/GPU0; 2/GPU0; 3/GPU0; \.\.\.; name"):
        check(apart(*[switch(1)] * 9))
    with pytest.raises(PlanError, match=r"falls into 4 pieces: 0/GPU0; 1/GPU0; 2/GPU0; 3/GPU0; name"):
        check(apart(*[switch(1)] * 4))
    scattered = apart(switch(200), switch(1))
    odd = [f"0/GPU{rank}" for rank in range(0, 200, 2)]
    with pytest.raises(PlanError, match=r"2 pieces: 100 endpoints \(0/GPU0, 0/GPU2, \.\.\.\); 1/GPU0; name"):
        check(scattered, endpoints=[*odd, "1/GPU0"])


def test_what_was_cut_is_named_and_one_piece_can_be_planned():
    broken = without(line(4), ["GPU1-GPU2"])
    with pytest.raises(PlanError, match="falls into 2 pieces: GPU0-1; GPU2-3; name the ranks of one piece"):
        check(broken)
    check(broken, endpoints=["GPU2", "GPU3"])
    with pytest.raises(PlanError, match="2 pieces: GPU0,2; GPU1;"):
        check(without(switch(3), ["GPU1"]))
    one_way = without(line(3), ["GPU1->GPU2"])
    with pytest.raises(PlanError, match=r"2 pieces: GPU0-1; GPU2; .* links between them that lead both ways"):
        check(one_way)
    check(one_way, "broadcast", root=2)
    assert topocomm.plan(one_way, "broadcast", payload_bytes=4, root=2).proof.complete


def test_endpoints_without_a_rank_pass_nothing_on():
    for name in COLLECTIVES:
        with pytest.raises(PlanError, match="2 pieces: GPU0; GPU2; name"):
            check(line(3), name, ["GPU0", "GPU2"])
    check(line(3), endpoints=["GPU0", "GPU2", "GPU1"])


@pytest.mark.parametrize("machine", [switch(1), switch(8), line(9), hosts(3, 2)], ids=lambda machine: machine.name)
def test_what_hangs_together_is_let_through(machine):
    for name in COLLECTIVES:
        check(machine, name)


def test_one_way_links_serve_some_collectives():
    devices = tuple(Device(name, "gpu") for name in "abc")
    machine = Topology("one way", "test", devices, (Link("a", "b", "k", 1, 1.0, 1.0), Link("b", "c", "k", 1, 1.0, 1.0)))
    for name in ("broadcast", "scatter", "scan", "exscan"):
        check(machine, name)
    for name in ("allreduce", "allgather", "reduce_scatter", "alltoall"):
        with pytest.raises(PlanError, match=r"3 pieces: a; b; c; .* that lead both ways"):
            check(machine, name)
    circle = replace(machine, links=(*machine.links, Link("c", "a", "k", 1, 1.0, 1.0)))
    check(circle)
    with pytest.raises(PlanError, match="3 pieces: a; b; c; name"):
        check(machine)


def test_ranks_that_share_endpoints():
    check(switch(2), endpoints=["GPU1", "GPU1", "GPU0"])
    check(apart(switch(1), switch(1)), endpoints=["1/GPU0"] * 3)
