"""Mixes of matchings: rates beside those of flows, all blocks carried, by hand where a NIC waits for one member."""

import random

import numpy as np
import pytest

from tests.planning.ways.test_folded_hosts import folded
from topocomm import catalog
from topocomm.planning.cost.link_sharing import max_min_rates
from topocomm.planning.ways.matching_program import NONE, MatchingRates, best_mix

SYSTEMS = {
    "two past one bus": (catalog("a100-pcie-2", hosts=2), 2),
    "all ranks of two": (catalog("a100-pcie-2", hosts=2), 4),
    "four past one bus": (catalog("a100-pcie-4", hosts=3), 4),
    "one NIC of a mesh": (catalog("p3dn", hosts=2), 8),
}


def hosts_of(name):
    machine, size = SYSTEMS[name]
    return folded(machine, tuple(range(0, len(machine.endpoints) + 1, size)))


def wanted(hosts):
    return np.where(hosts.away, hosts.count - 1.0, 1.0)


@pytest.mark.parametrize("name", SYSTEMS)
def test_rates_are_those_of_flows_that_share_links(name):
    hosts, chance = hosts_of(name), random.Random(1)
    search = MatchingRates(hosts)
    for _ in range(40):
        taken = chance.sample(range(hosts.members), hosts.members)
        row = [hosts.number(src, dst, away=hosts.count > 1 and chance.random() < 0.6) for src, dst in enumerate(taken)]
        row = np.array([number if chance.random() < 0.8 else NONE for number in row])
        own = row[row != NONE]
        used = hosts.passes[own] > 0
        flows = max_min_rates(used.sum(axis=1), np.nonzero(used)[1], hosts.gb_per_s) if len(own) else []
        assert search(row[None])[0][row != NONE] == pytest.approx(flows)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_mix_carries_all_blocks(name):
    hosts = hosts_of(name)
    mix = best_mix(hosts, wanted(hosts))
    assert sum(matching.time for matching in mix.matchings) == pytest.approx(1.0, abs=1e-5)
    carried, search = np.zeros(len(hosts.ends)), MatchingRates(hosts)
    for matching in mix.matchings:
        assert all(len(set(side.tolist())) == len(side) for side in hosts.ends[matching.messages].T)
        row = np.full(hosts.members, NONE)
        row[hosts.ends[matching.messages, 0]] = matching.messages
        rates = search(row[None])[0][row != NONE]
        assert matching.blocks == pytest.approx(rates * matching.time * mix.time)
        carried[matching.messages] += matching.blocks
    needed = wanted(hosts)
    for relay in mix.relays:
        ends = [hosts.ends[each].tolist() for each in (relay.of, relay.first, relay.second)]
        assert ends[1][0] == ends[0][0] and ends[1][1] == ends[2][0] and ends[2][1] == ends[0][1]
        assert hosts.away[relay.of] == hosts.away[relay.first] + hosts.away[relay.second]
        needed[relay.of] -= relay.blocks
        needed[[relay.first, relay.second]] += relay.blocks
    assert (carried >= needed - 1e-3).all()
