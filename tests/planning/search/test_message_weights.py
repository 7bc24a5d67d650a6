"""Weights of messages: noise without chance, shifts that are matchings, hashes of sets."""

import numpy as np
import pytest

from topocomm.planning.search.message_weights import hashed, noise_tables, shift_tables, weights_of


def test_noise_is_spread_over_the_unit_interval():
    noise = noise_tables(9)
    assert noise.min() >= 0 and noise.max() < 1
    assert len(np.unique(noise)) == noise.size
    assert noise.mean() == pytest.approx(0.5, abs=0.02)
    assert all(abs(np.corrcoef(noise[0].ravel(), table.ravel())[0, 1]) < 0.5 for table in noise[1:])


@pytest.mark.parametrize("labels", [[], [np.array([0, 0, 0, 3, 3, 3])], [np.array([0, 0, 0, 0, 4, 4])]])
def test_shifts_give_every_source_one_target(labels):
    tables = shift_tables(6, tuple(labels))
    assert set(np.unique(tables)) <= {0.0, 1.0}
    assert (tables.sum(axis=2) <= 1).all()
    assert (tables[0].sum(axis=0) == 1).all() and (tables[0].sum(axis=1) == 1).all()


def test_some_shifts_stay_inside_clusters_and_some_cross_them():
    label = np.array([0, 0, 0, 3, 3, 3])
    inside = label[:, None] == label
    kinds = {(bool(table[inside].any()), bool(table[~inside].any())) for table in shift_tables(6, (label,))[3:]}
    assert kinds == {(True, False), (False, True)}


def test_a_shift_goes_with_the_class_of_its_longest_message():
    label = np.array([0, 0, 2, 2])
    latency = np.where(label[:, None] == label, 1.0, 5.0)
    shifts = shift_tables(4, (label,))
    weights = weights_of(latency, [1.0, 5.0], noise_tables(4)[:2], shifts)
    assert weights.kinds[:4].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]], "noise goes with every class"
    for level, variant in weights.kinds[4:].tolist():
        crosses = (weights.table[variant] * latency).max() > 1.0
        assert level == int(crosses)


def test_hashes_are_equal_where_all_words_are():
    words = np.array([[1, 2], [1, 2], [2, 1], [1, 3], [0, 2]], dtype=np.uint64)
    hashes = hashed(words).tolist()
    assert hashes[0] == hashes[1] and len(set(hashes)) == 4
