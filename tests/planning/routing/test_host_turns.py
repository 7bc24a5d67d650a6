"""Turns of the members of a host: every message has one, and no port or shared link serves more than it can."""

import numpy as np
import pytest

from tests.plans import request_on
from topocomm import SUM, catalog
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.routing.host_turns import host_turns
from topocomm.planning.routing.paths import PathFinder

COLOURS, SHARE = 2, 0.5


def turns_on(system, inside=None):
    machine = catalog(system, hosts=3)
    request, paths = request_on(machine, "reduce", SUM, SUM.default_layout(4096)), PathFinder(machine)
    groups = RankPatterns(request, paths).hierarchy.groups
    members = groups.members(0)
    inside = 1.0 - np.eye(members) if inside is None else inside
    return host_turns(groups, request.endpoints, paths, inside, COLOURS, SHARE), request, paths, members


@pytest.mark.parametrize("system", ["dgx-2", "v100-4", "p4d", "rtx3090-pair"])
def test_no_port_has_two_messages_at_once_and_no_link_more_than_its_rate(system):
    made, request, paths, members = turns_on(system)
    pairs = [(a, b, made.inside[a, b], made.held[a, b]) for a in range(members) for b in range(members) if a != b]
    for rail in range(members):
        for first in made.across[rail]:
            pairs += [(rail, members + rail, first, made.held_across), (members + rail, rail, first, made.held_across)]
    src, dst, first, held = (np.array(column) for column in zip(*pairs, strict=True))
    routes = paths.routes(request.endpoints, src, dst)
    assert (held >= 1).all() and (first >= 0).all() and (first < made.period).all()
    for turn in range(made.period):
        busy = (turn - first) % made.period < held
        for side in (src, dst):
            assert np.bincount(side[busy]).max(initial=0) <= 1
        carried = np.zeros(len(paths.link_gb_per_s))
        on_link = np.repeat(busy, routes.hops)
        np.add.at(carried, routes.links[on_link], np.repeat(routes.gb_per_s, routes.hops)[on_link])
        assert (carried <= paths.link_gb_per_s * 1.001).all()


def test_pairs_that_send_nothing_have_no_turn_and_others_as_many_as_their_parts():
    ring = np.roll(np.eye(4), 1, axis=1)
    made, *_ = turns_on("v100-4", ring + 3 * ring.T)
    assert (made.held[ring > 0] * 3 == made.held[ring.T > 0]).all() and made.held[ring > 0].min() > 0
    assert not made.held[(ring + ring.T) == 0].any()


def test_rails_that_are_not_used_have_no_turns():
    machine = catalog("p3dn", hosts=3)
    request, paths = request_on(machine, "reduce", SUM, SUM.default_layout(4096)), PathFinder(machine)
    groups = RankPatterns(request, paths).hierarchy.groups
    inside = np.roll(np.eye(8), 1, axis=1)
    made = host_turns(groups, request.endpoints, paths, inside, COLOURS, SHARE, (0, 3))
    first = made.across[[0, 3]].ravel()
    taken = {(turn + more) % made.period for turn in first.tolist() for more in range(made.held_across)}
    assert len(taken) == 4 * made.held_across  # one NIC for all
    assert not made.across[[1, 2, 4, 5, 6, 7]].any()


def test_members_with_links_of_their_own_need_no_turns():
    assert turns_on("dgx-h100")[0] is None
