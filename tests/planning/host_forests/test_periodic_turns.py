"""No port or link is promised twice, and the period is hardly longer than what the busiest has to do."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from topocomm.native import _native
from topocomm.planning.host_forests.periodic_turns import periodic_turns


@examples(60)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_what_a_message_needs_is_free(messages, rows, seed):
    rng = np.random.default_rng(seed)
    loads = rng.integers(0, 4, (messages, rows)).astype(float)
    loads[:, 0] = np.maximum(loads[:, 0], 1.0)
    made = periodic_turns(loads, 4)
    assert (made.starts >= 0).all() and (made.starts[:, None] + loads).max() <= made.period + 1e-9
    for row in range(rows):
        own = np.flatnonzero(loads[:, row])
        order = own[np.argsort(made.starts[own], kind="stable")]
        ends = made.starts[order] + loads[order, row]
        assert (made.starts[order][1:] >= ends[:-1] - 1e-9).all()
    assert loads.sum(axis=0).max() <= made.period + 1e-9


@pytest.mark.parametrize("ranks", [4, 5, 8])
def test_all_pairs_take_what_a_port_has_to_do(ranks):
    """Each sends to each other: ranks - 1 messages a port, an open shop without idle ports."""
    pairs = [(src, ranks + dst) for src in range(ranks) for dst in range(ranks) if src != dst]
    loads = [np.bincount(pair, minlength=2 * ranks) for pair in pairs]
    made = periodic_turns(np.array(loads, float), 8)
    assert ranks - 1 <= made.period <= 1.35 * (ranks - 1)


def test_more_tries_are_no_worse():
    loads = np.random.default_rng(3).random((40, 8)) * (np.random.default_rng(4).random((40, 8)) < 0.3)
    loads[:, 0] += 0.01
    periods = [periodic_turns(loads, tries).period for tries in (1, 2, 8)]
    assert periods == sorted(periods, reverse=True)


@pytest.mark.parametrize("seed", range(30))
def test_both_ways_give_the_same_starts(seed):
    """Also where many start at one time and have as much merit."""
    rng = np.random.default_rng(seed)
    loads = rng.random((rng.integers(1, 60), rng.integers(1, 12)))
    loads *= rng.random(loads.shape) < 0.4
    loads = np.round(4 * loads) / 4 if seed % 3 == 0 else loads
    loads[:, 0] += 0.25
    made = periodic_turns(loads, 8)
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        plain = periodic_turns(loads, 8)
    assert made.period == plain.period and np.array_equal(made.starts, plain.starts)


def test_wrong_arrays_are_refused():
    """Two messages of one row, and a row that is always free."""
    rows, times, weights = np.array([[0, 1], [0, 1]]), np.array([[1.0, 0.0], [2.0, 0.0]]), np.ones(2)

    def listed(place=0, entry=0, value=None, *, shorter=0):
        own = [rows, times, times / 3, weights, np.zeros(2), np.array([1.0, 0.0]), np.zeros(2)]
        own = [array.copy() for array in own]
        if value is not None:
            own[place].flat[entry] = value
        own[place] = own[place].ravel()[: own[place].size - shorter]
        _native.list_messages(*own, 1e-9, False)
        return own[-1].tolist()

    assert listed() == [0.0, 1.0]
    for value in (-1, 2):
        with pytest.raises(ValueError, match="its arrays do not fit each other"):
            listed(0, 1, value)
    for place in range(7):
        with pytest.raises(ValueError, match="its arrays do not fit each other"):
            listed(place, shorter=1)
    with pytest.raises(TypeError, match="7 arrays, a time and a flag"):
        _native.list_messages(rows, times)
    with pytest.raises(TypeError):
        _native.list_messages(*[rows] * 7, "soon", False)
