from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from topocomm.topology.draw.svg.endpoint_order import BELOW, STRAIGHT, arrange


def mesh(names):
    return dict.fromkeys(combinations(names, 2), 1.0)


def crossings_of(row):
    """Counted anew from the order and the sides."""
    place = {name: i for i, name in enumerate(row.order)}
    spans = [(side, *sorted((place[a], place[b]))) for (a, b), side in row.sides.items() if side != STRAIGHT]
    return sum(s == t and (a < c < b < d or c < a < d < b) for (s, a, b), (t, c, d) in combinations(spans, 2))


@pytest.mark.parametrize(("count", "crossings"), [(2, 0), (3, 0), (4, 0), (5, 1), (6, 3), (7, 9), (8, 18)])
def test_full_meshes_have_as_few_crossings_as_two_sides_allow(count, crossings):
    row = arrange([f"g{i}" for i in range(count)], [], mesh([f"g{i}" for i in range(count)]))
    assert len(row.crossings) == crossings_of(row) == crossings


def test_what_needs_no_turning_stays_as_it_is():
    row = arrange(["a", "b", "c", "d"], [], {("a", "b"): 1.0, ("a", "d"): 1.0, ("b", "d"): 1.0})
    assert row.order == ("a", "b", "c", "d")
    assert row.sides["a", "b"] == STRAIGHT
    assert row.crossings == ()


def test_the_hybrid_cube_mesh_of_dgx_1_has_its_crossing_number_two_and_its_groups_stay_together():
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)]
    chords = {(f"g{a}", f"g{b}"): 50.0 for a, b in double} | {(f"g{a}", f"g{b}"): 25.0 for a, b in single}
    names = [f"g{i}" for i in range(8)]
    groups = [names[:4], names[4:], *(names[i : i + 2] for i in range(0, 8, 2))]
    row = arrange(names, groups, chords)
    assert row.order == ("g0", "g1", "g2", "g3", "g7", "g6", "g5", "g4")
    assert crossings_of(row) == 2
    assert all(chords[one] == chords[other] == 25.0 for one, other in row.crossings)


@given(st.data())
@examples(60)
def test_any_graph_is_a_permutation_that_keeps_groups_and_counts_its_crossings(data):
    names = [f"g{i}" for i in range(data.draw(st.integers(2, 9)))]
    chords = {pair: 1.0 for pair in combinations(names, 2) if data.draw(st.booleans())}
    cut = data.draw(st.integers(1, len(names)))
    row = arrange(names, [g for g in (names[:cut], names[cut:]) if g], chords)
    assert sorted(row.order) == names
    assert {frozenset(row.order[:cut]), frozenset(row.order[-cut:])} & {frozenset(names[:cut])}
    assert set(row.sides) == set(chords)
    assert len(row.crossings) == crossings_of(row)
    assert row == arrange(names, [g for g in (names[:cut], names[cut:]) if g], chords)


def test_of_as_many_crossings_those_of_light_links_are_taken():
    chords = mesh("abcde") | {("a", "c"): 9.0, ("b", "d"): 9.0, ("c", "e"): 9.0, ("a", "d"): 9.0}
    ((one, other),) = arrange("abcde", [set("abcde")], chords).crossings
    assert 1.0 in (chords[one], chords[other])


def test_sides_are_one_of_three():
    row = arrange("abcdef", [], mesh("abcdef"))
    assert set(row.sides.values()) == {-BELOW, STRAIGHT, BELOW}
