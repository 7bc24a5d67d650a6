"""What the ring does beyond what it shares with the others: it folds by rank, keeps buffers, and names who differs."""

import numpy as np
import pytest
import torch

from attention import local_attention, merge_states, ring_decode
from attention.decode.communicators import state_of
from tests.attention.cases import case_of
from topocomm import MismatchError, run_local


def test_every_rank_folds_the_partials_of_all_in_rank_order():
    q, k, v = case_of((1, 2, 2, 1, 60, 16, 16))
    parts = [slice(0, 16), slice(16, 48), slice(48, 60)]
    partials = [local_attention(q, k[:, :, part], v[:, :, part]) for part in parts]
    wanted = merge_states([x.out for x in partials], [x.lse for x in partials])

    def on_rank(comm):
        part = parts[comm.rank]
        return ring_decode(q, k[:, :, part].contiguous(), v[:, :, part].contiguous(), comm, return_lse=True)

    for merged in run_local(on_rank, ranks=3):
        assert torch.equal(merged.out, wanted.out) and torch.equal(merged.lse, wanted.lse)


def test_shifts_are_prepared_once_for_shards_with_positions_and_without(monkeypatch):
    q, k, v = case_of((1, 2, 2, 1, 12, 16, 16))

    def on_rank(comm):
        prepared, prepare = [], comm.prepare_shift
        monkeypatch.setattr(comm, "prepare_shift", lambda messages: prepared.append(messages) or prepare(messages))
        for _ in range(2):
            ring_decode(q, k, v, comm)
            ring_decode(q, k, v, comm, kv_lengths=[12 if comm.rank else 7])
        assert state_of(comm)["ring"] is not None
        return prepared

    assert run_local(on_rank, ranks=3) == [[2, 2, 3, 3]] * 3


def test_ranks_that_differ_in_the_number_of_queries_are_named():
    def on_rank(comm):
        q = np.zeros((1, 2, 1 + (comm.rank == 2), 8), np.float32)
        ring_decode(q, q[:, :, :1], q[:, :, :1], comm)

    said = r"ring_decode: ranks \[2\] differ from rank 0 in \[batch, heads, q_len, .*\]: rank 0 has \[1, 2, 1,"
    with pytest.raises(MismatchError, match=said):
        run_local(on_rank, ranks=3)
