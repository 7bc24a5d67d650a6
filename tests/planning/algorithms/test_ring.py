"""Rings: messages to the next rank only, every row once each way."""

import pytest

from tests.planning.algorithms.offered import messages, most_rows_sent, offered, takes

TIMES = {"allgather": 1, "reduce_scatter": 1, "allreduce": 2}
"""How often the payload goes around, by collective."""


@pytest.mark.parametrize("name", TIMES)
def test_rounds(name):
    takes(name, "ring", lambda ranks: TIMES[name] * (ranks - 1))


@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
@pytest.mark.parametrize("name", TIMES)
def test_every_message_goes_to_the_next_rank(name, ranks):
    schedule = offered(name, "ring", ranks, rows=16 * ranks)
    assert all((src + 1) % ranks == dst for _, src, dst in messages(schedule))
    assert most_rows_sent(schedule) == TIMES[name] * 16 * (ranks - 1)
