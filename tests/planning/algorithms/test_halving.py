"""Recursive halving and doubling: rounds for any number of ranks, about two payloads a rank."""

import pytest

from tests.planning.algorithms.offered import doublings, most_rows_sent, offered, takes


@pytest.mark.parametrize(("name", "algorithm"), [("reduce_scatter", "halving"), ("allgather", "doubling")])
def test_rounds_of_parts(name, algorithm):
    takes(name, algorithm, doublings)


def test_rounds_of_an_allreduce():
    takes("allreduce", "rabenseifner", lambda ranks: 2 * (ranks.bit_length() - 1) + 2 * (ranks & (ranks - 1) > 0))


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_messages_halve_then_double(ranks):
    schedule = offered("allreduce", "rabenseifner", ranks, rows=16 * ranks)
    sizes = [0] * schedule.rounds
    for move in schedule.transfer_list():
        sizes[move.round] += schedule.chunks[move.chunk][1]
    half = [16 * ranks * ranks >> step for step in range(1, ranks.bit_length())]
    assert sizes == [*half, *half[::-1]]
    assert most_rows_sent(schedule) == 2 * 16 * (ranks - 1)
