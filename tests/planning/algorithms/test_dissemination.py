"""Dissemination: doubling distances for any number of ranks, every part moved once."""

import pytest

from tests.planning.algorithms.offered import messages, most_rows_sent, offered, takes


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_rounds(name):
    takes(name, "dissemination", lambda ranks: (ranks - 1).bit_length())


@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_every_rank_sends_one_message_a_round_and_each_part_once(name, ranks):
    schedule = offered(name, "dissemination", ranks, rows=16 * ranks)
    assert len(messages(schedule)) == ranks * (ranks - 1).bit_length()
    assert most_rows_sent(schedule) == 16 * (ranks - 1)
