"""Recursive doubling: exchanges with partners that differ in one bit."""

import pytest

from tests.planning.algorithms.offered import doublings, messages, offered, takes


def test_rounds():
    takes("allreduce", "recursive-doubling", doublings)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_partners_differ_in_the_bit_of_the_round(ranks):
    sent = messages(offered("allreduce", "recursive-doubling", ranks))
    assert sent == {(bit, rank, rank ^ 1 << bit) for bit in range(ranks.bit_length() - 1) for rank in range(ranks)}


@pytest.mark.parametrize("ranks", [3, 6, 13])
def test_surplus_ranks_send_once_and_receive_once(ranks):
    surplus = ranks - (1 << ranks.bit_length() - 1)
    sent = messages(offered("allreduce", "recursive-doubling", ranks))
    for odd in range(1, 2 * surplus, 2):
        last = max(round_ for round_, _, _ in sent)
        assert {one for one in sent if odd in one[1:]} == {(0, odd, odd - 1), (last, odd - 1, odd)}
