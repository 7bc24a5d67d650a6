"""Orders reach all ranks whole, whatever their length, and so does the wish to end."""

import numpy as np
import pytest

from attention.serve.orders import HEAD, LARGE, SMALL, Kind, Order, Orders
from topocomm import run_local


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("idle", [False, True])
def test_orders_of_any_length(ranks, idle):
    lengths = [0, 1, SMALL - HEAD, SMALL - HEAD + 1, SMALL - HEAD + LARGE, SMALL - HEAD + LARGE + 1]
    sent = [Order(Kind.PREFILL, 2, 3, tuple(np.arange(1, n + 1).tolist())) for n in lengths]
    sent += [Order(Kind.STEP, 1, 0, (0, 7)), Order(Kind.NOTHING), Order(Kind.END)]

    def work(comm):
        orders = Orders(comm)
        return [orders.exchange(order if comm.rank == 0 else None, end=False, idle=idle) for order in sent]

    for got in run_local(work, ranks=ranks):
        assert got == [(order, False) for order in sent]


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_any_rank_can_ask_for_the_end(asked):
    def work(comm):
        orders = Orders(comm)
        order = Order(Kind.NOTHING) if comm.rank == 0 else None
        return [orders.exchange(order, end=end, idle=False)[1] for end in (False, comm.rank == asked)]

    assert run_local(work, ranks=3) == [[False, True]] * 3
