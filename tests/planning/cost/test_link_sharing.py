"""Max-min fair shares: textbook cases, the definition on random networks, and changes beside a fresh start."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from topocomm.planning.cost.link_sharing import LinkSharing, has_room, max_min_rates, span_places


def rates(routes, capacities, most=None):
    hops = np.array([len(route) for route in routes])
    links = np.array([link for route in routes for link in route])
    limits = None if most is None else np.array(most, dtype=float)
    return max_min_rates(hops, links, np.array(capacities, dtype=float), limits).tolist()


def slowly(routes, capacities, most):
    """Raise all rates together until a link is full or a limit reached; held flows stay (Bertsekas, Gallager 6.5.2)."""
    rate, open_ = [0.0] * len(routes), set(range(len(routes)))
    while open_:
        steps = [most[flow] - rate[flow] for flow in open_]
        for link, capacity in enumerate(capacities):
            own = [flow for flow in open_ if link in routes[flow]]
            if own:
                used = sum(rate[flow] for flow in range(len(routes)) if link in routes[flow])
                steps.append((capacity - used) / len(own))
        step = min(steps)
        for flow in open_:
            rate[flow] += step
        full = {
            link
            for link, capacity in enumerate(capacities)
            if sum(rate[flow] for flow in range(len(routes)) if link in routes[flow]) >= capacity * (1 - 1e-12)
        }
        open_ = {flow for flow in open_ if not full & set(routes[flow]) and rate[flow] < most[flow] * (1 - 1e-12)}
    return rate


def test_two_flows_halve_a_link():
    assert rates([[0], [0]], [10.0]) == [5.0, 5.0]


def test_a_long_flow_and_a_short_one_on_each_of_three_links():
    """The parking lot: the long flow gets half of the narrowest link, the others what is left of theirs."""
    assert rates([[0, 1, 2], [0], [1], [2]], [10.0, 6.0, 8.0]) == [3.0, 7.0, 3.0, 5.0]


def test_the_second_bottleneck_divides_what_the_first_leaves():
    """Bertsekas and Gallager, figure 6.12's pattern: three flows at 1/3 on the first link, the other gets 2/3."""
    assert rates([[0, 1], [0], [0], [1]], [1.0, 1.0]) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])


def test_a_limit_of_a_flow_leaves_its_share_to_the_others():
    assert rates([[0], [0], [0]], [12.0], [2.0, np.inf, np.inf]) == [2.0, 5.0, 5.0]


networks = st.integers(1, 6).flatmap(
    lambda links: st.tuples(
        st.lists(st.sampled_from([1.0, 2.0, 3.0, 7.5, 50.0, 450.0]), min_size=links, max_size=links),
        st.lists(
            st.tuples(
                st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True),
                st.sampled_from([np.inf, 0.5, 2.0, 20.0]),
            ),
            min_size=1,
            max_size=12,
        ),
    )
)


@examples(200)
@given(networks)
def test_rates_are_those_of_the_definition(network):
    capacities, flows = network
    routes, most = [route for route, _ in flows], [limit for _, limit in flows]
    assert rates(routes, capacities, most) == pytest.approx(slowly(routes, capacities, most))


@examples(200)
@given(networks, st.data())
def test_changes_give_the_rates_of_a_fresh_start(network, data):
    """Flows start and end in any order: the rates of those under way are those of all of them at once."""
    capacities, flows = network
    starts = np.cumsum([0, *(len(route) for route, _ in flows)])
    links = np.array([link for route, _ in flows for link in route])
    most = np.array([limit for _, limit in flows])
    sharing = LinkSharing(starts, links, np.array(capacities), most_bytes_per_us=most)
    under_way: list[int] = []
    waiting = list(range(len(flows)))
    while waiting or under_way:
        ended = data.draw(st.lists(st.sampled_from(under_way), unique=True)) if under_way else []
        started = data.draw(st.lists(st.sampled_from(waiting), unique=True)) if waiting else []
        if not ended and not started:
            ended, started = under_way, waiting[:1]
        before = sharing.rate_bytes_per_us.copy()
        changed = sharing.change(np.array(started, dtype=np.int64), np.array(ended, dtype=np.int64))
        waiting = [flow for flow in waiting if flow not in started]
        under_way = [flow for flow in under_way if flow not in ended] + started
        expected = rates([flows[flow][0] for flow in under_way], capacities, most[under_way]) if under_way else []
        assert sharing.rate_bytes_per_us[under_way].tolist() == pytest.approx(expected)
        same = set(under_way) - set(changed.tolist())
        assert all(sharing.rate_bytes_per_us[flow] == before[flow] for flow in same)
        assert set(started) <= set(changed.tolist())


def test_only_the_flows_that_a_change_reaches_are_returned():
    """Two pairs on two links: when a flow of one ends, the other pair is left alone."""
    sharing = LinkSharing(np.arange(5), np.array([0, 0, 1, 1]), np.array([10.0, 10.0]))
    assert sorted(sharing.change(np.arange(4), np.arange(0)).tolist()) == [0, 1, 2, 3]
    assert sharing.change(np.arange(0), np.array([0])).tolist() == [1]
    assert sharing.rate_bytes_per_us.tolist()[1:] == [10.0, 5.0, 5.0]
    assert sharing.users.tolist() == [1, 2]


def test_places_of_ranges():
    assert span_places(np.array([5, 9, 2]), np.array([2, 0, 3])).tolist() == [5, 6, 2, 3, 4]
    assert span_places(np.array([5, 9]), np.array([1, 1])).tolist() == [5, 9]
    assert span_places(np.arange(0), np.arange(0)).tolist() == []


@examples(200)
@given(networks, st.data())
def test_flows_have_room_where_no_instant_shares_a_link(network, data):
    """Each flow by itself takes what its narrowest link gives, or its limit: with room all do all the time."""
    capacities, flows = network
    alone = [min([limit, *(capacities[link] for link in route)]) for route, limit in flows]
    start_us = [data.draw(st.integers(0, 6)) for _ in flows]
    end_us = [start + data.draw(st.integers(0, 3)) for start in start_us]
    expected = True
    for instant in range(10):
        under_way = [flow for flow in range(len(flows)) if start_us[flow] <= instant < end_us[flow]]
        if under_way:
            most = [alone[flow] for flow in under_way]
            shared = rates([flows[flow][0] for flow in under_way], capacities, most)
            expected &= shared == pytest.approx(most)
    hops, links = np.array([len(route) for route, _ in flows]), np.array([link for route, _ in flows for link in route])
    times = np.array(start_us, dtype=float), np.array(end_us, dtype=float)
    assert has_room(hops, links, *times, np.array(alone), np.array(capacities)) == expected
