"""Times of ranks that share one memory follow by hand from the model."""

import pytest

from topocomm.planning.algorithms.flat import flat_allreduce
from topocomm.planning.cost.memory_time import memory_us


@pytest.mark.parametrize(("cores", "moving_bytes", "waiting_us"), [(2, 20, 2.5), (1, 40, 2 * 2.0)])
def test_ranks_of_one_memory_move_bytes_and_wait(cores, moving_bytes, waiting_us):
    """Each reads and writes 4 bytes of its value, folds two of them into a third, and waits once."""
    found = memory_us(flat_allreduce(2, 1), row_bytes=4, cores=cores)
    assert found == pytest.approx(moving_bytes / 16_000 + waiting_us)


def test_payloads_beyond_the_caches_move_more_slowly():
    near, far = (memory_us(flat_allreduce(2, rows), row_bytes=4, cores=2) - 2.5 for rows in (1 << 16, 1 << 18))
    assert far == pytest.approx(4 * near * 16 / 6)
