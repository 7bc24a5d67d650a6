"""Borders by hand: who crosses them, what a price may take off a port, and onto which symmetries map them."""

import numpy as np

from topocomm.planning.forests.linear_program.shared_borders import SharedBorders


def two_hosts(slow=(16.0, 16.0, 16.0, 16.0)):
    """Ranks 0, 1 and 2, 3; the first of each is fast; out and into each host."""
    group = np.array([[1, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2, dtype=bool)
    fast = np.array([[1, 0, 0, 0]] * 2 + [[0, 0, 1, 0]] * 2, dtype=bool)
    return SharedBorders(group, fast, np.array([True, False] * 2), np.full(4, 25.0), np.array(slow))


def test_who_crosses():
    out, into = two_hosts().crossing[:2]
    assert out.tolist() == [[False, False, True, True]] * 2 + [[False] * 4] * 2
    assert into.tolist() == out.T.tolist()
    assert np.argwhere(two_hosts().of_fast[0]).tolist() == [[0, 2], [0, 3]]
    assert np.argwhere(two_hosts().of_fast[1]).tolist() == [[2, 0], [3, 0]]


def test_a_price_takes_no_more_off_a_port_than_it_weighs():
    """A message of a fast rank adds 9 GB/s: at a weight of 1.8 the price is 0.2 at most."""
    weights = np.array([[1.8, 0.0, 9.0, 0.0], [0.0, 5.0, 5.0, 5.0]])
    assert two_hosts().held(np.full(4, 0.5), weights).tolist() == [0.2, 0.0, 0.5, 0.5]
    twice = two_hosts().only([0, 0, 1, 2])
    assert twice.held(np.full(4, 0.5), weights).tolist() == [0.1, 0.1, 0.0, 0.5]


def test_symmetries():
    turned = np.array([[0, 1, 2, 3], [2, 3, 0, 1]])
    assert two_hosts().orbits(turned).tolist() == [0, 1, 0, 1]
    assert two_hosts().orbits(turned[:1]).tolist() == [0, 1, 2, 3]
    assert two_hosts(slow=(16.0, 16.0, 8.0, 16.0)).orbits(turned) is None
