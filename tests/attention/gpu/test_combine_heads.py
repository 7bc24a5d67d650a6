"""The merge by heads of serving engines on GPUs: nothing is read on the host, and graphs record it."""

from tests.attention.gpu.playing import NothingIsRead, run_on_gpus  # isort: skip

import threading

import pytest
import torch

from attention.engines.combine import combine_heads, head_combine
from attention.engines.vllm.dcp_combine import empty_rows
from attention.gpu.placement import StreamOrder
from tests.attention.engines.partials import assert_merged, formula, partials


@pytest.mark.parametrize(
    ("ranks", "shape", "dtype", "base"),
    [
        (2, (5, 6, 16), torch.bfloat16, 2),
        (3, (1, 6, 8), torch.float32, "e"),
        pytest.param(4, (7, 8, 24), torch.float16, 2, marks=pytest.mark.long),
        pytest.param(5, (3, 7, 8), torch.float32, "e", marks=pytest.mark.long),
    ],
)
def test_the_formula(ranks, shape, dtype, base, monkeypatch):
    acquired = set()
    acquire = StreamOrder.acquire

    def noted(order, device, call=None):
        acquired.add((threading.current_thread().name, call))
        acquire(order, device, call)

    monkeypatch.setattr(StreamOrder, "acquire", noted)
    made = partials(ranks, shape, dtype)
    lens, starts = [[3, 0, rank] for rank in range(ranks)], torch.tensor([0, 1, 1, shape[0]])
    empties = [empty_rows(shape[0], torch.tensor(each), starts) for each in lens]

    def on_rank(comm):
        out, lse = made[comm.rank]
        with torch.inference_mode():  # engines prepare in it; what is prepared must serve outside of it
            first = combine_heads(out, lse, comm, base=base, empty=empties[comm.rank], return_lse=True)
        assert head_combine(comm).is_planned(out) and head_combine(comm).is_recorded(out)
        with NothingIsRead():
            empty = empty_rows(shape[0], torch.tensor(lens[comm.rank]), starts)
            again = combine_heads(out, lse, comm, base=base, empty=empty, return_lse=True)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
        return first

    found = run_on_gpus(on_rank, ranks)
    whole = torch.cat([x.out for x in found], 1), torch.cat([x.lse for x in found], 1)
    assert len(acquired) == ranks and None not in {call for _, call in acquired}
    assert_merged(*whole, formula(made, base, [empty.numpy() for empty in empties]), dtype)
