"""Collectives of a group, on threads: tensors in any memory, and what is checked before they run."""

import pytest

import topocomm

torch = pytest.importorskip("torch")

from torch.distributed import ReduceOp  # noqa: E402 - where there is torch

from topocomm.torch.group_calls import GroupCalls  # noqa: E402

RANKS = 3


def each(work):
    """What `work(calls, rank)` returns on every rank."""
    return topocomm.run_local(lambda comm: work(GroupCalls(comm.session), comm.rank), ranks=RANKS)


def told(work):
    """The error of every rank."""

    def run(calls, rank):
        try:
            work(calls, rank)
        except topocomm.TopocommError as error:
            return error
        return None

    return each(run)


def test_a_reduction_is_made_in_place_in_any_memory():
    def work(calls, rank):
        whole = torch.zeros(4, 6)
        whole[:, ::2] = rank + 1
        calls.allreduce(whole[:, ::2], ReduceOp.SUM)
        return whole

    for whole in each(work):
        assert torch.equal(whole[:, ::2], torch.full((4, 3), 6.0)) and not whole[:, 1::2].any()


def test_an_average_of_whole_numbers_is_cut_off():
    def work(calls, rank):
        x = torch.tensor([rank - 4, rank + 4])
        calls.allreduce(x, ReduceOp.AVG)
        return x.tolist()

    assert each(work) == [[-3, 5]] * RANKS


def test_only_the_root_of_a_reduction_is_written():
    def work(calls, rank):
        x = torch.tensor([rank + 1.0])
        calls.reduce(x, ReduceOp.PRODUCT, 1)
        return x.item()

    assert each(work) == [1, 6, 3]


def test_parts_of_different_sizes():
    def work(calls, rank):
        outputs = [torch.empty(r + 1) for r in range(RANKS)]
        calls.allgather(outputs, torch.full((rank + 1,), float(rank)))
        part = torch.empty(rank + 1)
        calls.reduce_scatter(part, [torch.ones(r + 1) * r for r in range(RANKS)], ReduceOp.MAX)
        got = torch.empty(6, dtype=torch.int64)
        sent = torch.arange(RANKS * (rank + 1)) + 100 * rank
        calls.all_to_all_single(got, sent, [1, 2, 3], [rank + 1] * RANKS)
        return [out.tolist() for out in outputs], part.tolist(), got.tolist()

    for rank, (outputs, part, got) in enumerate(each(work)):
        assert outputs == [[0], [1, 1], [2, 2, 2]] and part == [rank] * (rank + 1)
        assert got == [s * 100 + rank * (s + 1) + i for s in range(RANKS) for i in range(s + 1)]


def test_a_root_gives_and_takes():
    def work(calls, rank):
        out = torch.empty(2, dtype=torch.bfloat16)
        calls.scatter(out, [torch.full((2,), r, dtype=torch.bfloat16) for r in range(RANKS)] if rank == 2 else [], 2)
        back = [torch.empty_like(out) for _ in range(RANKS)] if rank == 1 else []
        calls.gather(back, out + 1, 1)
        calls.broadcast(out, 0)
        calls.barrier()
        return [x.tolist() for x in back], out.tolist()

    found = each(work)
    assert [back for back, _ in found] == [[], [[1, 1], [2, 2], [3, 3]], []]
    assert [out for _, out in found] == [[0, 0]] * RANKS


def test_several_tensors_are_reduced_in_one_call():
    def work(calls, rank):
        tensors = [torch.ones(2), torch.full((1, 3), float(rank))]
        before = calls._session.recorder.calls
        calls.allreduce_coalesced(tensors, ReduceOp.SUM)
        return [x.tolist() for x in tensors], calls._session.recorder.calls - before

    for tensors, calls_made in each(work):
        assert tensors == [[3, 3], [[3, 3, 3]]]
        assert calls_made == 2  # the agreement on the first use, and the call


def test_sparse_tensors_are_summed_item_by_item():
    def work(calls, rank):
        x = torch.sparse_coo_tensor([[0] * rank + [rank]], torch.ones(rank + 1, 2), (4, 2), check_invariants=True)
        calls.allreduce(x, ReduceOp.SUM)
        return x.to_dense().tolist()

    assert each(work) == [[[4, 4], [1, 1], [1, 1], [0, 0]]] * RANKS
    errors = told(lambda calls, rank: calls.allreduce(torch.ones(2).to_sparse(), ReduceOp.MAX))
    assert all("all_reduce of sparse tensors: expected SUM" in str(error) for error in errors)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda calls, rank: calls.allreduce("x", ReduceOp.SUM), "all_reduce: expected a tensor, got str"),
        (lambda calls, rank: calls.broadcast(torch.ones(2).to_sparse(), 0), "expected a dense tensor"),
        (lambda calls, rank: calls.broadcast(torch.ones(2), 3), "root 3: expected a rank of the group, 0 to 2"),
        (lambda calls, rank: calls.allreduce(torch.ones(2, device="meta"), ReduceOp.SUM), "in host memory"),
        (lambda calls, rank: calls.all_gather_single(torch.ones(5), torch.ones(2)), "expected an output of 6 items"),
        (lambda calls, rank: calls.all_gather_single(torch.ones(6), torch.ones(2).int()), "expected one dtype"),
        (lambda calls, rank: calls.alltoall([], []), "expected 3 tensors, one for each rank, got 0"),
        (lambda calls, rank: calls.all_to_all_single(torch.ones(4), torch.ones(4), [], []), "3 equal parts"),
        (lambda calls, rank: calls.allreduce(torch.ones(2), ReduceOp.BXOR), "bits of other numbers mean nothing"),
    ],
)
def test_wrong_arguments_are_named(work, words):
    for rank, error in enumerate(told(work)):
        assert isinstance(error, topocomm.OperatorError) and words in str(error)
        assert f"rank {rank}" in str(error) or "BXOR" in words or "bits" in words


def test_other_ranks_are_told_of_arguments_that_are_wrong_on_one():
    errors = told(lambda calls, rank: calls.gather([], torch.ones(2), 0))
    assert "gather: expected 3 tensors" in str(errors[0]) and isinstance(errors[0], topocomm.OperatorError)


def test_outputs_that_do_not_fit_what_comes():
    errors = told(lambda calls, rank: calls.alltoall([torch.ones(2)] * 3, [torch.ones(1 + (rank == 0))] * 3))
    assert all("outputs of [2, 1, 1] items by rank, got [2, 2, 2]" in str(error) for error in errors)
