"""Scans along all ranks and over groups of them: what is offered where, and how near the bounds plans come."""

from dataclasses import replace

import pytest

from tests.machines import hosts, joined, switch
from tests.planning.hierarchical.test_long_values import MIB, offered
from tests.planning.scan_trees.test_tree_scan import right
from tests.plans import request_on
from topocomm import SUM, catalog, check_certificate, plan
from topocomm.planning.hierarchical.long_values import TREE_SLICES
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.scan_trees.group_scans import group_scans


@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_scans_go_along_a_chain_in_slices(name):
    """Every rank sends a value, also of one host: the chain is as near the bound as its slices are many."""
    assert offered(switch(8), name, 64 * 1024, "chain-") == ["4", "8"]
    made = plan(switch(8), name, payload_bytes=256 * MIB)
    assert made.algorithm.startswith("chain-") and made.certificate.gap < 1.05
    made = plan(catalog("cpu-2-socket", hosts=2), name, payload_bytes=64 * MIB)
    assert made.algorithm.startswith(("chain-", "scan-trees-")) and made.certificate.gap < 1.2


@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_scans_over_many_rails_go_from_host_to_host(name):
    """By parts to all hosts and back it was 2.04 times the bound."""
    assert offered(hosts(2, 4), name, 64 * MIB, "rails-chain") == []
    assert offered(hosts(3, 4), name, 64 * MIB, "rails-chain") == [str(slices) for slices in TREE_SLICES]
    machine = catalog("p4d", hosts=8)
    made = plan(machine, name, payload_bytes=64 * MIB)
    assert made.algorithm.startswith("rails-chain") and made.certificate.gap < 1.65
    check_certificate(machine, made)


@pytest.mark.parametrize(
    ("count", "payload_bytes", "most"), [(2, MIB // 16, 2.2), (16, MIB // 16, 2.5), (2, MIB, 2.3), (16, MIB, 1.9)]
)
def test_sockets_of_large_hosts_tell_each_other(count, payload_bytes, most):
    """As if all cores of a host were alike, what passed from socket to socket made it 11.4, 12.4, 7.7 and 13.9."""
    machine = catalog("cpu-2-socket-64", hosts=count)
    made = plan(machine, "scan", payload_bytes=payload_bytes)
    assert made.algorithm.startswith("rails-") and made.certificate.gap <= most
    check_certificate(machine, made)


def test_large_hosts_have_slices_in_fewer_trees():
    machine = catalog("cpu-2-socket-64", hosts=3)
    assert offered(machine, "scan", MIB, "rails-parts") == ["1", "2", "4"]
    for other, size in ((machine, MIB // 2), (catalog("cpu-2-socket", hosts=3), MIB)):
        assert offered(other, "scan", size, "rails-parts") == []


@pytest.mark.parametrize("name", ["scan", "exscan"])
@pytest.mark.parametrize("machine", [joined((3, 2, 4)), hosts(5, 3), catalog("rtx4090-pcie-8", hosts=2)])
def test_all_are_right_for_groups_of_any_size(name, machine):
    wanted = request_on(machine, name, SUM, SUM.default_layout(64 << 10))
    families = set()
    for each, build in group_scans(wanted, RankPatterns(wanted, PathFinder(machine))):
        schedule = build()
        families.add(each.rpartition("-")[0])
        right(replace(schedule, repeat=None), 1, name)
    assert families >= {"chain", "rails-scan", "direct"}
