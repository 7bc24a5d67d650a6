"""The baseline of three all-reduces; its results are tested in test_sharded.py with those of the others."""

from attention import ring_decode, three_allreduce_decode, tree_decode
from attention.decode.communicators import state_of
from tests.attention.cases import SHAPES, arrays
from topocomm import run_local

METHODS = [tree_decode, ring_decode, three_allreduce_decode]


def test_one_reduction_against_three():
    """tree_decode prepares one all-reduce, the baseline three; the ring none."""
    q, k, v = arrays(SHAPES[1])

    def on_rank(comm):
        counts = []
        for method in METHODS:
            before = len(state_of(comm).get("calls", ()))
            method(q, k, v, comm)
            counts.append(len(state_of(comm).get("calls", ())) - before)
        return counts

    assert run_local(on_rank, ranks=2) == [[1, 0, 3]] * 2
