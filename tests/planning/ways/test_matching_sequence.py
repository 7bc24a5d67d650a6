"""Parts in the matchings that have room for them, by hand: what is relayed comes before it is sent on."""

import numpy as np
import pytest

from tests.planning.ways.test_folded_hosts import folded
from topocomm import catalog
from topocomm.planning.ways.matching_program import Matching, Mix, Relay
from topocomm.planning.ways.matching_sequence import TURNS, in_sequence

HOSTS = folded(catalog("a100-pcie-4", hosts=1), (0, 4))
FIRST, SECOND, OF = (HOSTS.number(*pair, away=False) for pair in ((0, 1), (1, 2), (0, 2)))


def mix(relays, *carried):
    matchings = (Matching(0.1, np.array(list(own)), np.array(list(own.values()))) for own in carried)
    return Mix(tuple(matchings), tuple(relays), 1.0, np.zeros(len(HOSTS.ends)))


def test_each_block_in_the_matchings_that_have_room():
    parts = in_sequence(HOSTS, mix((), {FIRST: 0.25}, {FIRST: 0.75, SECOND: 1.0}, {OF: 3.0}))
    assert [part for part in parts if part.of == FIRST] == [
        (FIRST, 0, 0.25, ((0, FIRST),), -1),
        (FIRST, 0, 0.75, ((1, FIRST),), -1),
    ]
    assert [part for part in parts if part.of == OF] == [(OF, 0, 1.0, ((2, OF),), -1)]
    assert {part.hops[0][0] for part in parts if part.of not in (FIRST, SECOND, OF)} == {3}  # after all


def test_what_is_relayed_is_sent_on_in_a_later_matching():
    relay = Relay(OF, FIRST, SECOND, 0.5)
    parts = in_sequence(HOSTS, mix([relay], {FIRST: 1.5}, {SECOND: 1.5}, {OF: 0.5}))
    onward = [part for part in parts if len(part.hops) == 2]
    assert sum(part.blocks for part in onward) == pytest.approx(0.5)
    for part in onward:
        (before, first), (after, second) = part.hops
        assert (part.of, first, second) == (OF, FIRST, SECOND) and before < after < 3 * TURNS
    for message in (FIRST, SECOND, OF):
        assert sum(part.blocks for part in parts if part.of == message) == pytest.approx(1.0)
