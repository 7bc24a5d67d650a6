"""Depth against size of a prefix: by hand on a switch, by every split of messages, and no schedule is below it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import hosts, switch
from tests.planning.bounds.time.test_time_bound import MIB, bound
from topocomm.planning.algorithms.prefix import chain_scan, doubling_exscan, doubling_scan, one_two_three_exscan
from topocomm.planning.bounds.time.prefix_bound import Exchange, Prefix
from topocomm.planning.planner import every_plan, plan


@pytest.mark.parametrize(("ranks", "payload_bytes"), [(32, MIB), (8, 64 * MIB), (72, 16 * MIB)])
@pytest.mark.parametrize("ports", [1, 2])
def test_ranks_under_a_switch(ranks, payload_bytes, ports):
    """T = 0.6 + (2 (P - 1) - d) M / (P 450 GB/s), with d messages of 0.6 us in T - M / 450 GB/s.

    Two ports share the one link of an endpoint, so that they have no more bytes a second.
    """
    found = bound(switch(ranks), "scan", payload_bytes, ports=ports)
    value_us = payload_bytes / 450e3
    each_us = value_us / ranks
    expected_us = (0.6 + each_us * (2 * (ranks - 1) + value_us / 0.6)) / (1 + each_us / 0.6)
    assert (expected_us - value_us) / 0.6 < ranks - 1
    assert found.witness["kind"] == "prefix"
    assert found.value == pytest.approx(expected_us)


def test_others_than_prefixes_have_no_such_order():
    assert bound(switch(32), "allreduce", MIB).witness["kind"] != "prefix"


def test_values_between_hosts_have_a_row_of_their_own():
    found = bound(hosts(16, 2), "scan", MIB)
    assert found.witness["kind"] == "prefix" and len(found.witness["groups"]) == 16
    assert (found.witness["apart_us"], found.witness["across_us"]) == (0.6, 5.0)


ARGUMENTS = st.builds(
    lambda members, count, inside_us, more_us, rates: Prefix(
        Exchange(members * count, inside_us, (rates[0], rates[0])),
        Exchange(count, inside_us + more_us, (rates[1], rates[1])),
        1e-3 / rates[0] / members / count,
        rates[3] * 1e-3 / rates[0] / members / count,
        1e-3 / rates[1] / count,
        "",
        {},
    ),
    st.integers(1, 9),
    st.integers(2, 40),
    st.floats(0.1, 2.0),
    st.floats(0.0, 9.0),
    st.tuples(*[st.floats(1.0, 500.0)] * 3, st.floats(0.0, 9.0)),
)


@given(argument=ARGUMENTS, payload_bytes=st.integers(1, 1 << 28))
@examples(100)
def test_the_least_time_over_every_split(argument, payload_bytes):
    """Just above the bound some messages between groups fit, and none just below: 2,000 numbers of them are tried."""
    inside, groups = argument.single, argument.groups
    more_us = groups.apart_us - inside.apart_us

    def fits(time_us):
        across = np.linspace(1.0, max(1.0, (time_us - groups.passing_us(payload_bytes)) / groups.apart_us), 2000)
        in_all = (time_us - inside.passing_us(payload_bytes) - (across - 1) * more_us) / inside.apart_us
        crossing = np.maximum(groups.count - 1, 2 * (groups.count - 1) - across)
        values = np.maximum(inside.count - 1, 2 * (inside.count - 1) - in_all)
        ports_us = inside.apart_us + payload_bytes * (values * argument.port_us + crossing * argument.more_us)
        borders_us = groups.apart_us + payload_bytes * crossing * argument.border_us
        possible = (in_all >= across) & (across * groups.apart_us <= time_us - groups.passing_us(payload_bytes) + 1e-9)
        return all((possible & (needed_us <= time_us)).any() for needed_us in (ports_us, borders_us))

    least_us = argument.us(payload_bytes)
    assert not fits(least_us * (1 - 1e-6))
    assert fits(least_us * 1.01 + 1e-6)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 17])
def test_few_messages_in_a_row_are_many_in_all(ranks):
    """A chain has the fewest messages, with P - 1 in a row; others have no fewer than 2 (P - 1) less their rounds."""
    for own in (True, False):
        assert len(chain_scan(ranks, 8, own=own).transfers) == 2 * (ranks - 1) - (ranks - 1)
    for made in (doubling_scan(ranks, 8), doubling_exscan(ranks, 8), one_two_three_exscan(ranks, 8)):
        assert len(made.transfers) >= 2 * (ranks - 1) - made.rounds


@pytest.mark.parametrize("machine", [switch(12), hosts(4, 3), hosts(6, 2)], ids=["switch", "4 hosts", "6 hosts"])
@pytest.mark.parametrize("payload_bytes", [64 << 10, MIB, 16 * MIB])
@pytest.mark.parametrize("ports", [1, 2])
def test_no_plan_is_below_it(machine, payload_bytes, ports):
    request = plan(machine, "scan", payload_bytes=payload_bytes, ports=ports).request
    for each in every_plan(machine, request):
        assert each.certificate.gap >= 1 - 1e-9, each.algorithm
