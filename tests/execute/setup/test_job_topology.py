"""A job of several invented hosts, discovered by ranks on threads."""

import threading
from dataclasses import replace

import pytest

from topocomm.execute.liveness.recorder import Recorder
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.setup import job_topology as module
from topocomm.execute.setup.job_topology import discover_job
from topocomm.execute.setup.rank_placement import Claim
from topocomm.execute.transports.threads import World
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.model import RankPlace

here = threading.local()


def box(name, system="hgx-a100-4", **others):
    one = catalog(system)
    devices = tuple(d._replace(host=name, name=f"mlx5_{d.id[3:]}" if d.kind == "nic" else d.name) for d in one.devices)
    return replace(one, name=name, devices=devices, **others)


@pytest.fixture
def job(monkeypatch):
    """Runs `discover_job` on one thread per rank; every rank has a host, its topology and a claim."""
    asked = []

    def discover(usable=None):
        asked.append((here.topology.name, usable))
        return here.topology

    monkeypatch.setattr(module, "discover", discover)
    monkeypatch.setattr(module, "own_claim", lambda: here.claim)
    monkeypatch.setattr(module, "own_addresses", lambda: here.address)

    def run(ranks):
        found = [None] * len(ranks)
        world = World(len(ranks))

        def work(rank, transport):
            here.topology, here.claim, here.address = ranks[rank]
            waiting = Waiting(transport, 30, str, Recorder())
            found[rank] = discover_job(waiting, [topology.name.encode() for topology, _, _ in ranks])

        threads = [threading.Thread(target=work, args=pair) for pair in enumerate(world.transports())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(topology == found[0] for topology in found)
        return found[0], asked

    return run


def test_hosts_merge_and_every_rank_has_its_place(job):
    a, b = box("a", facts={"port_gb_per_s": {"mlx5_0": 25.0}}), box("b")
    ranks = [(a, Claim(), ["", ""]), (b, Claim(visible=("3",)), ["", ""]), (a, Claim(), ["", ""])]
    topology, asked = job([*ranks, (b, Claim(visible=("1",)), ["", ""])])
    assert topology.hosts == ("a", "b")
    assert topology.ranks == (
        RankPlace(0, "a", "a/GPU0", "mlx5_0"),
        RankPlace(1, "b", "b/GPU3", "mlx5_3"),
        RankPlace(2, "a", "a/GPU1", "mlx5_1"),
        RankPlace(3, "b", "b/GPU1", "mlx5_1"),
    )
    joined = {link.src: link.gb_per_s for link in topology.links if link.dst == "network"}
    assert sorted(name for name, _ in asked) == ["a", "b"]  # the first rank of each
    assert "network" in topology.by_id
    assert joined  # hosts are joined


def test_one_host_keeps_its_names(job):
    topology, _ = job([(box("a"), Claim(), ["", ""])] * 2)
    assert [(place.host, place.device) for place in topology.ranks] == [("a", "GPU0"), ("a", "GPU1")]


def test_hosts_of_one_name_are_numbered_in_the_places_too(job):
    one, other = box("a"), box("a")
    ranks = [(replace(one, name="x"), Claim(), ["", ""]), (replace(other, name="y"), Claim(), ["", ""])]
    topology, _ = job(ranks)
    assert [(place.host, place.device) for place in topology.ranks] == [
        ("host0", "host0/GPU0"),
        ("host1", "host1/GPU0"),
    ]


def test_the_cpus_of_all_ranks_are_discovered(job):
    host = box("a", "cpu-1-socket")
    topology, asked = job([(host, Claim(cpus="0-1"), ["", ""]), (host, Claim(cpus="5"), ["", ""])])
    assert asked == [("a", {0, 1, 5})]
    assert [place.device for place in topology.ranks] == ["cpu0", "cpu5"]


def test_the_switches_that_slurm_names(job):
    pattern = "switch.switch.node"
    leaves = {"a": "l1", "b": "l1", "c": "l2"}
    hosts = [(box(name), Claim(), [f"top.{leaf}.{name}", pattern]) for name, leaf in leaves.items()]
    topology, _ = job(hosts)
    assert [d.id for d in topology.devices if d.host == "network"] == ["top", "l1", "l2"]
    assert [place.device for place in topology.ranks] == ["a/GPU0", "b/GPU0", "c/GPU0"]
    assert "network" not in topology.by_id


def test_a_host_without_switches_leaves_the_network_as_it_is(job):
    hosts = [(box("a"), Claim(), ["top.a", "switch.node"]), (box("b"), Claim(), ["", ""])]
    topology, _ = job(hosts)
    assert "network" in topology.by_id
    assert "top" not in topology.by_id


def test_warnings_of_the_places_are_on_every_rank(job):
    topology, _ = job([(box("a"), Claim(visible=("GPU-xy",)), ["", ""]), (box("b"), Claim(), ["", ""])])
    assert "visible GPUs 'GPU-xy' are not among those of a: the list is passed over" in topology.warnings
