"""Which positions a rank holds, and what ring attention refuses on every rank alike."""

import numpy as np
import pytest
import torch

from attention import Spec
from attention.ring.ring_layout import LAYOUTS, sequence_slices
from attention.ring.ring_prefill import ring_attention
from tests.attention.ring_cases import case, held
from topocomm import MismatchError, OperatorError, run_local

CAUSAL = Spec(causal=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", range(1, 18))
def test_slices_make_up_the_sequence(layout, ranks):
    for n in (0, 1, ranks - 1, ranks, 2 * ranks, 2 * ranks + 1, 7 * ranks + 3):
        slices = [sequence_slices(layout, n, ranks, rank) for rank in range(ranks)]
        assert sorted(np.concatenate(held(layout, n, ranks)).tolist()) == list(range(n))
        flat = [s for of_rank in slices for s in of_rank]
        sizes = [s.stop - s.start for s in flat]
        assert max(sizes) - min(sizes) <= 1
        if layout == "zigzag":
            assert all(first.stop <= second.start for first, second in slices)


def test_slices_of_known_sequences():
    assert sequence_slices("contiguous", 10, 4, 1) == [slice(2, 5)]
    assert sequence_slices("zigzag", 16, 4, 0) == [slice(0, 2), slice(14, 16)]
    assert sequence_slices("zigzag", 16, 4, 3) == [slice(6, 8), slice(8, 10)]
    for wrong in [("striped", 8, 2, 0), ("zigzag", 8, 2, 2), ("zigzag", -1, 2, 0)]:
        with pytest.raises(OperatorError, match="sequence_slices: "):
            sequence_slices(*wrong)


def refused(parts, n=12, error=MismatchError, **options):
    """The message on each rank, all of which must raise."""
    tensors, _ = case(n)

    def on_rank(comm):
        own = [x[:, :, torch.from_numpy(np.asarray(parts[comm.rank])) % n] for x in tensors]
        given = {name: x(comm.rank) if callable(x) else x for name, x in options.items()}
        change = given.pop("change", lambda x: x)
        own = [change(x) for x in own]
        with pytest.raises(error) as raised:
            ring_attention(*own, comm, **given)
        again = [x[:, :, : comm.rank + 1] for x in tensors]  # the communicator still works
        assert ring_attention(*again, comm).isfinite().all()
        return str(raised.value)

    messages = run_local(on_rank, ranks=len(parts))
    for rank, message in enumerate(messages):
        assert "ring_attention: " in message
        assert error is OperatorError or message.startswith(f"rank {rank}: ")
    return messages


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([[0, 1, 2, 3], [4, 5, 6, 3], [8, 9, 10, 11]], "3 is held by ranks [0, 1], 7 by none"),
        ([[0, 1, 2, 2], [4, 5, 6, 7], [8, 9, 10, 11]], "2 is held by ranks [0, 0], 3 by none"),
        ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 12]], "must be 0 to 11, each once; rank 2 has 12"),
        ([[0, 1, 2, 3], [4, -5, 6, 7], [8, 9, 10, 11]], "rank 1 has -5"),
        ([[0, 1, 2], [3, 4, 5], [7, 8]], "must be 0 to 7, each once; rank 2 has 8"),
    ],
)
def test_positions_that_overlap_or_leave_some_out(parts, text):
    for message in refused(parts, positions=lambda rank: parts[rank], spec=CAUSAL):
        assert text in message


def test_ranks_that_disagree():
    parts = held("contiguous", 12, 3)
    odd = lambda value, other: lambda rank: value if rank == 1 else other  # noqa: E731
    for options, text in [
        ({"spec": odd(CAUSAL, Spec())}, "ranks [1] differ from rank 0; rank 1 in spec"),
        ({"spec": odd(Spec(window=3), Spec(window=4))}, "rank 1 in spec"),
        ({"layout": odd("zigzag", "contiguous")}, "rank 1 in layout; whether positions are given counts"),
        ({"positions": lambda rank: parts[1] if rank == 1 else None}, "rank 1 in layout"),
        ({"change": odd(lambda x: x[:1], lambda x: x)}, "rank 1 in batch (1, not 2)"),
        ({"change": odd(lambda x: x[:, :2], lambda x: x)}, "rank 1 in heads (2, not 6)"),
        ({"change": odd(lambda x: x.bfloat16(), lambda x: x)}, "rank 1 in dtype of k and v"),
        ({"change": odd(lambda x: x.clone().requires_grad_(), lambda x: x)}, "rank 1 in gradients"),
    ]:
        for message in refused(parts, **options):
            assert text in message


def test_zigzag_parts_of_another_length():
    for message in refused([np.arange(0, 5), np.arange(5, 12)], layout="zigzag"):
        assert (
            "of 12 tokens rank 0 should hold 6 in zigzag, but holds 5; cut the sequence by sequence_slices" in message
        )


def test_arguments_that_do_not_fit():
    parts = held("contiguous", 12, 2)
    for options, text in [
        ({"layout": "striped"}, "layout must be one of contiguous, zigzag, got 'striped'"),
        ({"positions": [0.0] * 6}, "positions must be integers [6]"),
        ({"positions": [0]}, "positions must be integers [6], one for each of this rank's tokens, got torch.int64 [1]"),
        ({"spec": Spec(sinks=[1.0])}, "spec.sinks has 1 values, q has 6 heads"),
    ]:
        for message in refused(parts, error=OperatorError, **options):
            assert text in message
    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(OperatorError, match=r"must be of the same tokens, got 3 queries and 2 keys"):
        run_local(lambda comm: ring_attention(q, q[:, :, :2], q[:, :, :2], comm), ranks=2)
    with pytest.raises(OperatorError, match=r"ring_attention: comm must be"):
        ring_attention(q, q, q, "world")
