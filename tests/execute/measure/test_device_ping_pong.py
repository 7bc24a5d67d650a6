"""Ping-pong between ranks on devices: by groups of messages or staged, and what becomes of the figures."""

import json

import pytest
import torch

import topocomm
from tests.execute.device_jobs import fake_nccl, run_in
from tests.machines import hosts, switch
from topocomm import SUM, DeadlineError, TopocommError
from topocomm.errors import TopologyError
from topocomm.execute.device import device_library as device
from topocomm.execute.measure import device_ping_pong, ping_pong
from topocomm.execute.measure.ping_pong import measure
from topocomm.execute.transports.device import nccl_library
from topocomm.execute.transports.device.nccl import NcclDeviceTransport
from topocomm.topology.draw import measured
from topocomm.topology.readers.plain.topology_json import from_document, to_document

LAUNCH_US, LATENCY_US, GB_PER_S = 5.0, 2.0, 4.0


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(ping_pong, "RATE_BYTES", 1 << 16)
    monkeypatch.setattr(ping_pong, "BUDGET_S", 0.0)


@pytest.fixture
def modelled(quick, monkeypatch):
    """Groups are run once, and take what a machine of the figures above would take for them."""
    group, timed = NcclDeviceTransport.group, device_ping_pong.DevicePair._timed

    def sized(wire, arena, sends, receives):
        assert len(sends) + len(receives) == 1, "there and back never share a group"
        return group(wire, arena, sends, receives)

    def time_us(pair, groups, count):
        before = len(pair._two.session.device_path.transport._nccl.log)
        assert timed(pair, groups, 1) > 0
        mine = (pair._two.rank, 1 - pair._two.rank)
        log = pair._two.session.device_path.transport._nccl.log[before:]
        kinds = [entry[0] for entry in log if entry[:2] in (("send", pair._two.rank), ("recv", pair._two.rank))]
        assert sorted(kinds) == (["recv", "send"] if len(groups) == 2 else kinds[:1]), "there, then back"
        moved = [
            entry[3]
            for entry in pair._two.session.device_path.transport._nccl.log[before:]
            if entry[0] in ("send", "recv") and entry[1] in mine
        ]
        del count
        if len(groups) == 1:
            return LAUNCH_US
        return 2 * (LAUNCH_US + LATENCY_US + max(moved) / GB_PER_S / 1e3)

    monkeypatch.setattr(NcclDeviceTransport, "group", sized)
    monkeypatch.setattr(device_ping_pong.DevicePair, "_timed", time_us)


@pytest.mark.usefixtures("modelled")
def test_latency_rate_and_launch_are_told_apart():
    machine = switch(2)
    with fake_nccl(2) as world:
        found, again = run_in(world, measure, topology=machine)
    assert found == again
    assert found.launch_us == LAUNCH_US
    (pair,) = found.pairs
    assert pair.latency_us == pytest.approx(LATENCY_US, abs=0.01)
    assert pair.gb_per_s == pytest.approx(GB_PER_S, rel=0.01)
    (ranks,) = found.facts["ping_pong"]["rank_pairs"]
    assert ranks["launch_us"] == [LAUNCH_US] * 3
    assert ranks["latency_us"][1] == pytest.approx(LAUNCH_US + LATENCY_US, abs=0.01)
    assert "by nccl between devices" in measured.render(found)
    assert from_document(json.loads(json.dumps(to_document(found)))) == found
    plan = topocomm.plan(found, payload_bytes=8)
    assert plan.launch_us == LAUNCH_US
    assert plan.figures.predicted_us == pytest.approx(LAUNCH_US + LATENCY_US, abs=0.01)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("staged", [False, True])
def test_devices_measure_in_earnest_and_plans_take_the_figures_over(staged, monkeypatch):
    machine = switch(4) if staged else hosts(2, 2)
    with fake_nccl(4) as world:
        if staged:

            def missing():
                raise TopocommError("cupy is not installed")

            monkeypatch.setattr(nccl_library, "load_nccl", missing)
        found = run_in(world, measure, topology=machine)[0]
        kinds = {entry[0] for entry in world.log}
    told = found.facts["ping_pong"]
    assert len(told["rank_pairs"]) == 6
    assert all(
        link.latency_us >= 0 and link.gb_per_s > 0 for link in found.links if link.latency_us_source == "measured"
    )
    assert ({"send", "recv"} <= kinds) is not staged
    assert told["transport"] == ("staged between devices" if staged else "nccl between devices")
    assert (device_warning := [line for line in found.warnings if "through host memory" in line]) or not staged
    assert len(device_warning) == staged
    if staged:
        assert found.launch_us is None
        return
    assert found.launch_us > 0
    with fake_nccl(4) as world:
        plans = run_in(
            world, lambda comm: comm.prepare("allreduce", like=torch.ones(8), operator=SUM).plan, topology=found
        )
    assert plans[0].launch_us == found.launch_us


@pytest.mark.usefixtures("quick")
def test_a_rank_without_its_gpu_is_named(monkeypatch):
    with fake_nccl(3) as world, monkeypatch.context() as patch:
        here = device.device_here
        patch.setattr(device, "device_here", lambda index: None if world.rank_here() == 1 else here(index))
        with pytest.raises(TopologyError, match=r"torch sees none on rank 1: install torch"):
            run_in(world, measure, topology=switch(3))


@pytest.mark.usefixtures("quick")
@pytest.mark.alone
def test_a_partner_that_stays_away_is_named_at_the_limit(monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "1")

    def body(comm):
        pair = device_ping_pong.DevicePair(comm, device.device_here(None), "nccl", 64)
        if comm.rank == 1:
            return None
        with pytest.raises(DeadlineError, match=r"a ping-pong between devices: still waiting for rank 1.* after 1 s"):
            pair.trips(8)(2)
        return True

    with fake_nccl(2, patience_s=0.05, stuck="pend") as world, pytest.raises(TopocommError):  # close
        run_in(world, body, topology=switch(2))
