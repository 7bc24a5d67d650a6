"""The communicators that callers give, and how many prepared calls are kept for each."""

import numpy as np
import pytest

from attention import reference_attention, ring_decode, three_allreduce_decode, tree_decode
from attention.decode.communicators import state_of
from tests.attention.cases import arrays, assert_close
from topocomm import OperatorError, run_local

METHODS = [tree_decode, ring_decode, three_allreduce_decode]


each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)


def test_prepared_calls_are_bounded(monkeypatch):
    monkeypatch.setattr("attention.decode.communicators.PREPARED_LIMIT", 2)
    q, k, v = arrays((1, 1, 1, 6, 5, 8, 8))

    def on_rank(comm):
        for q_len in (1, 2, 3, 1, 4, 1):
            got = tree_decode(q[:, :, :q_len], k, v, comm)
            assert_close(got, reference_attention(q[:, :, :q_len], k, v).out, atol=1e-5)
        return len(state_of(comm)["calls"])

    assert run_local(on_rank, ranks=2) == [2, 2]


@each_method
def test_a_wrong_communicator_is_named(method):
    q = np.zeros((1, 1, 1, 8), np.float32)
    with pytest.raises(OperatorError, match=r"comm must be a topocomm.Communicator, an mpi4py .* got str"):
        method(q, q, q, "world")
