"""Flat algorithms: everybody to everybody, one fold a rank."""

import pytest

from tests.planning.algorithms.offered import most_rows_sent, offered, takes


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter", "scan", "exscan"])
def test_rounds_of_flat(name):
    takes(name, "flat", lambda ranks: ranks - 1)


def test_rounds_of_direct():
    takes("allreduce", "direct", lambda ranks: 2 * (ranks - 1))


@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_every_rank_folds_once(ranks):
    assert len(offered("allreduce", "flat", ranks).combine_list()) == ranks
    assert len(offered("reduce", "flat", ranks).combine_list()) == 1


@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
def test_long_payloads_are_sent_once_each_way(ranks):
    for name, algorithm, times in (("allgather", "flat", 1), ("reduce_scatter", "flat", 1), ("allreduce", "direct", 2)):
        schedule = offered(name, algorithm, ranks, rows=16 * ranks)
        assert most_rows_sent(schedule) == times * 16 * (ranks - 1), name
