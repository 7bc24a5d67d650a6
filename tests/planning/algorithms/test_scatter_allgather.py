"""Broadcasts by scatter and allgather: about twice the payload over P a rank, not log2 P payloads."""

import pytest

from tests.planning.algorithms.offered import offered, takes


def test_rounds():
    takes("broadcast", "scatter-ring", lambda ranks: (ranks - 1).bit_length() + ranks - 1)
    takes("broadcast", "scatter-dissemination", lambda ranks: 2 * (ranks - 1).bit_length())


@pytest.mark.parametrize("algorithm", ["scatter-ring", "scatter-dissemination"])
@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_no_rank_receives_a_row_twice(algorithm, ranks):
    rows = 16 * ranks
    schedule = offered("broadcast", algorithm, ranks, rows=rows, root=1)
    received = [0] * ranks
    for move in schedule.transfer_list():
        received[move.dst] += schedule.chunks[move.chunk][1]
    assert received == [rows * (rank != 1) for rank in range(ranks)]
